// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the AVX2 files about KV pages share. Include only from files compiled for AVX2, FMA and F16C.
 *
 * Vocabulary: strip  SL_STRIP columns of a tile, row after row without gaps: what the kernel of avx2_kv.c reads
 *             tile   a page's K or V in f32 as strips: K^T is SL_PAGE_SLOTS columns (tokens) of d rows (channels),
 *                    V is d columns (channels), rounded up to whole strips, of SL_PAGE_SLOTS rows (tokens)
 */
#ifndef SL_ENGINE_CPU_AVX2_KV_H
#define SL_ENGINE_CPU_AVX2_KV_H

#include "engine/cpu/avx2_math.h"
#include "engine/cpu/kv_page.h"
#include "engine/cpu/tier.h"

#define SL_STRIP       16 // columns: two registers
#define SL_PAGE_STRIPS (SL_PAGE_SLOTS / SL_STRIP)

static inline int sl_avx2_n_strips(int head_dim) {
    return (head_dim + SL_STRIP - 1) / SL_STRIP;
}

// tile[SL_PAGE_STRIPS][d][SL_STRIP] = K^T of all the page's slots: those that were never written hold what they hold.
void sl_avx2_fill_keys(const struct sl_page_layout *layout, const void *page, float *tile);

// tile[sl_avx2_n_strips(d)][SL_PAGE_SLOTS][SL_STRIP] = V of the page's first n slots; columns beyond d are 0.
void sl_avx2_fill_values(const struct sl_page_layout *layout, const void *page, int n, float *tile);

/*
 * Rotation of rows by their slot. With slot = 64 P + j:  cos(slot w) = cos(64 P w) cos(j w) - sin(64 P w) sin(j w) in
 * f64, so that a page costs d/2 calls of libm and not 64 d/2; the result is rounded to f32 once.
 */
struct sl_avx2_slot_angles { // of all j < 64: made once a call, read by all tasks
    int half;                // d / 2
    const struct sl_rope *rope;
    double cosines[SL_MAX_HEAD_DIM / 2][SL_PAGE_SLOTS], sines[SL_MAX_HEAD_DIM / 2][SL_PAGE_SLOTS];
};
struct sl_avx2_page_angles { // of the page that was asked for last: one a task
    int64_t page;            // -1: none yet
    double cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
};
void sl_avx2_slot_angles_init(struct sl_avx2_slot_angles *angles, const struct sl_rope *rope);
void sl_avx2_rotate_query(const struct sl_avx2_slot_angles *angles, struct sl_avx2_page_angles *of_page, int64_t slot,
                          const float *row, float *row_out);
void sl_avx2_rotate_keys(const struct sl_avx2_slot_angles *angles, struct sl_avx2_page_angles *of_page, int64_t page,
                         float *tile);

void sl_avx2_append(const struct sl_kv *kv, const float *k, const float *v, int64_t stride, int m,
                    const int64_t *positions);

// Largest of the 8 lanes.
static inline float sl_avx2_max(__m256 x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

#endif
