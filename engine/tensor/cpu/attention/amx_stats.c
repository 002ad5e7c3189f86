// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: column statistics of attention with scores computed by AMX: fold, window_sums.
 *
 * Design: avx2_stats.c does everything but the scores. There a row of scores is a query vector and a column a slot. So
 *         here the queries are A and K^T is B: the products are those of amx_kv.c with the sides exchanged, summed in
 *         the same order. They give the same scores that lse was made of.
 */
#include "engine/tensor/cpu/attention/amx_kv.h"

// Writes q as bf16 [n][d], in units of log 2.
static void load_queries(const struct sl_avx2_call *call, int head, int64_t begin, int n,
                         struct sl_page_angles *of_page, float *q) {
    size_t count = (size_t)n * (size_t)call->args.head_dim;
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    sl_avx2_load_queries(call, head, begin, n, of_page, q);
    for (size_t e = 0; e < count; e += 32) { // in place: each write ends before the data that is still to be read
        __m512 low = _mm512_mul_ps(_mm512_load_ps(q + e), log2e);
        __m512 high = _mm512_mul_ps(_mm512_load_ps(q + e + 16), log2e);
        _mm512_store_ps(q + e / 2, (__m512)_mm512_cvtne2ps_pbh(high, low));
    }
}

// Writes K^T as [d / 32][4] tiles of B: pairs of channels are transposed as if they were numbers of 32 bits.
static void load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                      float *tile) {
    struct sl_amx_page_scratch s;
    _Alignas(64) uint16_t rows[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    const struct sl_kv *kv = &call->args.heads.kv[head];
    size_t d = (size_t)call->args.head_dim;
    s.of_page = *of_page;
    const uint16_t *k = sl_amx_load_keys(kv, call->angles, page, kv->pages[page], &s, rows, NULL);
    *of_page = s.of_page;
    for (size_t i = 0; i < d; i += SL_TILE_STEP) {
        for (size_t j = 0; j < SL_PAGE_SLOTS; j += SL_TILE, tile += SL_TILE * SL_TILE) {
            __m512 pairs[SL_TILE];
            for (size_t t = 0; t < SL_TILE; t++) {
                pairs[t] = _mm512_load_ps(k + (j + t) * d + i);
            }
            sl_amx_transpose_16x16(pairs);
            for (size_t t = 0; t < SL_TILE; t++) {
                _mm512_store_ps(tile + t * SL_TILE, pairs[t]);
            }
        }
    }
}

static void score(const float *q, const float *tile, const struct sl_page_layout *layout, int v_begin, int v_end,
                  int n_slots, float *scores) {
    const size_t d = (size_t)layout->head_dim;
    (void)n_slots; // always computes whole pages
    sl_amx_begin();
    sl_amx_written();
    const __m512 ln2 = _mm512_set1_ps((float)M_LN2);
    for (int v = v_begin / SL_TILE * SL_TILE; v < v_end; v += SL_TILE, sl_amx_written()) {
        const uint16_t *rows = (const uint16_t *)q + (size_t)v * d;
        float *out = scores + v * SL_PAGE_SLOTS;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t i = 0; i < d; i += SL_TILE_STEP) {
            const float *b = tile + i / SL_TILE_STEP * 4 * SL_TILE * SL_TILE;
            _tile_loadd(4, rows + i, 2 * d);
            _tile_loadd(5, b, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, b + SL_TILE * SL_TILE, 64);
            _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(5, b + 2 * SL_TILE * SL_TILE, 64);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, b + 3 * SL_TILE * SL_TILE, 64);
            _tile_dpbf16ps(3, 4, 6);
        }
        _tile_stored(0, out, SL_PAGE_SLOTS * sizeof *out);
        _tile_stored(1, out + SL_TILE, SL_PAGE_SLOTS * sizeof *out);
        _tile_stored(2, out + 2 * SL_TILE, SL_PAGE_SLOTS * sizeof *out);
        _tile_stored(3, out + 3 * SL_TILE, SL_PAGE_SLOTS * sizeof *out);
        for (int e = 0; e < SL_TILE * SL_PAGE_SLOTS; e += 16) {
            _mm512_store_ps(out + e, _mm512_mul_ps(_mm512_load_ps(out + e), ln2));
        }
    }
    sl_amx_end();
}

static const struct sl_avx2_scorer scorer = {load_queries, load_keys, score, sl_avx512_add_rows};

void sl_amx_fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    sl_avx2_fold_by(sl_amx_covers(args) ? &scorer : sl_avx512_scorer, stream, args, first_row, what);
}

void sl_amx_window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    sl_avx2_window_sums_by(sl_amx_covers(args) ? &scorer : sl_avx512_scorer, stream, args, first_row, sums_out);
}
