// SPDX-License-Identifier: Apache-2.0
// Purpose: the dense operations with AVX2, FMA and F16C, but for matmul (avx2_matmul.c).
#include "tensor/cpu/dense/avx2_dense.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "tensor/cpu/dense/fills.h"
#include "tensor/cpu/dense/narrow.h"
#include "tensor/cpu/dense/panels.h"
#include "tensor/cpu/dense/rows.h"
#include "tensor/cpu/simd/avx2_math.h"
#include "tensor/weights.h"

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    (void)stream;
    for (int64_t r = 0; r < m; r++) {
        assert(ids[r] >= 0 && ids[r] < table->n);
        const unsigned char *from = sl_weight_row(table, ids[r]);
        float *to = out + r * table->k;
        int64_t i = 0;
        if (table->dtype == SL_F32) {
            memcpy(to, from, (size_t)table->k * sizeof(float));
            continue;
        }
        for (; i + 8 <= table->k; i += 8) {
            __m128i halves = _mm_loadu_si128((const __m128i *)(from + 2 * i));
            __m256 wide = table->dtype == SL_F16
                              ? _mm256_cvtph_ps(halves)
                              : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
            _mm256_storeu_ps(to + i, wide);
        }
        for (; i < table->k; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = table->dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half);
        }
    }
}

// sum_i (x[i] - mean)^power for power 1 or 2; 32 partial sums, added in a fixed order
static inline __attribute__((always_inline)) float moment(const float *x, int64_t n, float mean, int power) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        SL_UNROLL
        for (int c = 0; c < 4; c++) {
            __m256 v = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * c), _mm256_set1_ps(mean));
            sums[c] = power == 2 ? _mm256_fmadd_ps(v, v, sums[c]) : _mm256_add_ps(v, sums[c]);
        }
    }
    float sum = sl_avx2_sum(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
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
    for (; i + 8 <= norm->n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(mean)), _mm256_set1_ps(scale));
        v = _mm256_mul_ps(v, _mm256_loadu_ps(norm->weight + i));
        _mm256_storeu_ps(out + i, norm->bias != NULL ? _mm256_add_ps(v, _mm256_loadu_ps(norm->bias + i)) : v);
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
            __m128 a = _mm_loadu_ps(head + i), b = _mm_loadu_ps(head + i + half);
            __m128 c = _mm_loadu_ps(cosines + i), s = _mm_loadu_ps(sines + i);
            _mm_storeu_ps(head + i, _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s)));
            _mm_storeu_ps(head + i + half, _mm_add_ps(_mm_mul_ps(b, c), _mm_mul_ps(a, s)));
        }
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   float *x, int64_t stride, int64_t m, int n_heads) {
    struct sl_rotate_rows rows = {rotate_row, rope, cosines, sines, x, stride, n_heads};
    assert(rope->rotary_dim % 8 == 0);
    sl_rotate_run(stream, &rows, m);
}

void sl_avx2_dense_fill(struct sl_ops *ops) {
    ops->pack = sl_narrow_pack;
    ops->unpack = sl_panels_free;
    ops->matmul_scratch = sl_narrow_scratch;
    ops->matmul = sl_avx2_matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->rotate = rotate;
}
