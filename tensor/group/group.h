// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ranks that compute one model together (tensor parallelism): what they say to each other. A rank is a thread with a device of
 *          its own; struct sl_group is its end.
 *
 * Design: collectives are called by all ranks, in the same order and with the same sizes; who calls another one than rank 0 is found by it. A table
 *         of functions has two fillings: `shared` (shared.h), over memory that all ranks map, be they threads or processes; `nccl`
 *         (tensor/cuda/group), over GPUs of one process.
 *
 * Bits:     a sum is taken in f32 in the order of ranks, ((x0 + x1) + x2) + .., so that the same ranks make the same bits: each element by
 *           itself, whatever n. Of nccl only small ones; its large ones have an order of their own, the same for the same ranks and n.
 * Failures: no collective waits without a deadline. SL_ERR_PEER_LOST: a rank did not come in time, has left, or has given up; the text
 *           says which and sl_group_lost() has its number. SL_ERR_INTERNAL: ranks called different collectives, or a device has failed. After any of these
 *           the group is of no more use: every call of every rank fails at once, and what was to be summed or gathered is worth nothing.
 * Threads:  a rank's end is used by one thread at a time, but sl_group_abandon() and sl_group_lost() by any.
 */
#pragma once

#include "tensor/device.h"

#define SL_MAX_RANKS         16
#define SL_GROUP_DEADLINE_MS 5000

struct sl_group;

struct sl_group_config {
    void *hall;     // of all ranks: sl_group_hall_bytes(size) of memory, at a multiple of 64, zeros when the first one
                    // joins; whoever made it keeps it until all have left. One hall, one group
    int rank, size; // 0 <= rank < size <= SL_MAX_RANKS
    bool one_process;         // all ranks are threads of one process: they may touch each other's memory
    struct sl_device *device; // the rank's
    int64_t deadline_ms;      // of every wait for others; 0: SL_GROUP_DEADLINE_MS
};

// Plugins have one (tensor/plugin.h): whoever changes it raises SL_PLUGIN_REVISION.
struct sl_group_ops {
    const char *name; // "shared", "nccl"
    enum sl_status (*join)(const struct sl_group_config *config, struct sl_group **group_out, struct sl_error *err);
    void (*leave)(struct sl_group *group);
    enum sl_status (*sum)(struct sl_group *group, struct sl_stream *stream, float *x, int64_t n, struct sl_error *err);
    enum sl_status (*gather)(struct sl_group *group, struct sl_stream *stream, const void *x, size_t bytes, void *out,
                             struct sl_error *err);
    enum sl_status (*meet)(struct sl_group *group, enum sl_status mine, int *whose_out, struct sl_error *err_inout);
    void (*abandon)(struct sl_group *group);
    int (*lost)(const struct sl_group *group);
};

// A filling's own end begins with it.
struct sl_group {
    const struct sl_group_ops *ops;
    int rank, size;
};

size_t sl_group_hall_bytes(int size);

// Waits until all ranks have joined. SL_ERR_INVALID: no such rank or size; SL_ERR_EXISTS: somebody is that rank already; SL_ERR_EXHAUSTED;
// SL_ERR_UNSUPPORTED: what it needs is not there; says what to do.
static inline enum sl_status sl_group_join(const struct sl_group_ops *ops, const struct sl_group_config *config,
                                           struct sl_group **group_out, struct sl_error *err) {
    return ops->join(config, group_out, err);
}

// Behind a wait for the streams that sums were queued in. Does not wait for others: who comes to a collective with this rank afterwards is told
// that it has left. Accepts NULL, leaves NULL.
static inline void sl_group_leave(struct sl_group **group) {
    if (*group != NULL) {
        (*group)->ops->leave(*group);
        *group = NULL;
    }
}

// x[n] of every rank becomes the sum of all, in the order of `stream`: the rank's compute stream, always the same one, and x is memory of
// its device.
static inline enum sl_status sl_group_sum(struct sl_group *group, struct sl_stream *stream, float *x, int64_t n,
                                          struct sl_error *err) {
    return group->ops->sum(group, stream, x, n, err);
}

// out[rank * bytes ..] becomes the x[bytes] of every rank, in the order of the stream. Both are memory of its device; x may lie
// at its place in `out`.
static inline enum sl_status sl_group_gather(struct sl_group *group, struct sl_stream *stream, const void *x,
                                             size_t bytes, void *out, struct sl_error *err) {
    return group->ops->gather(group, stream, x, bytes, out, err);
}

/*
 * The host waits until all ranks have come, and all get the worst status that one of them came with: failures before others, of those the lowest number, of
 * these the lowest rank's, with its text behind its rank. *err_inout: the text of `mine`, where that is not SL_OK; may be NULL. *whose_out (may
 * be NULL): whose status it is, -1 where it is SL_OK. It is no failure of the group's unless sl_group_lost() says so.
 */
static inline enum sl_status sl_group_meet(struct sl_group *group, enum sl_status mine, int *whose_out,
                                           struct sl_error *err_inout) {
    return group->ops->meet(group, mine, whose_out, err_inout);
}

// Any thread, until the rank leaves: whoever waits in this group, or comes later, gets SL_ERR_PEER_LOST with this rank's number.
static inline void sl_group_abandon(struct sl_group *group) {
    group->ops->abandon(group);
}

// The rank for whose sake the group has ended, or -1: it has not.
static inline int sl_group_lost(const struct sl_group *group) {
    return group->ops->lost(group);
}

// The first of `total` things (KV heads, columns of an MLP) that are a rank's; the next one's first is its end.
static inline int64_t sl_group_share(int64_t total, int rank, int size) {
    return total * rank / size;
}
