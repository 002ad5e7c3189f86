// SPDX-License-Identifier: Apache-2.0
// Purpose: the dense operations of tiers avx2 and neon. Products with numbers are in avx2_matmul.c and neon_matmul.c,
//          those with codes in code_matmul.c. The reference fills the others.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/dense/narrow.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/dense/rows.h"
#include "engine/tensor/cpu/simd/vector.h"
#include "engine/tensor/weights.h"

#define STEP SL_VECTOR_FLOATS

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    (void)stream;
    for (int64_t r = 0; r < m; r++) {
        assert(ids[r] >= 0 && ids[r] < table->n);
        const void *row = sl_weight_row(table, ids[r]);
        const uint16_t *from = row;
        float *to = out + r * table->k;
        int64_t i = 0;
        if (sl_dtype_is_codes(table->dtype)) {
            sl_weight_widen_row(table, ids[r], to);
            continue;
        }
        if (table->dtype == SL_F32) {
            memcpy(to, row, (size_t)table->k * sizeof(float));
            continue;
        }
        for (; i + STEP <= table->k; i += STEP) {
            bool is_f16 = table->dtype == SL_F16;
            sl_vector_store(to + i, is_f16 ? sl_vector_from_f16(from + i) : sl_vector_from_bf16(from + i));
        }
        for (; i < table->k; i++) {
            uint16_t half;
            memcpy(&half, from + i, sizeof half);
            to[i] = table->dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half);
        }
    }
}

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

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    float n = (float)norm->n, mean = norm->kind == SL_NORM_LAYER ? moment(x, norm->n, 0.0f, 1) / n : 0.0f;
    float scale = 1.0f / sqrtf(moment(x, norm->n, mean, 2) / n + norm->eps);
    for (int64_t i = 0; i < norm->n; i += STEP) {
        int64_t left = norm->n - i;
        SL_VECTOR v = (sl_vector_load_first(x + i, left) - sl_vector_set(mean)) * sl_vector_set(scale);
        v = v * sl_vector_load_first(norm->weight + i, left);
        if (norm->bias != NULL) {
            v = v + sl_vector_load_first(norm->bias + i, left);
        }
        sl_vector_store_first(out + i, left, v);
    }
}

static void norm(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    sl_norm_run(stream, (struct sl_norm_rows){norm, norm_vector, x, out, out_stride});
}

static void rotate_row(const struct sl_rope *rope, const float *cosines, const float *sines, float *x, int n_heads) {
    int half = rope->rotary_dim / 2;
    for (int h = 0; h < n_heads; h++) {
        float *head = x + (int64_t)h * rope->head_dim;
        for (int i = 0; i < half; i += STEP) {
            SL_VECTOR a = sl_vector_load_first(head + i, half - i), b = sl_vector_load_first(head + half + i, half - i);
            SL_VECTOR c = sl_vector_load_first(cosines + i, half - i), s = sl_vector_load_first(sines + i, half - i);
            sl_vector_store_first(head + i, half - i, a * c - b * s);
            sl_vector_store_first(head + half + i, half - i, b * c + a * s);
        }
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    assert(rope->rotary_dim % 8 == 0);
    sl_rotate_run(stream, (struct sl_rotate_rows){rotate_row, rope, cosines, sines, x});
}

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
