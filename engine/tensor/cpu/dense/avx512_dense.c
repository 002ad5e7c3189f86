// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the dense operations of tier avx512: embed, norm, rotate, and the choice between products.
 *
 * Invariants: an element's bits depend on its own row alone: the last elements of a row go through the same
 *             instructions as the others, masked.
 */

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/dense/rows.h"
#include "engine/tensor/weights.h"

// --- embed ---------------------------------------------------------------------------------------------------------

struct embed_args {
    const struct sl_matrix *table;
    const int32_t *ids;
    float *out;
};

static void embed_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct embed_args *a = arg;
    enum sl_dtype dtype = a->table->dtype;
    int64_t k = a->table->k;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        assert(a->ids[r] >= 0 && a->ids[r] < a->table->n);
        const unsigned char *from = sl_weight_row(a->table, a->ids[r]);
        float *to = a->out + r * k;
        if (sl_dtype_is_codes(dtype)) {
            sl_weight_widen_row(a->table, a->ids[r], to);
            continue;
        }
        if (dtype == SL_F32) {
            memcpy(to, from, (size_t)k * sizeof(float));
            continue;
        }
        for (int64_t i = 0; i < k; i += 16) {
            __mmask16 lanes = sl_avx512_lanes(k - i);
            __m256i halves = _mm256_maskz_loadu_epi16(lanes, from + 2 * i);
            __m512 wide = dtype == SL_F16 ? _mm512_cvtph_ps(halves)
                                          : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
            _mm512_mask_storeu_ps(to + i, lanes, wide);
        }
    }
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    struct embed_args args = {table, ids, out};
    sl_stream_run(m * table->k < SL_ALONE_WORK ? NULL : stream, m, 8, embed_rows, &args);
}

// --- norm ----------------------------------------------------------------------------------------------------------

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

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    float n = (float)norm->n, mean = norm->kind == SL_NORM_LAYER ? moment(x, norm->n, 0.0f, 1) / n : 0.0f;
    float scale = 1.0f / sqrtf(moment(x, norm->n, mean, 2) / n + norm->eps);
    for (int64_t i = 0; i < norm->n; i += 16) {
        __mmask16 lanes = sl_avx512_lanes(norm->n - i);
        __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(mean));
        v = _mm512_mul_ps(_mm512_mul_ps(v, _mm512_set1_ps(scale)), _mm512_maskz_loadu_ps(lanes, norm->weight + i));
        if (norm->bias != NULL) {
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(lanes, norm->bias + i));
        }
        _mm512_mask_storeu_ps(out + i, lanes, v);
    }
}

static void norm(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    sl_norm_run(stream, (struct sl_norm_rows){norm, norm_vector, x, out, out_stride});
}

// --- rotate --------------------------------------------------------------------------------------------------------

static void rotate_row(const struct sl_rope *rope, const float *cosines, const float *sines, float *x, int n_heads) {
    int half = rope->rotary_dim / 2;
    for (int i = 0; i < half; i += 16) { // the angles stay in registers for all heads
        __mmask16 lanes = sl_avx512_lanes(half - i);
        __m512 c = _mm512_maskz_loadu_ps(lanes, cosines + i);
        __m512 s = _mm512_maskz_loadu_ps(lanes, sines + i);
        float *at = x + i;
        for (int h = 0; h < n_heads; h++, at += rope->head_dim) {
            __m512 a = _mm512_maskz_loadu_ps(lanes, at), b = _mm512_maskz_loadu_ps(lanes, at + half);
            _mm512_mask_storeu_ps(at, lanes, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
            _mm512_mask_storeu_ps(at + half, lanes, _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s)));
        }
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    sl_rotate_run(stream, (struct sl_rotate_rows){rotate_row, rope, cosines, sines, x});
}

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
