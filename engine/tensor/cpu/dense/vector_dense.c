// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the dense operations of tiers avx2 and neon. Products with codes are in code_matmul.c. The reference fills the
 *          others.
 *
 * Design: a tile of a product keeps up to 12 of AVX2's 16 registers in sums, or 24 of NEON's 32. Both tiers give the same
 *         bits, except in activations.
 */
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/dense/vector_finish.h"
#include "engine/tensor/cpu/simd/vector.h"

#define STEP SL_VECTOR_FLOATS

// Returns sum_i (x[i] - mean)^power for power 1 or 2: as many partial sums as four registers hold, added in a fixed
// order.
static inline __attribute__((always_inline)) float moment(const float *x, int64_t n, float mean, int power) {
    SL_VECTOR sums[4] = {sl_vector_set(0.0f), sl_vector_set(0.0f), sl_vector_set(0.0f), sl_vector_set(0.0f)};
    int64_t i = 0;
    for (; i + 4 * STEP <= n; i += 4 * STEP) {
        SL_UNROLL
        for (int c = 0; c < 4; c++) {
            SL_VECTOR v = sl_vector_load(x + i + STEP * c) - sl_vector_set(mean), plus_v = sums[c] + v;
            sums[c] = power == 2 ? sl_vector_multiply_add(v, v, sums[c]) : plus_v;
        }
    }
    float sum = sl_vector_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) {
        float v = x[i] - mean;
        sum += power == 2 ? v * v : v;
    }
    return sum;
}

#include "engine/tensor/cpu/dense/vector_rows.h"

// --- products --------------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
#define CODE_KERNELS (&sl_avx2_code_kernels)
#else
#define CODE_KERNELS (&sl_plain_code_kernels)
#endif
#define STRIP       16
#define STREAM_ROWS 6
#define TILE_ROWS   6
#define ROW_BLOCK   240
#define sums_start  sl_panel_sums_start
#define sums_finish sl_vector_finish_panel
#include "engine/tensor/cpu/dense/vector_matmul.h"

void sl_vector_dense_fill(struct sl_ops *ops) {
    ops->pack = pack;
    ops->unpack = sl_panels_free;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = sl_code_is;
    ops->arrange = arrange;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->rotate = rotate;
}
