// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the collective by which devices that are ranks of one model exchange activations. engine/tensor/ranks calls it; the filling is
 *          NCCL's (engine/tensor/cuda/group), which a plugin exports (engine/tensor/plugin.h).
 *
 * Design: one group has all ranks, which are threads of one process with a device each. join() and gather() are called by all
 *         ranks at once, each in its own thread and for its own stream, in the same order and with the same sizes. Nothing is added
 *         up: a gather moves bytes, so results have the bits of one device.
 *
 * Failures: SL_ERR_PEER_LOST: some rank did not call in time; lost() has its number. SL_ERR_INTERNAL: the library failed. After
 *         either, and after abort(), the group is of no more use.
 * Threads: abort() and lost() by any thread, at any time before close().
 */
#pragma once

#include "engine/tensor/device.h"

struct sl_group_ops;

struct sl_group {
    const struct sl_group_ops *ops;
};

struct sl_group_ops {
    const char *name;
    // Makes a group that nobody has joined yet. still_ms: how long a call waits for other ranks. SL_ERR_UNSUPPORTED: the library is
    // not there, says what to install; SL_ERR_EXHAUSTED.
    enum sl_status (*open)(int n, int64_t still_ms, struct sl_group **group_out, struct sl_error *err);
    // Waits until all ranks have joined.
    enum sl_status (*join)(struct sl_group *group, int rank, struct sl_stream *stream, struct sl_error *err);
    // Queues: parts[n][bytes], memory of the rank's device, of which it has written its own part, gets those of all others.
    enum sl_status (*gather)(struct sl_group *group, int rank, struct sl_stream *stream, void *parts, size_t bytes,
                             struct sl_error *err);
    // Ends what is queued, finished or not.
    void (*abort)(struct sl_group *group);
    // Returns the rank that a call waited for in vain, or -1.
    int (*lost)(const struct sl_group *group);
    // After a wait for all streams, or abort().
    void (*close)(struct sl_group *group);
};
