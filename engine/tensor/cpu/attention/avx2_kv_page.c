// SPDX-License-Identifier: Apache-2.0
// Purpose: writes rows into pages with AVX2, and rotates queries and K^T tiles by their slots.
#include "engine/tensor/cpu/attention/avx2_kv.h"

#include "engine/tensor/cpu/attention/append.h"
#include "engine/tensor/cpu/pages/avx2_codec.h"

static inline __attribute__((always_inline)) void write_floats(char *part, size_t at, const float *row, size_t d,
                                                               enum sl_kv_format format) {
    for (size_t i = 0; i < d; i += 8) {
        sl_avx2_store8(part, at + i, format, _mm256_loadu_ps(row + i));
    }
}

static void write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row) {
    size_t d = (size_t)layout->head_dim;
    SL_KV_WITH_FLOATS(layout->format, write_floats(part, slot * d, row, d, FORMAT));
}

void sl_avx2_append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_append_rows(stream, calls, n_calls, write_row);
}

// --- rotation --------------------------------------------------------------------------------------------------------

// All query heads of a row rotate by the same angles, which are computed once for them.
void sl_avx2_rotate_queries(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t slot,
                            const float *in, int n_rows, float *out) {
    float cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
    sl_page_angles_turn(angles, of_page, slot / SL_PAGE_SLOTS);
    int64_t j = slot % SL_PAGE_SLOTS;
    int half = angles->half;
    for (int i = 0; i < half; i++) {
        double pc = of_page->cosines[i], ps = of_page->sines[i];
        double jc = angles->cosines[i][j], js = angles->sines[i][j];
        cosines[i] = (float)(pc * jc - ps * js);
        sines[i] = (float)(ps * jc + pc * js);
    }
    int d = angles->rope->head_dim;
    for (int row = 0; row < n_rows; row++, in += d, out += d) {
        memmove(out + 2 * half, in + 2 * half, (size_t)(d - 2 * half) * sizeof *out); // channels that do not rotate
        for (int i = 0; i < half; i += 4) {                                           // rotary_dim is a multiple of 8
            __m128 c = _mm_loadu_ps(cosines + i), s = _mm_loadu_ps(sines + i);
            __m128 a = _mm_loadu_ps(in + i), b = _mm_loadu_ps(in + i + half);
            _mm_storeu_ps(out + i, _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s)));
            _mm_storeu_ps(out + i + half, _mm_add_ps(_mm_mul_ps(b, c), _mm_mul_ps(a, s)));
        }
    }
}

// Channels i and i + rotary_dim/2 of a strip are rows of its tile: four tokens rotate at a time.
void sl_avx2_rotate_keys(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page,
                         float *tile) {
    sl_page_angles_turn(angles, of_page, page);
    size_t half = (size_t)angles->half, d = (size_t)angles->rope->head_dim;
    for (size_t i = 0; i < half; i++) {
        __m256d pc = _mm256_set1_pd(of_page->cosines[i]), ps = _mm256_set1_pd(of_page->sines[i]);
        for (size_t j = 0; j < SL_PAGE_SLOTS; j += 4) {
            __m256d jc = _mm256_loadu_pd(angles->cosines[i] + j), js = _mm256_loadu_pd(angles->sines[i] + j);
            __m128 c = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_mul_pd(pc, jc), _mm256_mul_pd(ps, js)));
            __m128 s = _mm256_cvtpd_ps(_mm256_add_pd(_mm256_mul_pd(ps, jc), _mm256_mul_pd(pc, js)));
            float *row = tile + (j / SL_STRIP * d + i) * SL_STRIP + j % SL_STRIP, *pair = row + half * SL_STRIP;
            __m128 a = _mm_load_ps(row), b = _mm_load_ps(pair);
            _mm_store_ps(row, _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s)));
            _mm_store_ps(pair, _mm_add_ps(_mm_mul_ps(b, c), _mm_mul_ps(a, s)));
        }
    }
}
