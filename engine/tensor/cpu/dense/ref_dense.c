// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the dense operations as plain C that reads like the formulas of engine/tensor/ops.h. Tests compare every
 *          other tier with it.
 *
 * Design: stored weights are not packed: rows are read where the model file is mapped, at any alignment. Products with
 *         codes are in plain_codes.c. Sums are f32, in ascending order of k, and start from y
 *         where matmul accumulates: every tier keeps this order.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/rope_angles.h"
#include "engine/tensor/weights.h"

// --- weights -------------------------------------------------------------------------------------------------------

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    matrix->packed = NULL;
    matrix->packed_bytes = 0;
    return sl_code_is(matrix) ? sl_code_pack(stream, matrix, err) : SL_OK;
}

static enum sl_status pack_rows(struct sl_stream *, struct sl_matrix *matrix, struct sl_error *) {
    matrix->packed = NULL;
    return SL_OK;
}

// --- matmul --------------------------------------------------------------------------------------------------------

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return sl_code_is(w) ? sl_code_scratch(w, m) : 0;
}

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    sl_code_arrange(&sl_plain_code_kernels, stream, w, args, part, n_parts);
}

// Returns start + sum_i x[i] W[j][i] + bias[j].
static float product(const struct sl_matrix *w, int64_t j, const float *x, float start) {
    float sum = start;
    const unsigned char *row = sl_weight_row(w, j);
    for (int64_t i = 0; i < w->k; i++) {
        sum += x[i] * sl_weight_element(row, w->dtype, i);
    }
    return w->bias != NULL ? sum + w->bias[j] : sum;
}

struct matmul_task {
    const struct sl_matrix *w;
    struct sl_matmul args;
};

static void matmul_columns(void *arg, int64_t begin, int64_t end, int) {
    const struct matmul_task *task = arg;
    const struct sl_matrix *w = task->w;
    for (int64_t j = begin; j < end; j++) {
        for (int64_t r = 0; r < task->args.m; r++) {
            const float *x = task->args.x + r * task->args.x_stride;
            float *y = task->args.y + r * task->args.y_stride + j;
            float value = sl_activate(w->activation, product(w, j, x, task->args.accumulate ? *y : 0.0f));
            *y = w->gated ? value * product(w, w->n / 2 + j, x, 0.0f) : value;
        }
    }
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(&sl_plain_code_kernels, stream, w, args);
        return;
    }
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct matmul_task task = {w, *args};
    sl_stream_run(stream, args->n_columns > 0 ? args->n_columns : sl_matrix_outputs(w), 16, matmul_columns, &task);
}

// --- embed, norm and positions ---------------------------------------------------------------------------------------

static void embed(struct sl_stream *, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    for (int64_t r = 0; r < m; r++) {
        assert(ids[r] >= 0 && ids[r] < table->n);
        sl_weight_widen_row(table, ids[r], out + r * table->k);
    }
}

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    double mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < norm->n && norm->kind == SL_NORM_LAYER; i++) {
        mean += (double)x[i] / (double)norm->n;
    }
    for (int64_t i = 0; i < norm->n; i++) {
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    float scale = (float)(1.0 / sqrt(squares / (double)norm->n + (double)norm->eps));
    for (int64_t i = 0; i < norm->n; i++) {
        float y = (float)((double)x[i] - mean) * scale * norm->weight[i];
        out[i] = norm->bias != NULL ? y + norm->bias[i] : y;
    }
}

static void norm(struct sl_stream *, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    for (int64_t r = 0; r < x.m; r++) {
        for (int64_t g = 0; g < x.n; g++) {
            norm_vector(norm, x.at + r * x.stride + g * norm->n, out + r * out_stride + g * norm->n);
        }
    }
}

struct angles_args {
    const struct sl_rope *rope;
    const int64_t *positions;
    float *cosines, *sines;
};

static void angles_rows(void *arg, int64_t begin, int64_t end, int) {
    const struct angles_args *a = arg;
    int half = a->rope->rotary_dim / 2;
    for (int64_t r = begin; r < end; r++) {
        sl_rope_angles(a->rope, a->positions[r], a->cosines + r * half, a->sines + r * half);
    }
}

static void angles(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    struct angles_args args = {rope, positions, cosines, sines};
    sl_stream_run(m < 8 ? NULL : stream, m, 8, angles_rows, &args);
}

// (a, b) = (x[i], x[i + half]) becomes (a cos - b sin, b cos + a sin) for the angle i of the row's position
static void rotate(struct sl_stream *, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    int half = rope->rotary_dim / 2;
    for (int64_t r = 0; r < x.m; r++, cosines += half, sines += half) {
        for (int h = 0; h < x.n; h++) {
            float *head = x.at + r * x.stride + (int64_t)h * rope->head_dim;
            for (int i = 0; i < half; i++) {
                float a = head[i], b = head[i + half];
                head[i] = a * cosines[i] - b * sines[i];
                head[i + half] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

void sl_ref_dense_fill(struct sl_ops *ops) {
    ops->widened = SL_F16;
    ops->keeps_codes = true;
    ops->pack = pack;
    ops->unpack = sl_panels_free;
    ops->pack_rows = pack_rows;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = sl_code_is;
    ops->arrange = arrange;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->angles = angles;
    ops->rotate = rotate;
}
