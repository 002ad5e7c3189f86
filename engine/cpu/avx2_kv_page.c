// SPDX-License-Identifier: Apache-2.0
// Purpose: rows into and out of pages with AVX2, and the rotation of rows by their slot.
#include "engine/cpu/avx2_kv.h"

#include <string.h>

static inline __m256 from_f16(const uint16_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

static inline __m256 from_bf16(const uint16_t *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// Eight codes of `bits` bits from `bits` bytes, least significant first.
static inline __m256 from_codes(const uint8_t *at, int bits) {
    if (bits == 8) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
    }
    uint32_t word = 0;
    memcpy(&word, at, (size_t)bits);
    __m256i lane = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bits));
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32((int)word), lane);
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32((1 << bits) - 1)));
}

static const float *load_floats(enum sl_kv_format format, const char *part, size_t count, float *tile) {
    const uint16_t *halves = (const uint16_t *)part;
    if (format == SL_KV_F32) {
        return (const float *)part;
    }
    for (size_t e = 0; e < count; e += 8) {
        _mm256_store_ps(tile + e, format == SL_KV_F16 ? from_f16(halves + e) : from_bf16(halves + e));
    }
    return tile;
}

// x^ = code * scale + zero, not fused: the same bits as the reference's.
const float *sl_avx2_load_k(const struct sl_page_layout *layout, const void *page, int n_rows, float *tile) {
    const char *at = page;
    size_t d = (size_t)layout->head_dim;
    if (!sl_kv_format_is_quantized(layout->format)) {
        return load_floats(layout->format, at + layout->k, (size_t)n_rows * d, tile);
    }
    int bits = sl_kv_format_bits(layout->format);
    for (size_t i = 0; i < d; i++) { // a row of codes and a pair per channel
        const uint16_t *pair = (const uint16_t *)(at + layout->k_scale) + 2 * i;
        __m256 scale = _mm256_set1_ps(_cvtsh_ss(pair[0])), zero = _mm256_set1_ps(_cvtsh_ss(pair[1]));
        const uint8_t *codes = (const uint8_t *)at + layout->k + i * sl_row_bytes(SL_PAGE_SLOTS, bits);
        for (size_t j = 0; j < (size_t)n_rows; j += 8) {
            _Alignas(32) float column[8];
            _mm256_store_ps(column,
                            _mm256_add_ps(_mm256_mul_ps(from_codes(codes + j / 8 * (size_t)bits, bits), scale), zero));
            for (size_t e = 0; e < 8 && j + e < (size_t)n_rows; e++) {
                tile[(j + e) * d + i] = column[e];
            }
        }
    }
    return tile;
}

const float *sl_avx2_load_v(const struct sl_page_layout *layout, const void *page, int n_rows, float *tile) {
    const char *at = page;
    size_t d = (size_t)layout->head_dim, channels = (size_t)sl_v_group(layout->head_dim);
    if (!sl_kv_format_is_quantized(layout->format)) {
        return load_floats(layout->format, at + layout->v, (size_t)n_rows * d, tile);
    }
    int bits = sl_kv_format_bits(layout->format);
    const uint8_t *codes = (const uint8_t *)at + layout->v;
    const uint16_t *pair = (const uint16_t *)(at + layout->v_scale);
    for (size_t first = 0; first < (size_t)n_rows * d; first += channels, pair += 2) {
        __m256 scale = _mm256_set1_ps(_cvtsh_ss(pair[0])), zero = _mm256_set1_ps(_cvtsh_ss(pair[1]));
        for (size_t e = first; e < first + channels; e += 8) {
            __m256 x = from_codes(codes + e / 8 * (size_t)bits, bits);
            _mm256_store_ps(tile + e, _mm256_add_ps(_mm256_mul_ps(x, scale), zero));
        }
    }
    return tile;
}

static void write_row_f16(uint16_t *out, const float *row, int d) {
    const __m256 most = _mm256_set1_ps(SL_F16_MAX), least = _mm256_set1_ps(-SL_F16_MAX);
    for (int i = 0; i < d; i += 8) { // NaN as second operand passes through min and max
        __m256 x = _mm256_max_ps(least, _mm256_min_ps(most, _mm256_loadu_ps(row + i)));
        _mm_store_si128((__m128i *)(out + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
}

static void write_row_bf16(uint16_t *out, const float *row, int d) {
    for (int i = 0; i < d; i++) {
        out[i] = sl_f32_to_bf16(row[i]);
    }
}

static void write_row(const struct sl_page_layout *layout, char *part, size_t slot, const float *row) {
    size_t d = (size_t)layout->head_dim;
    if (layout->format == SL_KV_F16) {
        write_row_f16((uint16_t *)part + slot * d, row, layout->head_dim);
    } else if (layout->format == SL_KV_BF16) {
        write_row_bf16((uint16_t *)part + slot * d, row, layout->head_dim);
    } else {
        memcpy((float *)part + slot * d, row, d * sizeof *row);
    }
}

void sl_avx2_append(const struct sl_kv *kv, const float *k, const float *v, int64_t stride, int m,
                    const int64_t *positions) {
    const struct sl_page_layout *layout = kv->work;
    for (int r = 0; r < m; r++) {
        char *page = kv->pages[(kv->n_slots + (uint32_t)r) / SL_PAGE_SLOTS];
        uint32_t slot = (kv->n_slots + (uint32_t)r) % SL_PAGE_SLOTS;
        write_row(layout, page + layout->k, slot, k + r * stride);
        write_row(layout, page + layout->v, slot, v + r * stride);
        if (layout->has_positions) {
            sl_page_positions(layout, page)[slot] = (int32_t)positions[r];
        }
        for (int plane = 0; plane < layout->n_states; plane++) {
            sl_page_state(layout, page, plane)[slot] = 0.0f;
        }
    }
}

void sl_avx2_slot_angles_init(struct sl_avx2_slot_angles *angles, const struct sl_rope *rope) {
    angles->half = rope->head_dim / 2;
    angles->rope = rope;
    for (int i = 0; i < angles->half; i++) { // by steps of one slot; 63 steps lose less than 2^-45
        double step_cos = cos(rope->inv_freq[i]), step_sin = sin(rope->inv_freq[i]);
        angles->cosines[0][i] = 1.0;
        angles->sines[0][i] = 0.0;
        for (int j = 1; j < SL_PAGE_SLOTS; j++) {
            double c = angles->cosines[j - 1][i], s = angles->sines[j - 1][i];
            angles->cosines[j][i] = c * step_cos - s * step_sin;
            angles->sines[j][i] = s * step_cos + c * step_sin;
        }
    }
}

void sl_avx2_rotate_slot(const struct sl_avx2_slot_angles *angles, struct sl_avx2_page_angles *of_page, int64_t slot,
                         const float *row, float *row_out) {
    int half = angles->half;
    int64_t page = slot / SL_PAGE_SLOTS;
    if (of_page->page != page) {
        of_page->page = page;
        for (int i = 0; i < half; i++) {
            double angle = (double)(page * SL_PAGE_SLOTS) * angles->rope->inv_freq[i];
            of_page->cosines[i] = cos(angle) * angles->rope->scale;
            of_page->sines[i] = sin(angle) * angles->rope->scale;
        }
    }
    const double *cosines = angles->cosines[slot % SL_PAGE_SLOTS], *sines = angles->sines[slot % SL_PAGE_SLOTS];
    for (int i = 0; i < half; i += 4) { // half is a multiple of 4
        __m256d pc = _mm256_loadu_pd(of_page->cosines + i), ps = _mm256_loadu_pd(of_page->sines + i);
        __m256d jc = _mm256_loadu_pd(cosines + i), js = _mm256_loadu_pd(sines + i);
        __m128 c = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_mul_pd(pc, jc), _mm256_mul_pd(ps, js)));
        __m128 s = _mm256_cvtpd_ps(_mm256_add_pd(_mm256_mul_pd(ps, jc), _mm256_mul_pd(pc, js)));
        __m128 a = _mm_loadu_ps(row + i), b = _mm_loadu_ps(row + i + half);
        _mm_storeu_ps(row_out + i, _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s)));
        _mm_storeu_ps(row_out + i + half, _mm_add_ps(_mm_mul_ps(b, c), _mm_mul_ps(a, s)));
    }
}
