// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: embed, norm and rotate with registers of any width (vector.h). Each tier includes it once, after it has defined
 *
 *     moment(x, n, mean, power)    sum_i (x[i] - mean)^power for power 1 or 2, added in a fixed order
 *
 * Invariants: an element's bits depend on its own row alone: the last elements of a row go through the same
 *             instructions as the others.
 */
#pragma once

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/dense/rows.h"
#include "engine/tensor/cpu/simd/vector.h"
#include "engine/tensor/weights.h"

// --- embed ---------------------------------------------------------------------------------------------------------

struct embed_args {
    const struct sl_matrix *table;
    const int32_t *ids;
    float *out;
};

// Widens the first n of the halves.
static inline SL_VECTOR widen_first(enum sl_dtype dtype, const uint16_t *from, int64_t n) {
    uint16_t halves[SL_VECTOR_FLOATS] = {0};
    if (n < SL_VECTOR_FLOATS) {
        from = memcpy(halves, from, (size_t)n * sizeof *from);
    }
    return dtype == SL_F16 ? sl_vector_from_f16(from) : sl_vector_from_bf16(from);
}

static void embed_rows(void *arg, int64_t begin, int64_t end, int) {
    const struct embed_args *a = arg;
    const struct sl_matrix *table = a->table;
    for (int64_t r = begin; r < end; r++) {
        assert(a->ids[r] >= 0 && a->ids[r] < table->n);
        const void *row = sl_weight_row(table, a->ids[r]);
        float *to = a->out + r * table->k;
        if (sl_dtype_is_codes(table->dtype)) {
            sl_weight_widen_row(table, a->ids[r], to);
        } else if (table->dtype == SL_F32) {
            memcpy(to, row, (size_t)table->k * sizeof *to);
        } else {
            for (int64_t i = 0; i < table->k; i += SL_VECTOR_FLOATS) {
                int64_t left = table->k - i;
                sl_vector_store_first(to + i, left, widen_first(table->dtype, (const uint16_t *)row + i, left));
            }
        }
    }
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    struct embed_args args = {table, ids, out};
    sl_stream_run(m * table->k < SL_ALONE_WORK ? NULL : stream, m, 8, embed_rows, &args);
}

// --- norm ----------------------------------------------------------------------------------------------------------

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    float n = (float)norm->n, mean = norm->kind == SL_NORM_LAYER ? moment(x, norm->n, 0.0f, 1) / n : 0.0f;
    float scale = 1.0f / sqrtf(moment(x, norm->n, mean, 2) / n + norm->eps);
    for (int64_t i = 0; i < norm->n; i += SL_VECTOR_FLOATS) {
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

// --- rotate --------------------------------------------------------------------------------------------------------

static void rotate_row(const struct sl_rope *rope, const float *cosines, const float *sines, float *x, int n_heads) {
    int half = rope->rotary_dim / 2;
    for (int i = 0; i < half; i += SL_VECTOR_FLOATS) { // the angles stay in registers for all heads
        SL_VECTOR c = sl_vector_load_first(cosines + i, half - i), s = sl_vector_load_first(sines + i, half - i);
        float *at = x + i;
        for (int h = 0; h < n_heads; h++, at += rope->head_dim) {
            SL_VECTOR a = sl_vector_load_first(at, half - i), b = sl_vector_load_first(at + half, half - i);
            sl_vector_store_first(at, half - i, a * c - b * s);
            sl_vector_store_first(at + half, half - i, b * c + a * s);
        }
    }
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    sl_rotate_run(stream, (struct sl_rotate_rows){rotate_row, rope, cosines, sines, x});
}
