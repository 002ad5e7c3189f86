// SPDX-License-Identifier: Apache-2.0
// Purpose: packs narrow panels, and divides a matmul over them into tasks. See narrow.h.
#include "engine/tensor/cpu/dense/narrow.h"

#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/shared_weights.h"

#define X_STRIDE                                                                                                       \
    (SL_NARROW_BLOCK + 16) // not a power of two: the rows of a tile must not compete for the same lines of a cache
#define ROW_BLOCK   240    // rows of a task
#define PANEL_GROUP 8 // panels of a task: SL_NARROW_BLOCK steps of them, widened, are 128 KiB on the stack and in L2

static enum sl_narrow_form form_of(const struct sl_matrix *w) {
    return w->dtype == SL_F32 ? SL_NARROW_F32 : w->dtype == SL_F16 ? SL_NARROW_F16 : SL_NARROW_BF16;
}

static size_t panel_bytes(const struct sl_matrix *w) {
    return (size_t)w->k * sl_narrow_step_bytes(form_of(w));
}

// --- packing -------------------------------------------------------------------------------------------------------

// Writes row c of a panel; memory for rows past the matrix stays zero.
static void pack_row(const struct sl_matrix *w, int64_t j, int c, char *panel) {
    size_t size = sl_dtype_bytes(w->dtype), step_bytes = SL_NARROW * size;
    char *to = panel + (size_t)(w->dtype == SL_BF16 ? 2 * (c % 8) + c / 8 : c) * size;
    const unsigned char *from = sl_weight_row(w, j);
    for (int64_t i = 0; i < w->k; i++, to += step_bytes) {
        if (size == 2) {
            memcpy(to, from + 2 * i, 2);
        } else {
            memcpy(to, from + 4 * i, 4);
        }
    }
}

static void pack_panels(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_matrix *w = arg;
    size_t bytes = panel_bytes(w);
    (void)member;
    for (int64_t p = begin; p < end; p++) {
        char *panel = (char *)w->packed + (size_t)p * bytes;
        memset(panel, 0, bytes);
        for (int c = 0; c < SL_NARROW && p * SL_NARROW + c < w->n; c++) {
            pack_row(w, p * SL_NARROW + c, c, panel);
        }
    }
    sl_shared_weights_progress_within(w->shared);
}

enum sl_status sl_narrow_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    int64_t n_panels = sl_div_up(matrix->n, SL_NARROW);
    SL_TRY(sl_panels_allocate(matrix, (size_t)n_panels * panel_bytes(matrix), err));
    if (!sl_panels_are_packed(matrix)) {
        sl_stream_run(stream, n_panels, 4, pack_panels, matrix);
    }
    return SL_OK;
}

// --- the sums ------------------------------------------------------------------------------------------------------

struct product {
    const struct sl_narrow_kernels *kernels;
    const struct sl_matrix *w;
    const float *x;
    int64_t x_stride, m;
    float *y;
    int64_t n, y_stride; // columns of y
    bool accumulate;
    struct sl_panel_tasks tasks;
};

// Computes the last panel in a buffer, because it may be wider than the rest of y.
static void tile_ragged(sl_narrow_tile_fn fn, int rows, int columns, const char *weights, struct sl_narrow_x x,
                        int64_t k, struct sl_narrow_y y) {
    float beside[SL_NARROW_ROWS * SL_NARROW] = {0};
    for (int r = 0; r < rows && !y.fresh; r++) {
        memcpy(beside + r * SL_NARROW, y.first + r * y.stride, (size_t)columns * sizeof(float));
    }
    fn(weights, 0, x, k, (struct sl_narrow_y){beside, SL_NARROW, y.fresh});
    for (int r = 0; r < rows; r++) {
        memcpy(y.first + r * y.stride, beside + r * SL_NARROW, (size_t)columns * sizeof(float));
    }
}

// Few rows: a task is a panel group. Every weight is read once and widened in registers.
static void matmul_stream(void *arg, int64_t begin, int64_t end, int member) {
    const struct product *a = arg;
    const struct sl_matrix *w = a->w;
    const struct sl_narrow_choice *choice = &a->kernels->tiles[form_of(w)][a->m - 1];
    size_t stride = panel_bytes(w);
    int64_t last = sl_min(end * a->tasks.panels_per_task, a->tasks.n_panels);
    (void)member;
    for (int64_t p = begin * a->tasks.panels_per_task; p < last;) {
        const char *weights = (const char *)w->packed + (size_t)p * stride;
        const struct sl_narrow_x x = {a->x, a->x_stride};
        const struct sl_narrow_y y = {a->y + p * SL_NARROW, a->y_stride, !a->accumulate};
        int64_t columns = a->n - p * SL_NARROW;
        if (p + choice->wide_panels <= last && columns >= choice->wide_panels * SL_NARROW) {
            choice->wide(weights, stride, x, w->k, y);
            p += choice->wide_panels;
        } else if (columns >= SL_NARROW) {
            choice->one(weights, 0, x, w->k, y);
            p++;
        } else {
            tile_ragged(choice->one, (int)a->m, (int)columns, weights, x, w->k, y);
            p++;
        }
    }
}

// SL_NARROW_BLOCK steps of a task's panels, widened, and the same stretch of the x's of one tile.
struct block {
    float weights[PANEL_GROUP][SL_NARROW_BLOCK * SL_NARROW] __attribute__((aligned(64)));
    float x[SL_NARROW_ROWS * X_STRIDE];
};

// Computes one stretch of k for `rows` rows of a tile and all panels of a task.
static void block_tiles(const struct product *a, struct block *block, const struct sl_panel_task *task, int64_t row,
                        int rows, int64_t k_begin, int64_t k_count) {
    const struct sl_narrow_x x = {block->x, X_STRIDE};
    bool fresh = k_begin == 0 && !a->accumulate;
    sl_narrow_tile_fn fn = a->kernels->tiles[SL_NARROW_F32][rows - 1].one;
    for (int r = 0; r < rows; r++) {
        memcpy(block->x + r * X_STRIDE, a->x + (row + r) * a->x_stride + k_begin, (size_t)k_count * sizeof(float));
    }
    for (int64_t p = task->first; p < task->last; p++) {
        const char *weights = (const char *)block->weights[p - task->first];
        const struct sl_narrow_y y = {a->y + row * a->y_stride + p * SL_NARROW, a->y_stride, fresh};
        int64_t columns = a->n - p * SL_NARROW;
        if (columns >= SL_NARROW) {
            fn(weights, 0, x, k_count, y);
        } else {
            tile_ragged(fn, rows, (int)columns, weights, x, k_count, y);
        }
    }
}

// Many rows: a task is a (row block, panel group) pair.
static void matmul_block(void *arg, int64_t begin, int64_t end, int member) {
    const struct product *a = arg;
    const struct sl_matrix *w = a->w;
    enum sl_narrow_form form = form_of(w);
    size_t stride = panel_bytes(w), step_bytes = sl_narrow_step_bytes(form);
    struct block block;
    (void)member;
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        int64_t first = task.first, last = task.last, row_end = task.row + task.rows;
        for (int64_t i = 0; i < w->k; i += SL_NARROW_BLOCK) {
            int64_t count = sl_min(SL_NARROW_BLOCK, w->k - i);
            for (int64_t p = first; p < last; p++) {
                const char *panel = (const char *)w->packed + (size_t)p * stride;
                a->kernels->widen(form, panel + (size_t)i * step_bytes, count, block.weights[p - first]);
            }
            for (int64_t row = task.row; row < row_end; row += SL_NARROW_ROWS) {
                block_tiles(a, &block, &task, row, (int)sl_min(SL_NARROW_ROWS, row_end - row), i, count);
            }
        }
    }
}

// Computes the sums of args: y = (y +) x W^T.
static void multiply(struct sl_stream *stream, struct product *args) {
    const struct sl_matrix *w = args->w;
    int64_t n_panels = sl_div_up(args->n, SL_NARROW), m = args->m;
    struct sl_stream *used = m * args->n * w->k < SL_ALONE_WORK ? NULL : stream;
    if (m <= SL_NARROW_ROWS) {
        args->tasks = sl_panel_stream(stream, m, n_panels, panel_bytes(w), 4);
        sl_stream_run(used, args->tasks.n, 1, matmul_stream, args);
    } else {
        args->tasks = sl_panel_blocks(stream, m, ROW_BLOCK, SL_NARROW_ROWS, n_panels, PANEL_GROUP);
        sl_stream_run(used, args->tasks.n, 1, matmul_block, args);
    }
}

// --- bias, activation and gate ---------------------------------------------------------------------------------------

// The last pass from sums to y: [m][n] of sums, or [m][2n] of them when the matrix is gated.
struct finish_args {
    const struct product *product;
    float *y;
    int64_t n, y_stride;
};

static void finish_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct finish_args *a = arg;
    const struct product *p = a->product;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        p->kernels->finish(p->w, p->y + r * p->y_stride, a->n, a->y + r * a->y_stride);
    }
}

size_t sl_narrow_scratch(const struct sl_matrix *w, int64_t m) {
    return w->gated ? (size_t)(m * w->n) * sizeof(float) : 0;
}

void sl_narrow_matmul(const struct sl_narrow_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                      const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    if (args->m < 1) {
        return;
    }
    int64_t outputs = args->n_columns > 0 ? args->n_columns : sl_matrix_outputs(w);
    struct product product = {.kernels = kernels,
                              .w = w,
                              .x = args->x,
                              .x_stride = args->x_stride,
                              .m = args->m,
                              .y = w->gated ? args->scratch : args->y,
                              .n = w->gated ? w->n : outputs,
                              .y_stride = w->gated ? w->n : args->y_stride,
                              .accumulate = args->accumulate};
    multiply(stream, &product);
    if (w->gated || w->bias != NULL || w->activation != SL_ACT_NONE) {
        struct finish_args finish = {&product, args->y, outputs, args->y_stride};
        sl_stream_run(args->m * outputs < SL_ALONE_WORK ? NULL : stream, args->m, sl_div_up(1 << 12, outputs),
                      finish_rows, &finish);
    }
}
