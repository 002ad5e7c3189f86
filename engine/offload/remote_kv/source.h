// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the source of offloaded KV for a retriever: remote KVs in this process
 *          (engine/offload/remote_kv/local_source.c) or in kvstores (net/offload/remote/remote_source.c). Requests and
 *          answers have the wire format of engine/offload/remote_kv/near.h.
 * Threads: used by the engine's thread alone.
 */
#pragma once

#include <stdlib.h>

#include "engine/offload/remote_kv/near.h"
#include "engine/tensor/device.h"

struct sl_source;

// A pending request, or its answer.
struct sl_asked;

struct sl_source_ops {
    /*
     * Sends `request` (bytes: header and body), about offloaded heads of one share; the answer takes at most
     * answer_capacity bytes, header included. The source fills in remote_kv_id, and adds SL_NEAR_RESET to a TOPK
     * request if another store gave the last answer for these offloaded heads. Returns at once; wait() reports a share
     * that cannot be reached. For ROWS and CHANNELS a source may read the content instead of asking (n_reads): the
     * answer's bytes are the same, except the time in its header.
     */
    enum sl_status (*ask)(struct sl_source *source, struct sl_near_request *request, size_t request_bytes,
                          size_t answer_capacity, int64_t deadline_ns, struct sl_asked **asked_out,
                          struct sl_error *err);
    /*
     * Returns the answer, aligned to 64 bytes; valid until forget(). Waits until the deadline of ask(); if there is a
     * replica, asks it as well after half of that time. SL_ERR_DEADLINE, SL_ERR_PEER_LOST (all replicas of the share);
     * the text names the store, and the culprits are the replicas.
     */
    enum sl_status (*wait)(struct sl_source *source, struct sl_asked *asked, const void **answer_out, size_t *bytes_out,
                           struct sl_error *err);
    bool (*is_there)(struct sl_source *source, struct sl_asked *asked); // wait() would not block
    void (*forget)(struct sl_source *source, struct sl_asked **asked); // accepts NULL, nulls; cancels a pending request
    void (*destroy)(struct sl_source **source);
};

struct sl_source {
    const struct sl_source_ops *ops;
    // Answers arrive in this device's shared memory, so that the device reads them in place; it outlives the source.
    // NULL: any memory. The asker sets it before the first question.
    struct sl_device *device;
    int n_shares; // of one replica, ascending
    struct {
        int first_offloaded_head, n_offloaded_heads;
    } shares[SL_MAX_SHARES];
    uint64_t bytes_sent, bytes_received, n_asks, n_replica_asks, n_reads; // for statistics
};

// Allocates memory for answers, aligned to 64 bytes. NULL: exhausted.
static inline void *sl_source_alloc(const struct sl_source *source, size_t bytes) {
    return source->device != NULL ? sl_device_alloc(source->device, SL_MEMORY_SHARED, bytes)
                                  : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static inline void sl_source_free(const struct sl_source *source, void *answer) {
    if (source->device != NULL) {
        sl_device_free(source->device, SL_MEMORY_SHARED, answer);
    } else {
        free(answer);
    }
}

// Opens remote KVs of this process; borrows `remote_kv`, which has all offloaded heads, and `team` (NULL: the caller
// alone), which searches.
enum sl_status sl_local_source_create(const struct sl_remote_kv *remote_kv, struct sl_team *team,
                                      struct sl_source **source_out, struct sl_error *err);
