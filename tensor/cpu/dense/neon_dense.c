// SPDX-License-Identifier: Apache-2.0
// Purpose: the dense operations with NEON as every AArch64 processor has it, but for matmul (neon_matmul.c). What is not
//          here stays the reference's.
#include "tensor/cpu/dense/neon_dense.h"

#include <assert.h>

#include "tensor/cpu/dense/fills.h"
#include "tensor/cpu/dense/narrow.h"
#include "tensor/cpu/dense/panels.h"
#include "tensor/cpu/dense/rows.h"
#include "tensor/cpu/simd/neon_math.h"

// sum_i (x[i] - mean)^power for power 1 or 2; 16 partial sums, added in a fixed order
static inline __attribute__((always_inline)) float moment(const float *x, int64_t n, float mean, int power) {
    float32x4_t sums[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        SL_UNROLL
        for (int c = 0; c < 4; c++) {
            float32x4_t v = vsubq_f32(vld1q_f32(x + i + 4 * c), vdupq_n_f32(mean));
            sums[c] = power == 2 ? vfmaq_f32(sums[c], v, v) : vaddq_f32(sums[c], v);
        }
    }
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3])));
    for (; i < n; i++) {
        float v = x[i] - mean;
        sum += power == 2 ? v * v : v;
    }
    return sum;
}

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    float n = (float)norm->n, mean = norm->kind == SL_NORM_LAYER ? moment(x, norm->n, 0.0f, 1) / n : 0.0f;
    float scale = 1.0f / sqrtf(moment(x, norm->n, mean, 2) / n + norm->eps);
    int64_t i = 0;
    for (; i + 4 <= norm->n; i += 4) {
        float32x4_t v = vmulq_n_f32(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(mean)), scale);
        v = vmulq_f32(v, vld1q_f32(norm->weight + i));
        vst1q_f32(out + i, norm->bias != NULL ? vaddq_f32(v, vld1q_f32(norm->bias + i)) : v);
    }
    for (; i < norm->n; i++) {
        float v = (x[i] - mean) * scale * norm->weight[i];
        out[i] = norm->bias != NULL ? v + norm->bias[i] : v;
    }
}

static void norm(struct sl_stream *stream, const struct sl_norm *norm, const float *x, int64_t x_stride, int64_t m,
                 int n_groups, float *out, int64_t out_stride) {
    struct sl_norm_rows rows = {norm, norm_vector, x, x_stride, n_groups, out, out_stride};
    sl_norm_run(stream, &rows, m);
}

static void rotate_row(const struct sl_rope *rope, const float *cosines, const float *sines, float *x, int n_heads) {
    int half = rope->rotary_dim / 2;
    for (int h = 0; h < n_heads; h++) {
        float *head = x + (int64_t)h * rope->head_dim;
        for (int i = 0; i < half; i += 4) { // rotary_dim is a multiple of 8, so half is one of 4
            float32x4_t a = vld1q_f32(head + i), b = vld1q_f32(head + i + half);
            float32x4_t c = vld1q_f32(cosines + i), s = vld1q_f32(sines + i);
            vst1q_f32(head + i, vsubq_f32(vmulq_f32(a, c), vmulq_f32(b, s)));
            vst1q_f32(head + i + half, vaddq_f32(vmulq_f32(b, c), vmulq_f32(a, s)));
        }
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   float *x, int64_t stride, int64_t m, int n_heads) {
    struct sl_rotate_rows rows = {rotate_row, rope, cosines, sines, x, stride, n_heads};
    assert(rope->rotary_dim % 8 == 0);
    sl_rotate_run(stream, &rows, m);
}

void sl_neon_dense_fill(struct sl_ops *ops) {
    ops->pack = sl_narrow_pack;
    ops->unpack = sl_panels_free;
    ops->matmul_scratch = sl_narrow_scratch;
    ops->matmul = sl_neon_matmul;
    ops->norm = norm;
    ops->rotate = rotate;
}
