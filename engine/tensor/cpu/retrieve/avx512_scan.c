// SPDX-License-Identifier: Apache-2.0
// Purpose: the scan with AVX-512: that of avx2_scan.c in registers of twice the width, with the same bits.
#include <immintrin.h>

#include "engine/tensor/cpu/pages/avx512_codec.h"
#include "engine/tensor/cpu/retrieve/fills.h"
#include "engine/tensor/cpu/retrieve/scan_pages.h"
#include "engine/tensor/cpu/simd/avx512_math.h"

#define WIDTH 16 // slots in a register

// Loads slots 16 t .. 16 t + 16 of those at `at`.
static inline __attribute__((always_inline)) __m512 load_codes(const char *at, size_t t, enum sl_kv_format format) {
    if (sl_kv_format_index(format) == SL_KV_INDEX_BYTES) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at + t)));
    }
    return sl_avx512_load16(at, WIDTH * t, format);
}

// Computes the sums of the 64 slots from slot j on, a multiple of 64.
static inline __attribute__((always_inline)) void scan_page(const struct sl_scan_channels *s, size_t j,
                                                            enum sl_kv_format format, float *scores) {
    bool signs = sl_kv_format_index(format) == SL_KV_INDEX_SIGNS;
    __m512 sum[SL_PAGE_SLOTS / WIDTH];
    SL_UNROLL
    for (size_t t = 0; t < SL_PAGE_SLOTS / WIDTH; t++) {
        sum[t] = _mm512_setzero_ps();
    }
    for (int i = 0; i < s->n; i++) {
        const char *at = s->codes[i] + sl_scan_offset(format, j);
        __m512 weight = _mm512_set1_ps(s->weights[i]);
        uint64_t bits = 0; // signs: +w where they are set, else -w
        if (signs) {
            memcpy(&bits, at, sizeof bits);
        }
        __m512 negative = _mm512_sub_ps(_mm512_set1_ps(-0.0f), weight);
        SL_UNROLL
        for (size_t t = 0; t < SL_PAGE_SLOTS / WIDTH; t++) {
            if (signs) {
                __m512 w = _mm512_mask_blend_ps((__mmask16)(bits >> WIDTH * t), negative, weight);
                sum[t] = _mm512_add_ps(sum[t], w);
            } else {
                sum[t] = _mm512_fmadd_ps(weight, load_codes(at, t, format), sum[t]);
            }
        }
    }
    SL_UNROLL
    for (size_t t = 0; t < SL_PAGE_SLOTS / WIDTH; t++) {
        _mm512_storeu_ps(scores + WIDTH * t, sum[t]);
    }
}

SL_SCAN_OF_PAGES

void sl_avx512_scan_fill(struct sl_ops *ops) {
    ops->host.scan = scan;
    ops->scan = scan_heads;
}
