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

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return sl_code_is(w) ? sl_code_scratch(w, m) : 0;
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(&sl_avx2_code_kernels, stream, w, args);
    } else {
        sl_avx512_matmul(stream, w, args);
    }
}

// Tier avx2 fills in how x becomes integers. Angles are the reference's: f64 from libm, once for each row.
void sl_avx512_dense_fill(struct sl_ops *ops) {
    ops->pack = sl_avx512_pack;
    ops->matmul_scratch = matmul_scratch;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->rotate = rotate;
}
