// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a rank's communicator of NCCL, and a thread that ends it when the group has ended, or a sum in the device does not: a kernel of NCCL waits for the other
 *          ranks' without a deadline, and whoever waits for the device would wait with it.
 *
 * Design: around every sum two events are recorded. A sum whose first event has been reached, but not its second for the deadline, is one that does not end; given up is the
 *         first rank that has begun fewer sums than this one, or this one itself. Ending a communicator makes its kernels end.
 * Threads: the rank's, and its own.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tensor/cuda/group/nccl.h"
#include "tensor/cuda/table/driver.h"
#include "tensor/group/meeting.h"

#define GPU_WATCHED 64 // sums that are queued

struct gpu_watch {
    const struct nccl_functions *nccl;
    const struct gpu_driver *driver;
    struct sl_meeting *meeting;
    _Atomic uint64_t *const *n_begun; // [size]: sums that each rank's device has begun
    pthread_mutex_t lock;             // over what follows
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stopping;
    struct nccl_comm *comm; // NULL: none
    struct gpu_watched {
        struct gpu_event *begin, *end;
    } sums[GPU_WATCHED];
    uint64_t n_queued, n_done;
    int64_t since_ns; // the oldest was seen to have begun; 0: not yet
};

// Of zeros. SL_ERR_EXHAUSTED. Cleanup copes with halves, and with what was never started, too.
enum sl_status sl_gpu_watch_init(struct gpu_watch *watch, const struct nccl_functions *nccl,
                                 const struct gpu_driver *driver, struct sl_meeting *meeting,
                                 _Atomic uint64_t *const *n_begun, struct sl_error *err);
void sl_gpu_watch_cleanup(struct gpu_watch *watch);

// Makes the communicator, with all other ranks.
enum sl_status sl_gpu_watch_connect(struct gpu_watch *watch, const struct nccl_id *id, struct sl_error *err);

// x[n] becomes the sum, queued. Statuses of sl_group_sum().
enum sl_status sl_gpu_watch_sum(struct gpu_watch *watch, struct gpu_queue *queue, float *x, int64_t n,
                                struct sl_error *err);
