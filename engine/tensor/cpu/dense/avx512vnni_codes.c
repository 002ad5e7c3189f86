// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of products with codes (code_matmul.h) with VNNI, which multiplies unsigned bytes by signed
 *          ones and adds up four products.
 *
 * Design: tiles keep the sums of a group and y of all their rows in registers. The sums start with what `zero` takes from
 *         them, which is then free.
 */
#include "engine/tensor/cpu/dense/code_matmul.h"

#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_codes.h"
#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/fills.h"

#define CODE_TILE_ROWS 12

// Returns the sum of 16 bytes with a sign: VPSADBW adds up eight without one.
static int32_t sum_of(__m128i bytes) {
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

static void split_group(const float *x, struct sl_code_x *out) {
    __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    __m512i magnitudes =
        _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(values[0])), _mm512_castps_si512(_mm512_abs_ps(values[1])));
    float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(magnitudes)))); // keeps NaN
    __m512 inverse = _mm512_set1_ps(most < SL_CODE_LEAST ? 0.0f : SL_CODE_LARGEST / most);
    out->scale = most < SL_CODE_LEAST ? 0.0f : most / SL_CODE_LARGEST;
    __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values[0], inverse)));
    __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values[1], inverse)));
    _mm_storeu_si128((__m128i *)out->bytes, first);
    _mm_storeu_si128((__m128i *)out->bytes + 1, second);
    sl_code_x_sum(out, sum_of(first), sum_of(second));
}

// --- a group ---------------------------------------------------------------------------------------------------------

SL_INLINE __m512i four_bytes(const int8_t *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
}

// A group of all rows of a tile: of rows 0, 3, 6 and 9. The processor adds one or two strides to an address for free.
struct groups {
    const char *at[CODE_TILE_ROWS / 3];
    size_t stride; // bytes from row to row
};

SL_INLINE const struct sl_code_x *group_of(const struct groups *x, int row) {
    return (const struct sl_code_x *)(const void *)(x->at[row / 3] + (size_t)(row % 3) * x->stride);
}

// Adds the products of the weights of a group that share scale number `share` to y[rows].
SL_INLINE void add_share(struct sl_code_form form, int rows, const char *codes, int share,
                         const struct sl_group_scales *of, const struct groups *x, __m512 *y) {
    const int steps = form.shared / 4, which = form.shared == SL_CODE_GROUP ? 2 : share;
    __m512i sums[CODE_TILE_ROWS];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        sums[r] = _mm512_set1_epi32(sl_code_start(form, group_of(x, r), share));
    }
    SL_UNROLL
    for (int s = 0; s < steps; s++) {
        const int step = share * steps + s;
        __m512i c = sl_load_codes(form, codes, step);
        SL_UNROLL
        for (int r = 0; r < rows; r++) {
            sums[r] = _mm512_dpbusd_epi32(sums[r], c, four_bytes(group_of(x, r)->bytes + 4 * step));
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        const struct sl_code_x *group = group_of(x, r);
        __m512 scaled = _mm512_mul_ps(of->scales[share], _mm512_set1_ps(group->scale));
        y[r] = _mm512_fmadd_ps(scaled, _mm512_cvtepi32_ps(sums[r]), y[r]);
        if (form.has_offset) {
            y[r] = _mm512_fmadd_ps(of->offsets[share], _mm512_set1_ps(group->scaled[which]), y[r]);
        }
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

/*
 * sums[rows][16] += x[rows][n_groups] W, for half a panel. ldx: groups from row to row; sums are SL_PANEL floats apart.
 * Called with a constant form and rows, so that all sums stay in registers.
 */
SL_INLINE void tile(struct sl_code_form form, int rows, const char *half, const struct sl_code_x *x, int64_t ldx,
                    int64_t n_groups, float *sums) {
    __m512 y[CODE_TILE_ROWS];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        y[r] = _mm512_load_ps(sums + r * SL_PANEL);
    }
    struct groups groups = {.stride = (size_t)ldx * sizeof *x};
    SL_UNROLL
    for (int i = 0; i < CODE_TILE_ROWS / 3; i++) {
        groups.at[i] = (const char *)x + 3 * (size_t)i * groups.stride;
    }
    const size_t code_bytes = sl_code_group_bytes(form.bits);
    // A division in the condition is checked by UBSan, and then not constant: the loop could not be unrolled.
    const int shares = SL_CODE_GROUP / form.shared;
    for (int64_t g = 0; g < n_groups; g += form.block) {
        __m512 block_scales[2];
        half = sl_load_block_scales(form, half, block_scales);
        for (int i = 0; i < form.block; i++) {
            struct sl_group_scales of = sl_load_scales(form, block_scales, &half);
            sl_code_fetch(half, code_bytes, rows);
            SL_UNROLL
            for (int share = 0; share < shares; share++) {
                add_share(form, rows, half, share, &of, &groups, y);
            }
            SL_UNROLL
            for (int j = 0; j < CODE_TILE_ROWS / 3; j++) {
                groups.at[j] += sizeof *x;
            }
            half += code_bytes;
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        _mm512_store_ps(sums + r * SL_PANEL, y[r]);
    }
}

#include "engine/tensor/cpu/dense/code_tiles.h"

const struct sl_code_kernels sl_vnni_code_kernels = {CODE_TILE_ROWS, tiles, split_group, sl_sums_finish};

// --- tier avx512vnni -------------------------------------------------------------------------------------------------

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    sl_code_arrange(&sl_vnni_code_kernels, stream, w, args, part, n_parts);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(&sl_vnni_code_kernels, stream, w, args);
    } else {
        sl_avx512_matmul(stream, w, args);
    }
}

void sl_avx512vnni_dense_fill(struct sl_ops *ops) { // tier avx512 fills the rest
    ops->arrange = arrange;
    ops->matmul = matmul;
}
