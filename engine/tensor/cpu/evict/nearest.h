// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: nearest with AVX2 and AVX-512, whose tiers include it once; the formula is that of ref_evict.c.
 *
 * Design: multiplies a block of evicted keys by tiles of retained ones, transposed, as attention does with queries and
 *         keys: 6 rows by two registers of sums. A product is eight sums over every eighth channel, added up in one
 *         order, so no cosine depends on the tier, or on which rows are multiplied together. All scratch is on the stack
 *         and bounded.
 */
#pragma once

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/pages/avx2_row.h"
#include "engine/tensor/cpu/evict/evict.h"
#include "engine/tensor/cpu/simd/vector.h"

#define EVICTED_FLOATS (128 * SL_MAX_HEAD_DIM) // keys of a block
#define KEPT           64                      // keys of a tile
#define ROWS           6                       // evicted keys of one kernel
#define COLUMNS        (2 * SL_VECTOR_FLOATS)  // retained keys of one kernel: a strip
#define CHECKED        16                      // scores that are compared at once

struct search {
    // Channel 8 i + l of a key is number l * d / 8 + i: each eighth of a row is a chain of one sum.
    _Alignas(64) float evicted[EVICTED_FLOATS + ROWS * SL_MAX_HEAD_DIM]; // [][d][ROWS]
    float kept[KEPT * SL_MAX_HEAD_DIM];                                  // [KEPT / COLUMNS][d][COLUMNS]
    float inverse[KEPT];                                                 // 1 / |K| of kept, 0 for zero keys
    float best[SL_NEAREST_BLOCK];                                        // the largest K_e . K / |K| so far
    float inverse_evicted[SL_NEAREST_BLOCK];                             // 1 / |K_e|
    uint32_t at[SL_NEAREST_BLOCK];                                       // the slot it belongs to
    const uint32_t *slots;                                               // of the tile's keys
    uint32_t n_slots;
};

// Returns 1 / |row|, 0 for a zero row.
static float inverse_norm(const float *row, size_t d) {
    __m256 squares = _mm256_setzero_ps();
    for (size_t i = 0; i < d; i += 8) {
        __m256 x = _mm256_load_ps(row + i);
        squares = _mm256_fmadd_ps(x, x, squares);
    }
    float sum = sl_avx2_sum(squares);
    return sum > 0.0f ? 1.0f / sqrtf(sum) : 0.0f;
}

// Writes the sums of chain l of the products of ROWS evicted keys and a strip.
static inline __attribute__((always_inline)) void sum_chain(const float *a, const float *b, size_t d, size_t l,
                                                            SL_VECTOR sum[ROWS][2]) {
    SL_UNROLL
    for (int r = 0; r < ROWS; r++) {
        sum[r][0] = sum[r][1] = sl_vector_set(0.0f);
    }
    for (size_t e = l * (d / 8); e < (l + 1) * (d / 8); e++) {
        SL_VECTOR b0 = sl_vector_load(b + e * COLUMNS), b1 = sl_vector_load(b + e * COLUMNS + SL_VECTOR_FLOATS);
        SL_UNROLL
        for (int r = 0; r < ROWS; r++) {
            SL_VECTOR w = sl_vector_set(a[e * ROWS + (size_t)r]);
            sum[r][0] = sl_vector_multiply_add(w, b0, sum[r][0]);
            sum[r][1] = sl_vector_multiply_add(w, b1, sum[r][1]);
        }
    }
}

// Writes products_out[r] = K_r . K of a strip's keys, ((0+1)+(2+3)) + ((4+5)+(6+7)) of the eight chains.
static void multiply(const float *a, const float *b, size_t d, float products_out[ROWS][COLUMNS]) {
    SL_VECTOR chains[8][ROWS][2];
    for (size_t l = 0; l < 8; l++) {
        SL_VECTOR sum[ROWS][2];
        sum_chain(a, b, d, l, sum);
        SL_UNROLL
        for (int r = 0; r < ROWS; r++) {
            chains[l][r][0] = sum[r][0];
            chains[l][r][1] = sum[r][1];
        }
    }
    SL_UNROLL
    for (int r = 0; r < ROWS; r++) {
        SL_UNROLL
        for (int x = 0; x < 2; x++) {
            SL_VECTOR low = (chains[0][r][x] + chains[1][r][x]) + (chains[2][r][x] + chains[3][r][x]);
            SL_VECTOR high = (chains[4][r][x] + chains[5][r][x]) + (chains[6][r][x] + chains[7][r][x]);
            sl_vector_store(products_out[r] + x * SL_VECTOR_FLOATS, low + high);
        }
    }
}

// Returns the scores of eight retained keys: 0 for keys without a length, also where they hold a NaN.
static inline __m256 scores_of(const float *products, const float *inverse) {
    __m256 by = _mm256_load_ps(inverse), is_positive = _mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_and_ps(_mm256_mul_ps(_mm256_load_ps(products), by), is_positive);
}

// Updates the best of evicted key e with CHECKED retained keys: strictly larger scores replace it, in order.
static void keep_best(struct search *s, uint32_t e, uint32_t column, const float *products) {
    __m256 best = _mm256_broadcast_ss(&s->best[e]);
    __m256 low = scores_of(products, s->inverse + column), high = scores_of(products + 8, s->inverse + column + 8);
    __m256 above = _mm256_or_ps(_mm256_cmp_ps(low, best, _CMP_GT_OQ), _mm256_cmp_ps(high, best, _CMP_GT_OQ));
    if (_mm256_movemask_ps(above) == 0) {
        return;
    }
    _Alignas(32) float scores[CHECKED];
    _mm256_store_ps(scores, low);
    _mm256_store_ps(scores + 8, high);
    for (uint32_t t = 0; t < CHECKED && column + t < s->n_slots; t++) {
        if (scores[t] > s->best[e]) {
            s->best[e] = scores[t];
            s->at[e] = s->slots[column + t];
        }
    }
}

// Compares a tile of retained keys with n evicted ones.
static void search_tile(struct search *s, uint32_t n, size_t d) {
    _Alignas(64) float products[ROWS][COLUMNS];
    for (uint32_t strip = 0; strip < s->n_slots; strip += COLUMNS) {
        for (uint32_t e = 0; e < n; e += ROWS) {
            multiply(s->evicted + e * d, s->kept + strip * d, d, products);
            for (uint32_t r = 0; r < ROWS && e + r < n; r++) {
                for (uint32_t column = 0; column < COLUMNS; column += CHECKED) {
                    keep_best(s, e + r, strip + column, products[r] + column);
                }
            }
        }
    }
}

// Reads the key of a slot into a column of ROWS, in the order of the chains. Returns 1 / |K|.
static float load_evicted(const struct sl_kv *kv, uint32_t slot, float *out) {
    _Alignas(64) float row[SL_MAX_HEAD_DIM];
    size_t d = (size_t)kv->work->head_dim;
    sl_avx2_read_k_row(kv, slot, row);
    for (size_t i = 0; i < d; i++) {
        out[(i % 8 * (d / 8) + i / 8) * ROWS] = row[i];
    }
    return inverse_norm(row, d);
}

// Reads eight keys, the first n of slots[] and zeros, into a part of a strip. Writes 1 / |K| of each.
static void load_kept(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, float *out, float *inverse_out) {
    _Alignas(64) float rows[8 * SL_MAX_HEAD_DIM];
    size_t d = (size_t)kv->work->head_dim;
    memset(rows + (n < 8 ? n : 8) * d, 0, (n < 8 ? 8 - n : 0) * d * sizeof *rows);
    for (uint32_t c = 0; c < 8; c++) {
        if (c < n) {
            sl_avx2_read_k_row(kv, slots[c], rows + c * d);
        }
        inverse_out[c] = inverse_norm(rows + c * d, d);
    }
    for (size_t i = 0; i < d / 8; i++) { // channel 8 i + l becomes number l * d / 8 + i
        sl_avx2_transpose_8x8((const char *)rows, 8 * i, d, SL_KV_F32, out + i * COLUMNS, d / 8 * COLUMNS);
    }
}

// Reads a tile of n keys; whole strips are filled with zeros, whose scores are not read.
static void load_tile(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, struct search *s) {
    size_t d = (size_t)kv->work->head_dim;
    s->slots = slots;
    s->n_slots = n;
    for (uint32_t c = 0; c < (n + COLUMNS - 1) / COLUMNS * COLUMNS; c += 8) {
        load_kept(kv, slots + c, c < n ? n - c : 0, s->kept + c / COLUMNS * COLUMNS * d + c % COLUMNS, s->inverse + c);
    }
}

static void nearest(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out) {
    size_t d = (size_t)kv->work->head_dim;
    uint32_t block = EVICTED_FLOATS / (uint32_t)d < SL_NEAREST_BLOCK ? EVICTED_FLOATS / (uint32_t)d : SL_NEAREST_BLOCK;
    struct search s;
    assert(n_kept > 0 || n_evicted == 0);
    for (uint32_t first = 0; first < n_evicted; first += block) {
        uint32_t n = n_evicted - first < block ? n_evicted - first : block;
        memset(s.evicted + n / ROWS * ROWS * d, 0, ROWS * d * sizeof *s.evicted); // the rows that none of them fills
        for (uint32_t e = 0; e < n; e++) {
            s.inverse_evicted[e] = load_evicted(kv, evicted[first + e], s.evicted + e / ROWS * ROWS * d + e % ROWS);
            s.best[e] = -INFINITY;
            s.at[e] = kept[0];
        }
        for (uint32_t tile = 0; tile < n_kept; tile += KEPT) {
            load_tile(kv, kept + tile, n_kept - tile < KEPT ? n_kept - tile : KEPT, &s);
            search_tile(&s, n, d);
        }
        for (uint32_t e = 0; e < n; e++) {
            nearest_out[first + e] = s.at[e];
            cosine_out[first + e] = s.inverse_evicted[e] > 0 ? s.best[e] * s.inverse_evicted[e] : 0;
        }
    }
}
