// SPDX-License-Identifier: Apache-2.0
// Purpose: the dense operations of tier avx512: those of vector_rows.h, and the choice between products.
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/fills.h"

// Returns sum_i (x[i] - mean)^power for power 1 or 2: 64 partial sums, added in a fixed order.
static inline __attribute__((always_inline)) float moment(const float *x, int64_t n, float mean, int power) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t i = 0; i < n; i += 64) {
        SL_UNROLL
        for (int c = 0; c < 4; c++) {
            __mmask16 lanes = sl_avx512_lanes(n - i - 16 * c);
            __m512 v = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, x + i + 16 * c), _mm512_set1_ps(mean));
            sums[c] = power == 2 ? _mm512_fmadd_ps(v, v, sums[c]) : _mm512_add_ps(v, sums[c]);
        }
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

#include "engine/tensor/cpu/dense/vector_rows.h"

// --- products --------------------------------------------------------------------------------------------------------

#define CODE_KERNELS (&sl_avx2_code_kernels)
#define STRIP        SL_PANEL
#define STREAM_ROWS  8
#define TILE_ROWS    14 // two registers each, and three more for weights and x
#define ROW_BLOCK    (TILE_ROWS * 16)
#define sums_start   sl_sums_start
#define sums_finish  sl_sums_finish
#include "engine/tensor/cpu/dense/vector_matmul.h"

enum sl_status sl_avx512_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack(stream, matrix, err);
}

void sl_avx512_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    multiply_numbers(stream, w, args);
}

// Angles are the reference's: f64 from libm, once for each row.
void sl_avx512_dense_fill(struct sl_ops *ops) {
    ops->pack = pack;
    ops->matmul_scratch = matmul_scratch;
    ops->arrange = arrange;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->rotate = rotate;
}
