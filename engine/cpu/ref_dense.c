// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the dense operations as plain C that reads like the formulas of engine/ops.h. Every other tier is held to
 * it.
 *
 * Design: nothing is packed: matrices are read where the model file is mapped, whatever the alignment there. Sums are
 *         f32, in ascending order of k, and start from y where matmul accumulates: the order that every tier keeps.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "engine/cpu/half.h"
#include "engine/cpu/tier.h"

// Element i of a tensor in a file: not necessarily aligned.
static float element(const void *source, enum sl_dtype dtype, int64_t i) {
    const unsigned char *bytes = source;
    uint16_t half;
    float value;
    switch (dtype) {
    case SL_F16:
        memcpy(&half, bytes + 2 * i, sizeof half);
        return sl_f16_to_f32(half);
    case SL_BF16:
        memcpy(&half, bytes + 2 * i, sizeof half);
        return sl_bf16_to_f32(half);
    case SL_F32:
        break;
    }
    memcpy(&value, bytes + 4 * i, sizeof value);
    return value;
}

static enum sl_status pack(struct sl_team *team, struct sl_matrix *matrix, struct sl_error *err) {
    (void)team;
    (void)err;
    matrix->packed = NULL;
    matrix->packed_bytes = 0;
    return SL_OK;
}

static void unpack(struct sl_matrix *matrix) {
    (void)matrix;
}

// y[r][j] (+)= sum_i x[r][i] W[j][i]
struct matmul_args {
    const struct sl_matrix *w;
    const float *x;
    int64_t m;
    float *y;
    bool accumulate;
};

static void matmul_columns(void *arg, int64_t begin, int64_t end, int member) {
    const struct matmul_args *a = arg;
    (void)member;
    for (int64_t j = begin; j < end; j++) {
        for (int64_t r = 0; r < a->m; r++) {
            float sum = a->accumulate ? a->y[r * a->w->n + j] : 0.0f;
            for (int64_t i = 0; i < a->w->k; i++) {
                sum += a->x[r * a->w->k + i] * element(a->w->source, a->w->dtype, j * a->w->k + i);
            }
            a->y[r * a->w->n + j] = sum;
        }
    }
}

static void matmul(struct sl_team *team, const struct sl_matrix *w, const float *x, int64_t m, float *y,
                   bool accumulate) {
    struct matmul_args args = {w, x, m, y, accumulate};
    sl_team_run(team, w->n, 16, matmul_columns, &args);
}

static void embed(struct sl_team *team, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    (void)team;
    for (int64_t r = 0; r < m; r++) {
        assert(ids[r] >= 0 && ids[r] < table->n);
        for (int64_t i = 0; i < table->k; i++) {
            out[r * table->k + i] = element(table->source, table->dtype, ids[r] * table->k + i);
        }
    }
}

// out[r][i] = x[r][i] / sqrt(mean_i x[r][i]^2 + eps) * weight[i]
static void rmsnorm(struct sl_team *team, const float *x, const float *weight, float eps, int64_t m, int64_t n,
                    float *out) {
    (void)team;
    for (int64_t r = 0; r < m; r++) {
        double squares = 0.0;
        for (int64_t i = 0; i < n; i++) {
            squares += (double)x[r * n + i] * x[r * n + i];
        }
        float scale = (float)(1.0 / sqrt(squares / (double)n + eps));
        for (int64_t i = 0; i < n; i++) {
            out[r * n + i] = x[r * n + i] * scale * weight[i];
        }
    }
}

// (a, b) = (x[i], x[i + d/2]) becomes (a cos - b sin, b cos + a sin) for the angle i of the row's position
static void rotate(struct sl_team *team, const struct sl_rope *rope, float *x, int64_t m, int n_heads, int64_t stride,
                   const int64_t *positions) {
    (void)team;
    int half = rope->head_dim / 2;
    float cosines[SL_MAX_HEAD_DIM / 2], sines[SL_MAX_HEAD_DIM / 2];
    assert(rope->head_dim <= SL_MAX_HEAD_DIM);
    for (int64_t r = 0; r < m; r++) {
        sl_rope_angles(rope, positions[r], cosines, sines);
        for (int h = 0; h < n_heads; h++) {
            float *head = x + r * stride + (int64_t)h * rope->head_dim;
            for (int i = 0; i < half; i++) {
                float a = head[i], b = head[i + half];
                head[i] = a * cosines[i] - b * sines[i];
                head[i + half] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

// gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
static void silu_mul(struct sl_team *team, float *gate, const float *up, int64_t count) {
    (void)team;
    for (int64_t i = 0; i < count; i++) {
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

// x[i] = x[i] / (1 + exp(-x[i]))
static void silu(struct sl_team *team, float *x, int64_t count) {
    (void)team;
    for (int64_t i = 0; i < count; i++) {
        x[i] = x[i] / (1.0f + expf(-x[i]));
    }
}

void sl_ref_dense_fill(struct sl_ops *ops) {
    ops->pack = pack;
    ops->unpack = unpack;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->rmsnorm = rmsnorm;
    ops->rotate = rotate;
    ops->silu_mul = silu_mul;
    ops->silu = silu;
}
