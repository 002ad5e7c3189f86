// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tensor/group/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "tensor/cpu/device.h"
#include "tensor/cuda/emulated/driver.h"
#include "tensor/cuda/table/device.h"
#include "tensor/group/shared.h"

static bool run_rank(struct ranks *ranks, int r) {
    struct rank *rank = &ranks->ranks[r];
    struct sl_error err = {0};
    *rank = (struct rank){
        .kind = ranks->kind, .number = r, .size = ranks->size, .arg = ranks->arg, .random = (uint64_t)r + 1};
    struct sl_team *team = NULL; // a few threads in place have one each, to add up with
    CHECK(ranks->kind != THREADS_IN_PLACE || ranks->size > 3 || sl_team_create(2, &team, &err) == SL_OK);
    CHECK((ranks->kind == EMULATED ? sl_gpu_device_open(ranks->driver != NULL ? ranks->driver : &sl_gpu_emulator, 0,
                                                        NULL, &rank->device, &err)
                                   : sl_cpu_device_open(team, &rank->device, &err)) == SL_OK);
    rank->stream = sl_device_stream(rank->device, SL_STREAM_COMPUTE);
    rank->config = (struct sl_group_config){.hall = ranks->hall,
                                            .rank = r,
                                            .size = ranks->size,
                                            .one_process = ranks->kind == THREADS_IN_PLACE || ranks->kind == EMULATED,
                                            .device = rank->device,
                                            .deadline_ms = ranks->deadline_ms};
    if (ranks->join) {
        enum sl_status status =
            sl_group_join(ranks->ops != NULL ? ranks->ops : &sl_group_shared, &rank->config, &rank->group, &err);
        if (status != SL_OK) {
            fprintf(stderr, "rank %d: %s\n", r, err.text);
        }
        CHECK(status == SL_OK);
    }
    bool good = ranks->fn(rank);
    sl_group_leave(&rank->group);
    sl_device_close(&rank->device);
    sl_team_destroy(&team);
    return good;
}

struct start {
    struct ranks *ranks;
    int number;
};

static void *run_thread(void *arg) {
    struct start start = *(struct start *)arg;
    free(arg);
    start.ranks->good[start.number] = run_rank(start.ranks, start.number);
    return NULL;
}

void ranks_start(struct ranks *ranks, rank_fn fn) {
    size_t bytes = sl_group_hall_bytes(ranks->size);
    ranks->fn = fn;
    ranks->deadline_ms = ranks->deadline_ms > 0 ? ranks->deadline_ms : 60000;
    ranks->hall = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ranks->hall != MAP_FAILED);
    for (int r = 0; r < ranks->size - ranks->n_absent; r++) {
        if (ranks->kind == PROCESSES) {
            ranks->pids[r] = fork();
            assert_true(ranks->pids[r] >= 0);
            if (ranks->pids[r] == 0) {
                _exit(run_rank(ranks, r) ? 0 : 1);
            }
        } else {
            struct start *start = malloc(sizeof *start);
            *start = (struct start){ranks, r};
            assert_int_equal(sl_thread_start("rank", run_thread, start, &ranks->threads[r], NULL), SL_OK);
        }
    }
}

void ranks_end(struct ranks *ranks, int killed) {
    for (int r = 0; r < ranks->size - ranks->n_absent; r++) {
        if (ranks->kind == PROCESSES) {
            int status = 0;
            assert_int_equal(waitpid(ranks->pids[r], &status, 0), ranks->pids[r]);
            ranks->good[r] = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        } else {
            pthread_join(ranks->threads[r], NULL);
        }
        if (!ranks->good[r] && r != killed) {
            fail_msg("rank %d of %d (kind %d)", r, ranks->size, (int)ranks->kind);
        }
    }
    munmap(ranks->hall, sl_group_hall_bytes(ranks->size));
}

void ranks_run(struct ranks *ranks, rank_fn fn) {
    ranks_start(ranks, fn);
    ranks_end(ranks, -1);
}

uint64_t rank_random(struct rank *rank, uint64_t n) {
    rank->random ^= rank->random << 13;
    rank->random ^= rank->random >> 7;
    rank->random ^= rank->random << 17;
    return rank->random % n;
}

void rank_dawdle(struct rank *rank) {
    if (rank_random(rank, 16) == 0) {
        usleep((unsigned)rank_random(rank, 300));
    }
}

void *rank_put(struct rank *rank, const void *bytes, size_t n) {
    void *there = sl_device_alloc(rank->device, SL_MEMORY_DEVICE, n > 0 ? n : 1);
    void *shared = sl_device_alloc(rank->device, SL_MEMORY_SHARED, n > 0 ? n : 1);
    memcpy(shared, bytes, n);
    sl_stream_copy(rank->stream, there, shared, n);
    (void)sl_stream_wait(rank->stream, NULL);
    sl_device_free(rank->device, SL_MEMORY_SHARED, shared);
    return there;
}

bool rank_take(struct rank *rank, void *there, void *bytes, size_t n) {
    void *shared = sl_device_alloc(rank->device, SL_MEMORY_SHARED, n > 0 ? n : 1);
    sl_stream_copy(rank->stream, shared, there, n);
    bool good = sl_stream_wait(rank->stream, NULL) == SL_OK;
    memcpy(bytes, shared, n);
    sl_device_free(rank->device, SL_MEMORY_SHARED, shared);
    sl_device_free(rank->device, SL_MEMORY_DEVICE, there);
    return good;
}
