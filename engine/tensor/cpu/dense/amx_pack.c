// SPDX-License-Identifier: Apache-2.0
// Purpose: packs weights of tiers amx and amx2 into panels, and makes tiles of f16 and of codes. See amx_pack.h.
#include "engine/tensor/cpu/dense/amx_pack.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512bf16_pack.h"
#include "engine/tensor/cpu/simd/avx512_math.h"
#include "engine/tensor/weights.h"

#define FETCH_AHEAD 8192 // bytes; conversion reads too slowly for hardware prefetching to run far enough ahead

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    char *to = panel + c / SL_PANEL_HALF * SL_AMX_TILE_BYTES + c % SL_PANEL_HALF * 4;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        int64_t step = i / SL_AMX_STEP, pair = i % SL_AMX_STEP / 2;
        memcpy(to + step * SL_AMX_STEP_BYTES + pair * 64, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

enum sl_status sl_amx_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_amx_steps(matrix) * SL_AMX_STEP_BYTES, pack_row, err);
}

// Stores a row of a tile, truncated, and a row of the second term's tile. The two terms hold all bits of an f16.
static inline void store_row(__m512 lo, __m512 hi, char *row) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 first_lo = (__m512)_mm512_and_si512((__m512i)lo, upper);
    __m512 first_hi = (__m512)_mm512_and_si512((__m512i)hi, upper);
    _mm512_store_si512(row, (__m512i)_mm512_cvtne2ps_pbh(first_hi, first_lo));
    _mm512_store_si512(row + SL_AMX_STEP_BYTES,
                       (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(hi, first_hi), _mm512_sub_ps(lo, first_lo)));
}

static void tiles_of_f16(const char *packed, int64_t count, char *buffer) {
    for (int64_t s = 0; s < count; s++, buffer += SL_AMX_STEP_BYTES) {
        SL_UNROLL
        for (int row = 0; row < SL_PANEL; row++, buffer += 64, packed += 64) {
            _mm_prefetch(packed + FETCH_AHEAD, _MM_HINT_T0);
            store_row(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed)),
                      _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)packed + 1)), buffer);
        }
    }
}

const char *sl_amx_tiles(const struct sl_matrix *w, int64_t p, int64_t first, int64_t count, char *buffer) {
    if (sl_code_is(w)) {
        const int terms = sl_amx_terms(w);
        const struct sl_pair_layout layout = {terms, 64, (size_t)terms * SL_AMX_STEP_BYTES, SL_AMX_STEP_BYTES};
        for (int h = 0; h < 2; h++) {
            struct sl_code_half half = sl_code_half_at(w, p, h);
            if (half.type != NULL) {
                sl_pairs_of_half(&half, first, count, &layout, buffer + h * SL_AMX_TILE_BYTES);
            }
        }
        return buffer;
    }
    const char *packed = (const char *)w->packed + (size_t)(p * sl_amx_steps(w) + first) * SL_AMX_STEP_BYTES;
    if (w->dtype == SL_F16) {
        tiles_of_f16(packed, count, buffer);
        return buffer;
    }
    return packed;
}
