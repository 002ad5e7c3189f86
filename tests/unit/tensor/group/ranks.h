// SPDX-License-Identifier: Apache-2.0
// Purpose: ranks for tests of groups: as threads or as processes, over processors or emulated devices.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "tensor/group/group.h"
#include "tests/unit/slowness.h"

// A rank has no cmocka: what is not as it should be is printed, and fails the rank.
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)

enum ranks_kind { THREADS, THREADS_IN_PLACE, PROCESSES, EMULATED };
enum { N_RANKS_KINDS = 4 };

struct rank {
    enum ranks_kind kind;
    int number, size;
    struct sl_group_config config;
    struct sl_group *group; // NULL: it has not joined
    struct sl_device *device;
    struct sl_stream *stream;
    void *arg;
    uint64_t random;
};
typedef bool (*rank_fn)(struct rank *rank);

struct gpu_driver;

struct ranks {
    enum ranks_kind kind;
    int size, n_absent;              // the last n_absent ranks never come
    bool join;                       // before fn is called
    int64_t deadline_ms;             // 0: a minute, which only a broken group needs
    void *arg;                       // of all
    const struct sl_group_ops *ops;  // NULL: shared
    const struct gpu_driver *driver; // of EMULATED; NULL: sl_gpu_emulator
    // what they are while they run
    void *hall;
    pid_t pids[SL_MAX_RANKS];
    pthread_t threads[SL_MAX_RANKS];
    struct rank ranks[SL_MAX_RANKS];
    rank_fn fn;
    bool good[SL_MAX_RANKS];
};

void ranks_start(struct ranks *ranks, rank_fn fn);
// Waits for all but one (-1: for all), and asserts that they are good. That one was killed.
void ranks_end(struct ranks *ranks, int killed);
// Both.
void ranks_run(struct ranks *ranks, rank_fn fn);

// A number below n, other ones for each rank.
uint64_t rank_random(struct rank *rank, uint64_t n);
// Sometimes it takes a while.
void rank_dawdle(struct rank *rank);

// Memory of the rank's device with these bytes, and back: freed.
void *rank_put(struct rank *rank, const void *bytes, size_t n);
bool rank_take(struct rank *rank, void *there, void *bytes, size_t n);
