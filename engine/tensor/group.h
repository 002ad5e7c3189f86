// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the collective by which devices that are ranks of one model exchange activations. engine/tensor/ranks calls
 *         it. NCCL implements it (engine/tensor/cuda/group), and a plugin exports it (engine/tensor/plugin.h).
 *
 * Design: one group has all ranks, which are threads of one process with a device each. All ranks call join() and
 *         gather() at once, each in its own thread and for its own stream, in the same order and with the same sizes.
 *         A gather moves bytes and adds nothing up, so results have the bits of one device.
 *
 * Failures: SL_ERR_PEER_LOST: a rank did not call in time; lost() returns its number. SL_ERR_INTERNAL: the library
 *         failed. The group cannot be used after either, or after abort().
 * Threads: any thread may call abort() and lost(), at any time before close().
 */
#pragma once

#include "engine/tensor/device.h"

struct sl_group_ops;

struct sl_group {
    const struct sl_group_ops *ops;
};

struct sl_group_ops {
    const char *name;
    // Makes a group that no rank has joined yet. still_ms: how long a call waits for other ranks. Returns
    // SL_ERR_UNSUPPORTED where the library is not installed, with a text that says what to install; SL_ERR_EXHAUSTED.
    enum sl_status (*open)(int n, int64_t still_ms, struct sl_group **group_out, struct sl_error *err);
    // Waits until all ranks have joined.
    enum sl_status (*join)(struct sl_group *group, int rank, struct sl_stream *stream, struct sl_error *err);
    // Queues a gather: each rank has written its own part of parts[n][bytes], memory of its device, and gets the parts
    // of all others.
    enum sl_status (*gather)(struct sl_group *group, int rank, struct sl_stream *stream, void *parts, size_t bytes,
                             struct sl_error *err);
    // Ends what is queued, finished or not.
    void (*abort)(struct sl_group *group);
    // Returns the rank that did not answer a call in time, or -1.
    int (*lost)(const struct sl_group *group);
    // Frees the group. Call it after a wait for all streams, or after abort().
    void (*close)(struct sl_group *group);
};
