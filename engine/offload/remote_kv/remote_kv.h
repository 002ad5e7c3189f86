// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the part of a session's offloaded layers that a kvstore holds, and the search in it. The same code searches
 *          in one process (`sluice run --local`) and in the store's memory.
 *
 * Vocabulary: segment  the pages of consecutive prompt tokens of all offloaded heads of a share, as prefill ships them
 *             after a step, and their key indexes. Immutable once built, so remote KVs can share it: reference-counted
 *             remote KV    a share of one session: adjacent segments from token 0 on
 *
 * Design: two accesses matter. Scanning reads a few channels of all tokens from the key indexes (engine/kvcache/key_index.h),
 *         one for every offloaded head of a segment. Gathering reads a few whole tokens from the pages, in which a
 *         token's K is one run of bytes and its V another; pages stay where they arrived. Segments begin at multiples
 *         of SL_PAGE_SLOTS, and every segment except a remote KV's last one ends at a multiple as well.
 *
 * Search (TailorKV, section 4.2, with the query itself instead of a prediction of it, unless the caller has one):
 *         channels  the n_channels c with the largest |q_c| * max over segments of absmax_c; ties: the lower channel
 *         scores    sum over those c, in ascending order of c, of q_c * K^_j[c], in f32; K^ as the key index has it
 *         result    the topk tokens j in [first, last) with the largest score, in ascending order of j; total order as
 *                   ops->host.select: score descending, then j ascending, NaN lowest
 *         No result depends on concurrent searches or on the number of threads; nor on how segments are cut, except for
 *         key indexes in int8 and int1, whose scales are those of a segment.
 *
 * Threads: one thread at a time appends to a remote KV; any number search and gather concurrently, also during
 *          appending (they see the tokens that existed when they began).
 */
#pragma once

#include "base/arena.h"
#include "engine/kvcache/key_index.h"
#include "engine/offload/remote_kv/offloaded_heads.h"
#include "engine/tensor/ops.h"

// --- segments -----------------------------------------------------------------------------------------------------

struct sl_kv_segment_config {
    int64_t begin;                               // token
    uint32_t n_slots;                            // tokens
    int first_offloaded_head, n_offloaded_heads; // of the share
    struct sl_page_layout work;                  // as shipped: a float format without positions and states
    enum sl_kv_format rows; // format of the kept pages: work.format, or int8 (full pages; a partial one stays as
                            // shipped)
    enum sl_kv_format scan; // of the key indexes: work.format, int8 or int1; they are made of the kept pages
};

// Returns the bytes of the block that prefill ships: offloaded head after offloaded head of the share, each with its
// pages in order. 0: a configuration that sl_kv_segment_create() rejects.
size_t sl_kv_segment_block_bytes(const struct sl_kv_segment_config *config);
// Returns the arena bytes of a built segment, including key indexes; admission counts them. While int8 rows are made,
// the shipped block is there as well.
size_t sl_kv_segment_bytes(const struct sl_kv_segment_config *config);

// Returns the bytes of its kept pages alone; 0: as above.
size_t sl_kv_segment_kept_bytes(const struct sl_kv_segment_config *config);

struct sl_kv_segment;

/*
 * Builds a segment with one reference. block: sl_kv_segment_block_bytes() of `arena`; the segment owns it on success
 * (if rows are int8 it is returned to the arena). Builds the key indexes, one task of `team` (may be NULL) per
 * offloaded head. SL_ERR_INVALID (config), SL_ERR_EXHAUSTED.
 */
enum sl_status sl_kv_segment_create(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                    struct sl_team *team, struct sl_arena *arena, void *block,
                                    struct sl_kv_segment **segment_out, struct sl_error *err);
// Does the same with a block of sl_kv_segment_kept_bytes(): the pages of a segment that was built before, as
// sl_kv_segment_pages() shows them. The result has the same bytes.
enum sl_status sl_kv_segment_restore(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                     struct sl_team *team, struct sl_arena *arena, void *block,
                                     struct sl_kv_segment **segment_out, struct sl_error *err);
/*
 * Builds a segment in one process from the pages of a session that outlives it, kv[n_offloaded_heads]; the segment owns
 * only the key indexes.
 */
enum sl_status sl_kv_segment_borrow(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                    struct sl_team *team, struct sl_arena *arena, const struct sl_kv *kv,
                                    struct sl_kv_segment **segment_out, struct sl_error *err);
struct sl_kv_segment *sl_kv_segment_ref(struct sl_kv_segment *segment);
void sl_kv_segment_unref(struct sl_kv_segment **segment); // the last one returns its memory to the arena
const struct sl_kv_segment_config *sl_kv_segment_get_config(const struct sl_kv_segment *segment);
int sl_kv_segment_n_refs(const struct sl_kv_segment *segment); // 1: only the caller has one

// Return where the bytes are, for one-sided reads, `stride` bytes from offloaded head to offloaded head: the kept pages
// (offloaded head after offloaded head: int8 pages first, then a partial one; NULL when they are borrowed), and the key
// indexes.
const void *sl_kv_segment_pages(const struct sl_kv_segment *segment, size_t *stride_out);
const void *sl_kv_segment_key_indexes(const struct sl_kv_segment *segment, size_t *stride_out);

// --- remote KVs ----------------------------------------------------------------------------------------------------

struct sl_remote_kv;

enum sl_status sl_remote_kv_create(const struct sl_ops *ops, int first_offloaded_head, int n_offloaded_heads,
                                   int head_dim, int64_t max_tokens, struct sl_remote_kv **remote_kv_out,
                                   struct sl_error *err);
void sl_remote_kv_destroy(struct sl_remote_kv **remote_kv);

// Appends a segment and takes its own reference. SL_ERR_INVALID: the segment does not begin where the remote KV ends,
// comes after a partial page, or has other offloaded heads or layouts than the segments before it.
enum sl_status sl_remote_kv_append(struct sl_remote_kv *remote_kv, struct sl_kv_segment *segment, struct sl_error *err);
int64_t sl_remote_kv_n_tokens(const struct sl_remote_kv *remote_kv);
// NULL beyond the last one
const struct sl_kv_segment *sl_remote_kv_segment(const struct sl_remote_kv *remote_kv, int index);

struct sl_remote_kv_query {
    int offloaded_head; // of the session; must be in the remote KV
    const float *q;     // [d]: the mean over the group of query heads, after RoPE
    const int *given;   // [n_channels] ascending: channels chosen elsewhere; NULL: choose them
    int n_channels;
    int64_t first, last; // candidate tokens
    uint32_t topk;
};

// Scratch of one searching thread, and the team that helps it (NULL: none); grows as needed. NULL: no memory.
struct sl_remote_kv_scratch;
struct sl_remote_kv_scratch *sl_remote_kv_scratch_create(struct sl_team *team);
void sl_remote_kv_scratch_destroy(struct sl_remote_kv_scratch **scratch);

/*
 * Searches several queries (of one remote KV, or of remote KVs that share segments) in one pass over memory: a segment
 * is scanned for all of them while it is in the cache. tokens_out[i]: [queries[i].topk] ascending; *n_out[i]: how many
 * candidates there were, at most topk. SL_ERR_INVALID: an offloaded head of another share, a range beyond the remote
 * KV, channels out of bounds. SL_ERR_EXHAUSTED: scratch.
 */
struct sl_remote_kv_search {
    const struct sl_remote_kv *remote_kv;
    struct sl_remote_kv_query query;
    uint32_t *tokens_out;
    uint32_t n_out;
    size_t scanned_bytes; // out: of key indexes, for statistics
};
enum sl_status sl_remote_kv_search(struct sl_remote_kv_search *searches, int n_searches,
                                   struct sl_remote_kv_scratch *scratch, struct sl_error *err);

// Copies K and V of the listed tokens in order: [n][2][d] in the work layout's format. The tokens must exist.
void sl_remote_kv_rows(const struct sl_remote_kv *remote_kv, int offloaded_head, const uint32_t *tokens, uint32_t n,
                       void *rows_out);

// Returns the largest magnitude of every channel over all tokens: absmax_out[d].
void sl_remote_kv_absmax(const struct sl_remote_kv *remote_kv, int offloaded_head, float *absmax_out);
