// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where the pages and key indexes of a share lie in its store's window, for one-sided reads: of prefill, which
 *          reads pages back, and of retrieve=pull, whose ROWS and CHANNELS (offload/annex/near.h) can be read instead of asked for.
 *
 * A map is a MAP answer: segments do not move while the annex has its lease, so one is enough. What is read is only
 * true if the lease has lived until the read was over: whoever reads renews it.
 */
#pragma once

#include "fabric/fetch.h"
#include "offload/annex/near.h"

struct sl_annex_map {
    // Set by the owner:
    int first_lane, n_lanes;          // the share's
    struct sl_page_layout work, kept; // of pages as they were shipped, and as the store keeps full ones
    enum sl_kv_format scan;
    // By sl_annex_map_read():
    struct sl_near_segment *segments; // [n_segments] from token 0 on, malloc'd, the owner's to free; NULL: not known
    size_t n_segments;
};

struct sl_near_request sl_annex_map_request(const struct sl_annex_map *map, uint64_t annex_id);
// Bytes that the answer takes at most, of a prompt of n_tokens.
size_t sl_annex_map_answer_limit(int64_t n_tokens);
/*
 * Take the segments out of an answer to that request. SL_ERR_PEER_CORRUPT: it is none, or does not cover the first
 * n_tokens; else the status that the answer carries, or SL_ERR_EXHAUSTED.
 */
enum sl_status sl_annex_map_read(struct sl_annex_map *map, const struct sl_near_request *request, const void *answer,
                                 size_t bytes, int64_t n_tokens, struct sl_error *err);

/*
 * Byte offset in the window of the page of a lane (counted within the share) that holds `token`, which must be there.
 * *at: the segment to look in first, brought up to date; 0 at the beginning, cheap where tokens ascend.
 */
uint64_t sl_annex_map_page(const struct sl_annex_map *map, int lane, int64_t token, size_t *at);

/*
 * How many ranges make up the answer to a ROWS or CHANNELS request. 0: it must be asked for: another kind, rows that are
 * kept as int8 (the store decodes them), or what the store would refuse.
 */
size_t sl_annex_map_n_ranges(const struct sl_annex_map *map, const struct sl_near_request *request, const void *body);
/*
 * Where sl_annex_map_n_ranges() is not 0: all of the answer that is no key or value into `answer` (of
 * sl_near_answer_limit() bytes), and into ranges_out where the others lie and go. Read, the answer is that of
 * sl_near_serve() but for the time that was measured. Returns its bytes.
 */
size_t sl_annex_map_answer(const struct sl_annex_map *map, const struct sl_near_request *request, const void *body,
                           void *answer, struct sl_fetch_range *ranges_out);
