// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the files that implement near.h.
 *
 *     near_wire.c    sizes of answers; checks of requests and answers
 *     near_memory.c  which tokens are in an asker's places
 *     near_serve.c   answers
 */
#pragma once

#include "engine/offload/remote_kv/remote_kv_internal.h"
#include "engine/offload/remote_kv/near.h"
#include "engine/offload/remote_kv/row_places.h"

static inline size_t sl_near_padded(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

// Returns how many rows of every offloaded head a TOPK request gets.
static inline uint32_t sl_near_n_rows(const struct sl_near_request *request) {
    int64_t n = request->last - request->first;
    return n < (int64_t)request->topk ? (uint32_t)n : request->topk;
}

struct sl_near_shape sl_near_shape_of(const struct sl_remote_kv *remote_kv);

/*
 * Checks a request against its size and the remote KV's bounds; the requested tokens may still not exist. *head_out is
 * always written: zeros if there is no header. SL_ERR_INVALID.
 */
enum sl_status sl_near_read_request(const struct sl_remote_kv *remote_kv, const void *request, size_t request_bytes,
                                    struct sl_near_request *head_out, struct sl_error *err);

// Claims the asker's places for a request's tokens (ascending) of an offloaded head. SL_ERR_EXHAUSTED.
enum sl_status sl_near_memory_want(struct sl_near_memory *memory, int offloaded_head,
                                   const struct sl_near_request *request, struct sl_row_claim *claim,
                                   struct sl_error *err);
