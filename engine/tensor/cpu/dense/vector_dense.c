// SPDX-License-Identifier: Apache-2.0
// Purpose: the dense operations of tiers avx2 and neon. Products with numbers are in avx2_matmul.c and neon_matmul.c,
//          those with codes in code_matmul.c. The reference fills the others.
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/dense/panels.h"
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

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_code_is(matrix) ? sl_code_pack(stream, matrix, err) : sl_narrow_pack(stream, matrix, err);
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return sl_code_is(w) ? sl_code_scratch(w, m) : sl_narrow_scratch(w, m);
}

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    sl_code_arrange(CODE_KERNELS, stream, w, args, part, n_parts);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(CODE_KERNELS, stream, w, args);
    } else {
        sl_vector_matmul(stream, w, args);
    }
}

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
