// SPDX-License-Identifier: Apache-2.0
// Purpose: what the AVX2 files about KV pages share. Include only from files compiled for AVX2, FMA and F16C.
#ifndef SL_ENGINE_CPU_AVX2_KV_H
#define SL_ENGINE_CPU_AVX2_KV_H

#include "engine/cpu/avx2_math.h"
#include "engine/cpu/kv_page.h"
#include "engine/cpu/tier.h"

// A page's K or V rows as f32 [n_rows][d]: where they lie, when they are f32 already, else converted into tile.
const float *sl_avx2_load_k(const struct sl_page_layout *layout, const void *page, int n_rows, float *tile);
const float *sl_avx2_load_v(const struct sl_page_layout *layout, const void *page, int n_rows, float *tile);

/*
 * Rotation of row after row by its slot. With slot = 64 P + j:  cos(slot w) = cos(64 P w) cos(j w) - sin(64 P w) sin(j
 * w) in f64, so that a page costs d/2 calls of libm and not 64 d/2; the result is rounded to f32 once.
 */
struct sl_avx2_slot_angles { // of all j < 64: made once a call, read by all tasks
    int half;                // d / 2
    const struct sl_rope *rope;
    double cosines[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM / 2], sines[SL_PAGE_SLOTS][SL_MAX_HEAD_DIM / 2];
};
struct sl_avx2_page_angles { // of the page that was asked for last: one a task
    int64_t page;            // -1: none yet
    double cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
};
void sl_avx2_slot_angles_init(struct sl_avx2_slot_angles *angles, const struct sl_rope *rope);
void sl_avx2_rotate_slot(const struct sl_avx2_slot_angles *angles, struct sl_avx2_page_angles *of_page, int64_t slot,
                         const float *row, float *row_out); // row_out may be row

void sl_avx2_append(const struct sl_kv *kv, const float *k, const float *v, int64_t stride, int m,
                    const int64_t *positions);

// Largest of the 8 lanes.
static inline float sl_avx2_max(__m256 x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

#endif
