// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX-512 and its permutations of bytes (VBMI), with the bits of avx512_kv.c.
 *
 * Design: 64 codes of up to 4 bits become 64 numbers in nine instructions instead of twelve, and no more than six of them
 *         need the port of permutations.
 */
#include "engine/tensor/cpu/attention/avx512_f32.h"
#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/pages/avx512_codec.h"

// Groups have 64 codes.
static inline __attribute__((always_inline)) void look_up_rows(const struct sl_coded_rows *r, enum sl_kv_format format,
                                                               float *tile) {
    _Alignas(64) float wide[SL_WIDE_PAIRS];
    const float *pair = wide;
    const struct sl_avx512_spread spread = sl_avx512_spread(format);
    size_t group_bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(format)), n_groups = r->columns / SL_PAGE_SLOTS,
           strip = r->strip_rows * SL_STRIP;
    const uint8_t *codes = r->codes;
    const char *next = r->next;
    sl_avx512_widen_pairs(r, wide);
    for (size_t row = 0; row < r->n; row++, tile += SL_STRIP) {
        float *to = tile;
        for (size_t g = 0; g < n_groups; g++, codes += group_bytes, next += group_bytes, pair += 2) {
            const __m512 values = sl_avx512_numbers(pair, format);
            const __m512i bytes = sl_avx512_spread64(codes, &spread);
            sl_avx512_fetch(next, 1);
            SL_UNROLL
            for (unsigned s = 0; s < SL_PAGE_STRIPS; s++, to += strip) { // the permutation reads the low four bits
                _mm512_store_ps(to, _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 8 * s), values));
            }
        }
    }
}

static inline bool look_up(const struct sl_coded_rows *r, enum sl_kv_format format, float *tile) {
    if (!sl_avx512_looks_up(format) || r->group != SL_PAGE_SLOTS) {
        return false;
    }
    SL_KV_WITH_FORMAT(format, look_up_rows(r, FORMAT, tile));
    return true;
}

static bool keys_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, float *tile) {
    const struct sl_coded_rows r = sl_coded_keys(layout, page, next);
    return look_up(&r, layout->k_format, tile);
}

static bool values_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, size_t n,
                              float *tile) {
    const struct sl_coded_rows r = sl_coded_values(layout, page, next, n);
    return look_up(&r, layout->v_format, tile);
}

#include "engine/tensor/cpu/attention/avx512_attend.h"

static void attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                         const struct sl_kv_partial *partial) {
    sl_avx2_attend_pages(load_queries, attend_page, b, page_begin, page_end, partial);
}

static const struct sl_kv_kernel attention = {attend_block, SL_ATTEND_BLOCK, fold_kept};

static const struct sl_avx2_scorer *scorer_for(const struct sl_attend *args) {
    (void)args;
    return &scorer;
}

#include "engine/tensor/cpu/attention/kv_entries.h"

void sl_avx512vbmi_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}
