// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the attention of a whole step as blocks of query vectors over splits of pages, for all fast tiers.
 *
 * Vocabulary: vector  a (row, query head) pair; those of a KV head are numbered row by row
 *             block   vectors of one KV head of one call, up to SL_BLOCK_VECTORS and, times head_dim, up to
 *                     SL_BLOCK_FLOATS: they share the reading of its pages
 *             split   SL_SPLIT_PAGES pages, from a multiple of it on
 *
 * Design: a tier's kernel computes the softmax of a block over the pages of one split, not yet divided by its sum. The
 *         splits of a block are then merged in ascending order:
 *
 *             max = max(max_a, max_b)     c_x = exp(max_x - max)     sum = c_a sum_a + c_b sum_b     out likewise
 *
 *         The splits cover fixed slots and are merged in one order. So the bits are the same whether one task computes
 *         all of them or many share them: with many blocks a task is a block, with few (a decode step on many cores) it
 *         is one split of a block. All calls of a step are one loop of the team.
 *
 *         sl_kv_attend_fold() also adds up attention's statistics. The weights need lse, which is known only after the
 *         block's last page. So the kernel leaves its scores in memory that the caches hold, and the block's statistics
 *         are made of them at once: no score is computed twice.
 */
#pragma once

#include "engine/tensor/cpu/pages/kv_page.h"

#define SL_BLOCK_VECTORS 1024
#define SL_BLOCK_FLOATS  (256 * SL_MAX_HEAD_DIM)
#define SL_SPLIT_PAGES   (SL_ATTEND_SPLIT / SL_PAGE_SLOTS)

/*
 * Rotation of rows by their slot. With slot = 64 P + j:  cos(slot w) = cos(64 P w) cos(j w) - sin(64 P w) sin(j w) in
 * f64. So a page costs d/2 calls of libm and not 64 d/2; the result is rounded to f32 once.
 */
struct sl_slot_angles { // of all j < 64: computed once for all calls of a step, and read by all tasks
    int half;           // rotary_dim / 2
    const struct sl_rope *rope;
    double cosines[SL_MAX_HEAD_DIM / 2][SL_PAGE_SLOTS], sines[SL_MAX_HEAD_DIM / 2][SL_PAGE_SLOTS];
};
struct sl_page_angles { // of the most recent page: each task has one
    int64_t page;       // -1: none yet
    double cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
};
void sl_slot_angles_init(struct sl_slot_angles *angles, const struct sl_rope *rope);
void sl_page_angles_turn(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page);

struct sl_kv_block {
    const struct sl_attend *args;
    const struct sl_slot_angles *angles; // NULL: keys are rotated already
    int head;                            // KV head
    int group;                           // query heads a KV head
    int64_t begin;                       // the first vector
    int n;                               // the number of vectors
    // A vector sees slots [first, end); both ascend. A vector's own slot is end - 1.
    _Alignas(64) uint32_t first[SL_BLOCK_VECTORS], end[SL_BLOCK_VECTORS];
    // [pages][n][SL_PAGE_SLOTS], from the page of slot first[0] on: where a kernel leaves its scores, of those vectors
    // that see a slot of the page, and of those slots that any vector sees. NULL: they are not needed
    float *kept;
};

// Returns the kept scores of a page.
static inline float *sl_kv_kept(const struct sl_kv_block *b, uint32_t page) {
    return b->kept + (size_t)(page - b->first[0] / SL_PAGE_SLOTS) * (size_t)b->n * SL_PAGE_SLOTS;
}

// Returns the page to prefetch while `page` is worked on, because hardware prefetchers stop at the end of a memory
// page. The last page returns itself, which costs nothing.
static inline const char *sl_kv_next_page(const struct sl_kv *kv, uint32_t page, uint32_t page_end) {
    return kv->pages[page + 1 < page_end ? page + 1 : page];
}

// A block's running softmax over the slots that were merged so far.
struct sl_kv_partial {
    float *out; // [n][d] sum_j exp(s_j - max) V_j
    float *max; // [n] as in struct sl_softmax; minus infinity for no slots
    float *sum; // [n] sum_j exp(s_j - max)
};

// Computes the softmax of a block over the pages [page_begin, page_end), all in one split. It must not read slots that
// no vector sees: they may be unwritten.
typedef void (*sl_kv_block_fn)(const struct sl_kv_block *block, uint32_t page_begin, uint32_t page_end,
                               const struct sl_kv_partial *partial);

// The statistics of a page's slots that struct sl_fold asks for, as sums over rows of sums over the query heads.
enum { SL_KV_SUM, SL_KV_SQUARE, SL_KV_ABOVE, SL_KV_STATS };
typedef float sl_kv_page_stats[SL_KV_STATS][SL_PAGE_SLOTS];

struct sl_kv_kernel {
    sl_kv_block_fn attend;
    // vectors of a block, where there are many and none has too many floats; at most SL_BLOCK_VECTORS
    int block_vectors;
    // For sl_kv_attend_fold(), else NULL. Adds the statistics of a block of whole rows, whose scores are kept and whose
    // lse is known, to stats[page].
    void (*fold)(const struct sl_kv_block *block, const struct sl_fold *what, sl_kv_page_stats *stats);
};

// Implements ops->attend with a kernel.
void sl_kv_attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls,
                  const struct sl_kv_kernel *kernel);

// Implements ops->attend_before with a kernel: the merge starts with the result of the earlier calls.
void sl_kv_attend_before(struct sl_stream *stream, const struct sl_attend *args, const struct sl_softmax *before_inout,
                         const struct sl_kv_kernel *kernel);

// Implements ops->attend_fold with a kernel. Returns false, and does nothing, where the scores of a block are too many
// to keep, or where blocks are too few to divide the work.
bool sl_kv_attend_fold(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what,
                       const struct sl_kv_kernel *kernel);

// Adds the statistics of all rows to the score state of a page of a KV head, as means over the group.
void sl_kv_add_stats(const struct sl_attend *args, int head, uint32_t page, const struct sl_fold *what,
                     sl_kv_page_stats stats);

// Returns true where the page keeps the plane; -1 is not a plane. Packed pages may have dropped their state.
static inline bool sl_kv_has_plane(const struct sl_page_layout *layout, int plane) {
    return plane >= 0 && plane < layout->n_states;
}

// Sets [*v_begin, *v_end) to the block's vectors that see a slot of the page, and returns how many of its slots to
// read.
static inline int sl_kv_block_clip(const struct sl_kv_block *b, uint32_t page, int *v_begin, int *v_end) {
    uint32_t begin = page * SL_PAGE_SLOTS, end = begin + SL_PAGE_SLOTS;
    int from = 0, to = b->n;
    while (from < to && b->end[from] <= begin) {
        from++;
    }
    while (to > from && b->first[to - 1] >= end) {
        to--;
    }
    *v_begin = from;
    *v_end = to;
    return from == to ? 0 : b->end[to - 1] < end ? (int)(b->end[to - 1] - begin) : SL_PAGE_SLOTS;
}
