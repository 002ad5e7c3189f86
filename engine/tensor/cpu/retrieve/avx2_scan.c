// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: key indexes and the scan with AVX2; the formulas are those of ref_scan.c.
 *
 * Design: scan takes the 64 slots of a page at a time and keeps their sums in registers over all channels. It reads
 *         every byte once, in as many streams as there are channels. A sum is one chain of fused multiply-adds; for
 *         signs these reduce to additions. Part of a page is computed as a whole one.
 *
 *         index_keys reads the pages twice: for the values that depend on all slots, then for the codes. Keys of 16
 *         bits that keep their format are transposed as bits, all others by way of the K^T tile of a page (avx2_kv.h).
 *         Stores of whole lines bypass the caches: the lines would be evicted before they are read.
 */
#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/retrieve/fills.h"
#include "engine/tensor/cpu/retrieve/scan_pages.h"
#include "engine/tensor/cpu/simd/avx2_transpose.h"

// --- index_keys ------------------------------------------------------------------------------------------------------

// scale[c] = mean |K_j[c]|, added up in f64 in the order of slots, as in ref_scan.c
static void find_means(const struct sl_kv *kv, uint32_t n_slots, float *scale) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    int d = kv->work->head_dim;
    _Alignas(32) double sum[SL_MAX_HEAD_DIM];
    _Alignas(32) float row[SL_MAX_HEAD_DIM];
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (uint32_t j = 0; j < n_slots; j++) {
        sl_avx2_read_k_row(kv, j, row);
        for (int c = 0; c < d; c += 8) {
            __m256 x = _mm256_load_ps(row + c);
            x = _mm256_and_ps(_mm256_and_ps(x, magnitude), _mm256_cmp_ps(x, x, _CMP_ORD_Q)); // NaN counts as 0
            __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                    high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
            _mm256_store_pd(sum + c, _mm256_add_pd(_mm256_load_pd(sum + c), low));
            _mm256_store_pd(sum + c + 4, _mm256_add_pd(_mm256_load_pd(sum + c + 4), high));
        }
    }
    for (int c = 0; c < d; c++) {
        scale[c] = n_slots > 0 ? (float)(sum[c] / n_slots) : 0.0f;
    }
}

// Transposes eight channels of the 16 slots of a strip, from keys of 16 bits.
static inline __attribute__((always_inline)) void transpose_strip(const uint16_t *k, size_t d, __m256i *channels) {
    SL_UNROLL
    for (size_t t = 0; t < 8; t++) {
        __m128i low = _mm_load_si128((const __m128i *)(k + t * d));
        __m128i high = _mm_load_si128((const __m128i *)(k + (t + 8) * d));
        channels[t] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    sl_avx2_transpose_16x8(channels);
}

// Transposes keys of 16 bits [SL_PAGE_SLOTS][d] to the channels of an index, each from `to` on.
static void transpose_page(const uint16_t *k, size_t d, char *to, size_t channel_bytes) {
    for (size_t i = 0; i < d; i += 8, to += 8 * channel_bytes) {
        for (size_t line = 0; line < SL_PAGE_STRIPS / 2; line++) {
            const uint16_t *from = k + line * 2 * SL_STRIP * d + i;
            __m256i low[8], high[8];
            transpose_strip(from, d, low);
            transpose_strip(from + SL_STRIP * d, d, high);
            SL_UNROLL
            for (size_t c = 0; c < 8; c++) {
                __m256i *out = (__m256i *)(to + c * channel_bytes) + 2 * line;
                _mm256_stream_si256(out, low[c]);
                _mm256_stream_si256(out + 1, high[c]);
            }
        }
    }
}

// Returns round-half-even(x / scale) of 32 slots, within +-127, 0 where scale is 0 or x is NaN.
static __m256i encode_bytes(const float *x, size_t strip, __m256 scale) {
    const __m256 most = _mm256_set1_ps(127.0f), least = _mm256_set1_ps(-127.0f);
    const __m256 any = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_GT_OQ);
    __m256i code[4];
    SL_UNROLL
    for (size_t t = 0; t < 4; t++) {
        __m256 y = _mm256_div_ps(_mm256_load_ps(x + t / 2 * strip + t % 2 * 8), scale);
        y = _mm256_and_ps(y, _mm256_and_ps(any, _mm256_cmp_ps(y, y, _CMP_ORD_Q)));
        code[t] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(y, most), least));
    }
    __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
    // restores the order of the groups of four
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Encodes the 64 slots of a channel, four strips `strip` floats apart.
static inline __attribute__((always_inline)) void encode_channel(const float *x, size_t strip, enum sl_kv_format format,
                                                                 float scale, char *to) {
    enum sl_kv_index kind = sl_kv_format_index(format);
    uint64_t signs = 0;
    for (size_t t = 0; t < SL_PAGE_SLOTS / 8; t++) {
        const float *eight = x + t / 2 * strip + t % 2 * 8;
        if (kind == SL_KV_INDEX_FLOATS && sl_kv_format_bits(format) == 32) {
            _mm256_stream_ps((float *)to + 8 * t, _mm256_load_ps(eight));
        } else if (kind == SL_KV_INDEX_FLOATS) {
            sl_avx2_store8(to, 8 * t, format, _mm256_load_ps(eight));
        } else if (kind == SL_KV_INDEX_BYTES && t % 4 == 0) {
            _mm256_stream_si256((__m256i *)to + t / 4, encode_bytes(eight, strip, _mm256_set1_ps(scale)));
        } else if (kind == SL_KV_INDEX_SIGNS) {
            __m256 at_least_0 = _mm256_cmp_ps(_mm256_load_ps(eight), _mm256_setzero_ps(), _CMP_GE_OQ);
            signs |= (uint64_t)(unsigned)_mm256_movemask_ps(at_least_0) << 8 * t;
        }
    }
    if (kind == SL_KV_INDEX_SIGNS) {
        memcpy(to, &signs, sizeof signs);
    }
}

static inline __attribute__((always_inline)) void encode_tile(const float *tile, size_t d, enum sl_kv_format format,
                                                              const float *scale, char *to, size_t channel_bytes) {
    bool scaled = sl_kv_format_is_quantized(format);
    for (size_t c = 0; c < d; c++, to += channel_bytes) {
        encode_channel(tile + c * SL_STRIP, d * SL_STRIP, format, scaled ? scale[c] : 0.0f, to);
    }
}

static void copy_page(const struct sl_page_layout *page, const char *at, const struct sl_key_index_layout *layout,
                      const float *scale, char *to) {
    size_t d = (size_t)page->head_dim, stride = layout->channel_bytes;
    if (page->k_format == layout->format && sl_kv_format_bits(page->k_format) == 16) {
        transpose_page((const uint16_t *)(at + page->k), d, to, stride);
        return;
    }
    _Alignas(64) float tile[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    sl_avx2_fill_keys(page, at, tile);
    SL_KV_WITH_FORMAT(layout->format, encode_tile(tile, d, FORMAT, scale, to, stride));
}

// Sets most = max(most, |x|) over the first n rows of a page. A NaN as first operand is ignored, as by fmaxf.
static inline __attribute__((always_inline)) void absmax_rows(const char *k, size_t d, size_t n,
                                                              enum sl_kv_format format, float *absmax) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    for (size_t i = 0; i < d; i += 8) {
        __m256 most = _mm256_loadu_ps(absmax + i);
        for (size_t j = 0; j < n; j++) {
            most = _mm256_max_ps(_mm256_and_ps(sl_avx2_load8(k, j * d + i, format), magnitude), most);
        }
        _mm256_storeu_ps(absmax + i, most);
    }
}

// Does the same for a tile, whose rows are channels: eight at a time in registers, the rest one by one.
static void absmax_tile(const float *tile, size_t d, size_t n, float *absmax) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    for (size_t i = 0; i < d; i++) {
        __m256 most = _mm256_set1_ps(absmax[i]);
        for (size_t j = 0; j < n; j += j + 8 <= n ? 8 : 1) {
            const float *at = tile + (j / SL_STRIP * d + i) * SL_STRIP + j % SL_STRIP;
            __m256 x = j + 8 <= n ? _mm256_load_ps(at) : _mm256_set1_ps(*at);
            most = _mm256_max_ps(_mm256_and_ps(x, magnitude), most);
        }
        absmax[i] = sl_avx2_max(most);
    }
}

// Sets absmax[c] = max over the first n_slots slots of |K_j[c]|.
static void find_absmax(const struct sl_kv *kv, uint32_t n_slots, float *absmax) {
    size_t d = (size_t)kv->work->head_dim;
    _Alignas(64) float tile[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    memset(absmax, 0, d * sizeof *absmax);
    for (uint32_t page = 0, n; page * SL_PAGE_SLOTS < n_slots; page++) {
        n = n_slots - page * SL_PAGE_SLOTS < SL_PAGE_SLOTS ? n_slots - page * SL_PAGE_SLOTS : SL_PAGE_SLOTS;
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
        const char *k = (const char *)kv->pages[page] + layout->k;
        if (sl_kv_format_is_quantized(layout->k_format)) {
            sl_avx2_fill_keys(layout, kv->pages[page], tile);
            absmax_tile(tile, d, n, absmax);
        } else {
            SL_KV_WITH_FLOATS(layout->k_format, absmax_rows(k, d, n, FORMAT, absmax));
        }
    }
}

// Writes zeros from slot n_slots on.
static void clear_rest(const struct sl_key_index_layout *layout, uint32_t n_slots, char *codes) {
    size_t bits = (size_t)n_slots * (size_t)sl_kv_format_bits(layout->format), whole = bits / 8;
    for (int c = 0; c < layout->head_dim; c++, codes += layout->channel_bytes) {
        if (bits % 8 != 0) {
            codes[whole] = (char)(codes[whole] & ((1 << bits % 8) - 1));
        }
        size_t from = (bits + 7) / 8;
        memset(codes + from, 0, layout->channel_bytes - from);
    }
}

static void index_keys(const struct sl_kv *kv, uint32_t n_slots, const struct sl_key_index_layout *layout,
                       void *index_out) {
    char *index = index_out;
    float *absmax = (float *)(index + layout->absmax), *scale = (float *)(index + layout->scale);
    assert(n_slots <= kv->n_slots && n_slots <= layout->capacity);
    memset(index, 0, layout->codes);
    find_absmax(kv, n_slots, absmax);
    enum sl_kv_index kind = sl_kv_format_index(layout->format);
    if (kind == SL_KV_INDEX_SIGNS) {
        find_means(kv, n_slots, scale);
    }
    for (int c = 0; kind == SL_KV_INDEX_BYTES && c < layout->head_dim; c++) {
        scale[c] = absmax[c] / 127.0f;
    }
    char *to = index + layout->codes;
    size_t page_bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(layout->format));
    for (uint32_t page = 0; page < sl_pages_for(n_slots); page++, to += page_bytes) {
        copy_page(sl_kv_page_layout(kv, page), kv->pages[page], layout, scale, to);
    }
    clear_rest(layout, n_slots, index + layout->codes);
    _mm_sfence();
}

// --- scan ------------------------------------------------------------------------------------------------------------

// Loads slots 8 t .. 8 t + 8 of those at `at`.
static inline __attribute__((always_inline)) __m256 load_codes(const char *at, size_t t, enum sl_kv_format format) {
    if (sl_kv_format_index(format) == SL_KV_INDEX_BYTES) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(at + 8 * t))));
    }
    return sl_avx2_load8(at, 8 * t, format);
}

// Returns, for slots 8 t .. 8 t + 8 of those at `at`, -negative where a slot's bit is set, else negative: bits become
// signs.
static inline __attribute__((always_inline)) __m256 signed_weight(const char *at, size_t t, __m256 negative) {
    const __m256i up =
        _mm256_sub_epi32(_mm256_set1_epi32(31 - 8 * (int)(t % 4)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    int word;
    memcpy(&word, at + t / 4 * sizeof word, sizeof word);
    __m256 bits = _mm256_castsi256_ps(_mm256_sllv_epi32(_mm256_set1_epi32(word), up));
    return _mm256_xor_ps(negative, _mm256_and_ps(bits, _mm256_set1_ps(-0.0f)));
}

// Computes the sums of the 64 slots from slot j on, a multiple of 64.
static inline __attribute__((always_inline)) void scan_page(const struct sl_scan_channels *s, size_t j,
                                                            enum sl_kv_format format, float *scores) {
    bool signs = sl_kv_format_index(format) == SL_KV_INDEX_SIGNS;
    __m256 sum[SL_PAGE_SLOTS / 8];
    SL_UNROLL
    for (size_t t = 0; t < SL_PAGE_SLOTS / 8; t++) {
        sum[t] = _mm256_setzero_ps();
    }
    for (int i = 0; i < s->n; i++) {
        const char *at = s->codes[i] + sl_scan_offset(format, j);
        __m256 weight = _mm256_set1_ps(s->weights[i]), negative = _mm256_set1_ps(-s->weights[i]);
        SL_UNROLL
        for (size_t t = 0; t < SL_PAGE_SLOTS / 8; t++) {
            sum[t] = signs ? _mm256_add_ps(sum[t], signed_weight(at, t, negative))
                           : _mm256_fmadd_ps(weight, load_codes(at, t, format), sum[t]);
        }
    }
    SL_UNROLL
    for (size_t t = 0; t < SL_PAGE_SLOTS / 8; t++) {
        _mm256_storeu_ps(scores + 8 * t, sum[t]);
    }
}

SL_SCAN_OF_PAGES

void sl_avx2_scan_fill(struct sl_ops *ops) {
    ops->host.index_keys = index_keys;
    ops->host.scan = scan;
    ops->scan = scan_heads;
}
