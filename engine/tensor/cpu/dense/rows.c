// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/dense/rows.h"

#include "engine/tensor/cpu/dense/panels.h"

#define TASK_FLOATS (1 << 14)

static void normalize(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_norm_rows *a = arg;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t g = 0; g < a->x.n; g++) {
            int64_t column = g * a->norm->n;
            a->vector(a->norm, a->x.at + r * a->x.stride + column, a->out + r * a->out_stride + column);
        }
    }
}

void sl_norm_run(struct sl_stream *stream, struct sl_norm_rows rows) {
    int64_t m = rows.x.m, row = rows.norm->n * rows.x.n;
    sl_stream_run(m * row < SL_ALONE_WORK ? NULL : stream, m, sl_div_up(TASK_FLOATS, row), normalize, &rows);
}

static void rotate(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_rotate_rows *a = arg;
    int64_t half = a->rope->rotary_dim / 2;
    for (int64_t r = begin; r < end; r++) {
        a->row(a->rope, a->cosines + r * half, a->sines + r * half, a->x.at + r * a->x.stride, a->x.n);
    }
}

void sl_rotate_run(struct sl_stream *stream, struct sl_rotate_rows rows) {
    int64_t m = rows.x.m, row = (int64_t)rows.x.n * rows.rope->rotary_dim;
    sl_stream_run(m * row < SL_ALONE_WORK ? NULL : stream, m, 8, rotate, &rows);
}
