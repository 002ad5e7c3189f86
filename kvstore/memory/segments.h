// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the segments that a kvstore has in memory, found by their prompts and evicted by age of last use. A segment
 *          outlives the remote KV that it was shipped for: another job with the same beginning, or the next turn of a
 *          conversation, reuses it. This loses nothing, as the bytes are those of the prompt.
 *
 * Design: an index from (family, end, hash of all tokens up to the end) to segments. Jobs may cut the same prompt
 *         differently, so several segments may end at one token. The search for a chain of adjacent segments goes
 *         through the ends of a prompt in ascending order: an end is reachable if some segment ends there and its begin
 *         is reachable. The farthest end wins; a gap ends the chain.
 *         A segment in use, by a remote KV or by another holder of a reference, is not evicted. One that a remote KV
 *         has released within the last keep_ms is evicted only when the caller passes INT64_MAX. Of one remote KV the
 *         last segment is evicted first: it is useless without those before it.
 * Threads: any number; one lock, held briefly.
 */
#pragma once

#include "base/salted_hash.h"
#include "engine/offload/remote_kv/segment_head.h"

// A prompt, as hashes of its beginnings (engine/kvcache/capsule.h).
struct sl_prompt_hashes {
    int64_t n_tokens;
    struct sl_hash128 *prefixes; // [n_tokens / SL_PAGE_SLOTS]: of the first (i + 1) * SL_PAGE_SLOTS tokens
    struct sl_hash128 whole;     // of all n_tokens
};
// Returns the hash of the first `end` tokens: a multiple of SL_PAGE_SLOTS, or all.
struct sl_hash128 sl_prompt_hash_at(const struct sl_prompt_hashes *prompt, int64_t end);

struct sl_kv_segments;

enum sl_status sl_kv_segments_create(int64_t keep_ms, struct sl_kv_segments **segments_out, struct sl_error *err);
void sl_kv_segments_destroy(struct sl_kv_segments **segments); // releases all; a segment that is referenced elsewhere
                                                               // stays

/*
 * Indexes a segment; prefix_hash covers all tokens up to its end. The index takes its own reference. If the same
 * segment is indexed already, *segment_inout becomes a reference to that one and the given reference is released.
 * SL_ERR_EXHAUSTED: not indexed, *segment_inout is unchanged.
 */
enum sl_status sl_kv_segments_put(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                  struct sl_hash128 prefix_hash, struct sl_kv_segment **segment_inout,
                                  struct sl_error *err);

// Returns the segment [begin, end) of a prompt, or NULL. The caller releases the reference.
struct sl_kv_segment *sl_kv_segments_find(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                          const struct sl_prompt_hashes *prompt, int64_t begin, int64_t end);

/*
 * Finds the segments that cover as much of a prompt as possible without a gap from token 0 on, in order. The references
 * belong to the caller, in a malloc'd array (NULL if there are none). SL_ERR_EXHAUSTED.
 */
enum sl_status sl_kv_segments_chain(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                    const struct sl_prompt_hashes *prompt, struct sl_kv_segment ***chain_out,
                                    size_t *n_chain_out, struct sl_error *err);

// Call before `remote_kv` is freed: counts its segments as used now and keeps them for keep_ms.
void sl_kv_segments_release(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                            const struct sl_prompt_hashes *prompt, const struct sl_remote_kv *remote_kv);

// Removes the given segments from the index: those that nothing but the index and the caller refers to now, others when
// the last remote KV releases them.
void sl_kv_segments_drop(struct sl_kv_segments *segments, struct sl_kv_segment *const *dropped, size_t n_dropped);

/*
 * Evicts the least recently used segment that is not in use, passing over those that are kept beyond now_ns; INT64_MAX
 * passes over none. False: there is none.
 */
bool sl_kv_segments_evict_one(struct sl_kv_segments *segments, int64_t now_ns);
// Returns when the segment that would be evicted was last used; INT64_MAX: there is none.
int64_t sl_kv_segments_oldest_ns(struct sl_kv_segments *segments, int64_t now_ns);

struct sl_kv_segments_stats {
    int64_t n_segments, n_evicted;
    size_t bytes, evictable_bytes; // of all; of those that are not in use
};
void sl_kv_segments_get_stats(struct sl_kv_segments *segments, struct sl_kv_segments_stats *stats_out);
