// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that the AVX-512 files about KV pages share. Include only from files compiled for AVX-512 F,
 *         BW, VL and DQ.
 *
 * Design: tiles are those of avx2_kv.h, where a strip is a register of this width. The code of tier avx2 makes tiles of
 *         the rarer formats, and rotates queries.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/simd/avx512_math.h"

// Do what sl_avx2_fill_keys() and sl_avx2_fill_values() do. They prefetch the same part of page `next` meanwhile: see
// sl_kv_next_page(). `next` may be the page itself.
void sl_avx512_fill_keys(const struct sl_page_layout *layout, const void *page, const char *next, float *tile);
void sl_avx512_fill_values(const struct sl_page_layout *layout, const void *page, const char *next, int n, float *tile);

// Does what sl_avx2_rotate_keys() does, with its bits.
void sl_avx512_rotate_keys(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page,
                           float *tile);

// Prefetches `lines` cache lines from `at` on into the second-level cache.
static inline __attribute__((always_inline)) void sl_avx512_fetch(const char *at, int lines) {
    SL_UNROLL
    for (int line = 0; line < lines; line++) {
        _mm_prefetch(at + 64 * line, _MM_HINT_T1);
    }
}

// Half a page: rows of codes, each in groups with a scale and a zero.
struct sl_coded_rows {
    const uint8_t *codes;
    const char *pairs; // f16
    const char *next;  // what to prefetch meanwhile, in place of `codes`
    size_t n, columns; // rows; columns of each
    size_t group, strip_rows;
};

static inline struct sl_coded_rows sl_coded_keys(const struct sl_page_layout *layout, const char *page,
                                                 const char *next) {
    return (struct sl_coded_rows){.codes = (const uint8_t *)page + layout->k,
                                  .pairs = page + layout->k_scale,
                                  .next = next + layout->k,
                                  .n = (size_t)layout->head_dim,
                                  .columns = SL_PAGE_SLOTS,
                                  .group = SL_PAGE_SLOTS,
                                  .strip_rows = (size_t)layout->head_dim};
}

static inline struct sl_coded_rows sl_coded_values(const struct sl_page_layout *layout, const char *page,
                                                   const char *next, size_t n) {
    return (struct sl_coded_rows){.codes = (const uint8_t *)page + layout->v,
                                  .pairs = page + layout->v_scale,
                                  .next = next + layout->v,
                                  .n = n,
                                  .columns = (size_t)layout->head_dim,
                                  .group = (size_t)sl_v_group(layout->head_dim),
                                  .strip_rows = SL_PAGE_SLOTS};
}

// Floats of all scales and zeros of half a page
#define SL_WIDE_PAIRS (2 * SL_PAGE_SLOTS * SL_MAX_HEAD_DIM / 32)

// Writes the scales and zeros as f32, row by row.
static inline __attribute__((always_inline)) void sl_avx512_widen_pairs(const struct sl_coded_rows *r, float *wide) {
    for (size_t i = 0; i < 2 * r->n * (r->columns / r->group); i += 16) { // pages have groups by the eight
        _mm512_store_ps(wide + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(r->pairs + 2 * i))));
    }
}

// Returns the sum of each of four registers, or the largest: (0..7) and (8..15), then in the order of sl_avx2_sum().
static inline __attribute__((always_inline)) __m128 sl_avx512_reduce_four(const __m512 x[4], bool adds) {
#define COMBINE(a, b) (adds ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b))
    __m512 first = COMBINE(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    __m512 second = COMBINE(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    __m512 all = COMBINE(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
    all = COMBINE(all, _mm512_permute_ps(all, _MM_SHUFFLE(1, 0, 3, 2)));
    all = COMBINE(all, _mm512_movehdup_ps(all));
#undef COMBINE
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all)); // the first of every four
}

// The tier's attention kernel (see kv_blocks.h), for calls that a faster one does not cover. A block has at most
// SL_ATTEND_BLOCK vectors.
void sl_avx512_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial);

extern const struct sl_avx2_scorer *const sl_avx512_scorer; // for calls that a faster tier does not cover

// Adds rows to statistics with the bits of tier avx2's function, in half its instructions.
void sl_avx512_add_rows(const struct sl_stats_rows *rows, bool square, bool above, sl_kv_page_stats stats);
