// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: quantizes pages with AVX2; the formulas and the bits are those of ref_kv_slots.c.
 *
 * Design: K has a group for each channel, so eight channels are eight lanes over the page's slots. V has a group for
 *         each token and run of channels, so its lanes are channels of one group. A page that holds a NaN is the
 *         reference's, which decides what a NaN does to the group. So is the range of a group of V that ends at a zero:
 *         lanes would find another one of +0 and -0.
 */
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/evict/fills.h"

// Scales and zeros of eight groups, as they are stored: rounded to f16.
struct groups {
    __m256 scale, zero;
};

// Returns round-half-even(clamp((x - z) / s, 0, top)); 0 where s = 0, and for NaN, which max() replaces by its second
// operand.
static inline __m256i encode(__m256 x, const struct groups *g, __m256 top) {
    __m256 t = _mm256_div_ps(_mm256_sub_ps(x, g->zero), g->scale);
    t = _mm256_min_ps(_mm256_max_ps(t, _mm256_setzero_ps()), top);
    t = _mm256_and_ps(t, _mm256_cmp_ps(g->scale, _mm256_setzero_ps(), _CMP_GT_OQ));
    return _mm256_cvtps_epi32(t);
}

// --- K ---------------------------------------------------------------------------------------------------------------

// Quantizes eight channels, from channel i on. Returns false where one of them holds a NaN. `bits` is a constant in
// every call, here and below.
static inline __attribute__((always_inline)) bool quantize_channels(const struct sl_page_layout *work, const char *k,
                                                                    const struct sl_page_layout *packed, size_t i,
                                                                    int bits, char *out) {
    enum { WORD_BITS = 32 };
    size_t d = (size_t)work->head_dim, row_bytes = sl_row_bytes(SL_PAGE_SLOTS, bits);
    __m256 x[SL_PAGE_SLOTS], min = sl_avx2_load8(k, i, work->format), max = min, strange = _mm256_setzero_ps();
    for (size_t j = 0; j < SL_PAGE_SLOTS; j++) {
        x[j] = sl_avx2_load8(k, j * d + i, work->format);
        min = _mm256_min_ps(min, x[j]); // of equals (+0, -0) the later one, as fminf() has it
        max = _mm256_max_ps(max, x[j]);
        strange = _mm256_or_ps(strange, _mm256_cmp_ps(x[j], x[j], _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(strange) != 0) {
        return false;
    }
    const __m256 top = _mm256_set1_ps((float)((1 << bits) - 1));
    __m128i scale = sl_avx2_f16_saturated(_mm256_div_ps(_mm256_sub_ps(max, min), top)),
            zero = sl_avx2_f16_saturated(min);
    __m128i *pairs = (__m128i *)(out + packed->k_scale + i * 2 * sizeof(uint16_t));
    _mm_storeu_si128(pairs, _mm_unpacklo_epi16(scale, zero));
    _mm_storeu_si128(pairs + 1, _mm_unpackhi_epi16(scale, zero));
    const struct groups g = {_mm256_cvtph_ps(scale), _mm256_cvtph_ps(zero)};
    char *rows = out + packed->k + i * row_bytes;
    __m256i codes = _mm256_setzero_si256();
    for (int j = 0, at = 0; j < SL_PAGE_SLOTS; j++) {
        __m256i code = encode(x[j], &g, top);
        codes = _mm256_or_si256(codes, _mm256_slli_epi32(code, at));
        at += bits;
        if (at < WORD_BITS) {
            continue;
        }
        _Alignas(32) uint32_t words[8];
        _mm256_store_si256((__m256i *)words, codes);
        for (size_t c = 0; c < 8; c++) {
            memcpy(rows + c * row_bytes, &words[c], sizeof *words);
        }
        rows += sizeof *words;
        at -= WORD_BITS;
        codes = _mm256_srli_epi32(code, bits - at); // its bits that belong to the next word
    }
    return true;
}

// --- V ---------------------------------------------------------------------------------------------------------------

static inline float least_of(__m256 x) {
    return -sl_avx2_max(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
}

// Writes eight codes into `bits` bytes.
static inline __attribute__((always_inline)) void put_codes(__m256i codes, int bits, char *out) {
    if (bits == 8) {
        __m128i x = _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
        _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(x, x));
        return;
    }
    const __m256i shifts = _mm256_setr_epi32(0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits);
    codes = _mm256_sllv_epi32(codes, shifts);
    __m128i x = _mm_or_si128(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    x = _mm_or_si128(x, _mm_srli_si128(x, 8));
    uint32_t word = (uint32_t)_mm_cvtsi128_si32(_mm_or_si128(x, _mm_srli_si128(x, 4)));
    memcpy(out, &word, (size_t)bits);
}

// Quantizes one group, n channels of a token. Returns false where it holds a NaN.
static inline __attribute__((always_inline)) bool
quantize_group(const char *v, size_t e, size_t n, enum sl_kv_format format, int bits, uint16_t *pair, char *codes_out) {
    _Alignas(32) float x[64];
    __m256 min = sl_avx2_load8(v, e, format), max = min, strange = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) {
        __m256 some = sl_avx2_load8(v, e + i, format);
        _mm256_store_ps(x + i, some);
        min = _mm256_min_ps(min, some);
        max = _mm256_max_ps(max, some);
        strange = _mm256_or_ps(strange, _mm256_cmp_ps(some, some, _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(strange) != 0) {
        return false;
    }
    float least = least_of(min), most = sl_avx2_max(max), top = (float)((1 << bits) - 1);
    if (least == 0.0f || most == 0.0f) {
        sl_ref_range(x, (int)n, &least, &most);
    }
    pair[0] = sl_f32_to_f16_saturated((most - least) / top);
    pair[1] = sl_f32_to_f16_saturated(least);
    const struct groups g = {_mm256_set1_ps(_cvtsh_ss(pair[0])), _mm256_set1_ps(_cvtsh_ss(pair[1]))};
    for (size_t i = 0; i < n; i += 8, codes_out += bits) {
        put_codes(encode(_mm256_load_ps(x + i), &g, _mm256_set1_ps(top)), bits, codes_out);
    }
    return true;
}

// --- a page ----------------------------------------------------------------------------------------------------------

// Quantize a half; return false if it holds a NaN.
static inline __attribute__((always_inline)) bool quantize_keys(const struct sl_page_layout *work, const char *page,
                                                                const struct sl_page_layout *packed, int bits,
                                                                char *out) {
    for (size_t i = 0; i < (size_t)work->head_dim; i += 8) {
        if (!quantize_channels(work, page + work->k, packed, i, bits, out)) {
            return false;
        }
    }
    return true;
}

static inline __attribute__((always_inline)) bool quantize_values(const struct sl_page_layout *work, const char *page,
                                                                  const struct sl_page_layout *packed, int bits,
                                                                  char *out) {
    size_t d = (size_t)work->head_dim, channels = (size_t)sl_v_group(work->head_dim);
    uint16_t *pair = (uint16_t *)(out + packed->v_scale);
    for (size_t e = 0; e < SL_PAGE_SLOTS * d; e += channels, pair += 2) {
        char *codes = out + packed->v + e * (size_t)bits / 8;
        if (!quantize_group(page + work->v, e, channels, work->format, bits, pair, codes)) {
            return false;
        }
    }
    return true;
}

// Quantizes a half by `quantize`, inlined for the number of bits, or copies its floats. Returns false if the half is the
// reference's: it holds a NaN, or has another format.
#define QUANTIZE_CASE(name, word, wire, bits, index, quantize)                                                         \
    case SL_KV_##name:                                                                                                 \
        if (sl_avx2_integer_bits(SL_KV_##name) > 0) {                                                                  \
            return quantize(work, page, packed, bits, out);                                                            \
        }                                                                                                              \
        return false;
#define WITH_BITS(half_format, quantize, part)                                                                         \
    switch (half_format) {                                                                                             \
        SL_KV_CODE_LIST(QUANTIZE_CASE, quantize)                                                                       \
    default:                                                                                                           \
        return (half_format) == work->format && copy_half(work, page + work->part, out + packed->part);                \
    }

static bool copy_half(const struct sl_page_layout *work, const char *from, char *to) {
    memcpy(to, from, SL_PAGE_SLOTS * sl_row_bytes(work->head_dim, sl_kv_format_bits(work->format)));
    return true;
}

static bool pack_keys(const struct sl_page_layout *work, const char *page, const struct sl_page_layout *packed,
                      char *out) {
    WITH_BITS(packed->k_format, quantize_keys, k)
}

static bool pack_values(const struct sl_page_layout *work, const char *page, const struct sl_page_layout *packed,
                        char *out) {
    WITH_BITS(packed->v_format, quantize_values, v)
}

static void quantize_page(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                          void *packed_page) {
    memset(packed_page, 0, packed->bytes); // the padding between parts is sent too
    if (pack_keys(work, page, packed, packed_page) && pack_values(work, page, packed, packed_page)) {
        sl_ref_copy_slots_data(work, page, packed, packed_page);
    } else {
        sl_ref_quantize_page(work, page, packed, packed_page);
    }
}

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    sl_quantize_pages(stream, heads, n_pages, to, quantize_page);
}

void sl_avx2_quantize_fill(struct sl_ops *ops) {
    ops->quantize = quantize;
    ops->host.quantize = quantize_page;
}
