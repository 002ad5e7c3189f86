// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where the pages and key indexes of a share lie in its store's window, for one-sided reads. Prefill uses it
 *          to read pages back, and retrieve=pull to read ROWS and CHANNELS (engine/offload/remote_kv/near.h) instead of
 *          asking for them.
 *
 * A map is a MAP answer: segments do not move while the remote KV has its lease, so one is enough. Data is valid only
 * if the lease was still alive when the read ended: the reader must renew it.
 */
#pragma once

#include "net/fabric/fetch.h"
#include "engine/offload/remote_kv/near.h"

struct sl_remote_kv_map {
    // Set by the owner:
    int first_offloaded_head, n_offloaded_heads; // of the share
    struct sl_page_layout work, kept;            // of pages as shipped, and of full pages as the store keeps them
    enum sl_kv_format scan;
    // Set by sl_remote_kv_map_read():
    struct sl_near_segment *segments; // [n_segments] from token 0 on, malloc'd, the owner frees it; NULL: unknown
    size_t n_segments;
};

struct sl_near_request sl_remote_kv_map_request(const struct sl_remote_kv_map *map, uint64_t remote_kv_id);
// Returns the largest size of the answer for a prompt of n_tokens.
size_t sl_remote_kv_map_answer_limit(int64_t n_tokens);
/*
 * Reads the segments from an answer to that request. SL_ERR_PEER_CORRUPT: it is not one, or does not cover the first
 * n_tokens; else the status that the answer carries, or SL_ERR_EXHAUSTED.
 */
enum sl_status sl_remote_kv_map_read(struct sl_remote_kv_map *map, const struct sl_near_request *request,
                                     const void *answer, size_t bytes, int64_t n_tokens, struct sl_error *err);

/*
 * Returns the byte offset in the window of the page of an offloaded head (counted within the share) that holds `token`,
 * which must exist. *at: the segment where the search begins, updated; 0 at first; cheap if tokens ascend.
 */
uint64_t sl_remote_kv_map_page(const struct sl_remote_kv_map *map, int offloaded_head, int64_t token, size_t *at);

/*
 * Returns how many ranges make up the answer to a ROWS or CHANNELS request. 0: the caller must ask the store, because
 * it is another kind, rows are kept as int8 (the store decodes them), or the store would refuse it.
 */
size_t sl_remote_kv_map_n_ranges(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                                 const void *body);
/*
 * Prepares an answer for which sl_remote_kv_map_n_ranges() is not 0: writes everything except keys and values into
 * `answer` (of sl_near_answer_limit() bytes), and into ranges_out where keys and values lie and where they go. After
 * the reads, the answer equals that of sl_near_serve(), except the measured time. Returns its bytes.
 */
size_t sl_remote_kv_map_answer(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                               const void *body, void *answer, struct sl_fetch_range *ranges_out);
