// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: panels, the unit in which codes, and on the AVX-512 tiers and amx all weights, are stored and multiplied: 32
 *          rows of W. A row of a panel's sums fills two registers of AVX-512.
 *
 * Design: panel p of a plain matrix has rows 32 p .. 32 p + 31 of W, and gives the same columns of y. A panel of a
 *         gated matrix has 16 rows of G and the 16 rows of U that belong to them, and gives 16 columns of y: the task
 *         that computes a panel can apply the gate without another pass over memory.
 */
#pragma once

#include "engine/tensor/ops.h"

#define SL_PANEL      32 // rows of W
#define SL_PANEL_HALF 16 // the floats of a register

#define SL_ALONE_WORK (1 << 16) // multiply-adds, or elements; below this, waking a team costs more than it saves

static inline int64_t sl_div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t sl_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Returns how many columns of y a panel gives.
static inline int64_t sl_panel_outputs(const struct sl_matrix *w) {
    return w->gated ? SL_PANEL_HALF : SL_PANEL;
}

// Returns how many panels give the first `outputs` columns of y.
static inline int64_t sl_panel_count(const struct sl_matrix *w, int64_t outputs) {
    return sl_div_up(outputs, sl_panel_outputs(w));
}

// Returns the row of W that is row c of panel p, or -1 where the last panel is padded.
static inline int64_t sl_panel_row(const struct sl_matrix *w, int64_t p, int c) {
    if (!w->gated) {
        return p * SL_PANEL + c < w->n ? p * SL_PANEL + c : -1;
    }
    int64_t output = p * SL_PANEL_HALF + c % SL_PANEL_HALF;
    return output >= w->n / 2 ? -1 : c < SL_PANEL_HALF ? output : w->n / 2 + output;
}

// Writes row c of panel p (zeros where it is padded) into the panel's memory, which is zero.
typedef void (*sl_pack_row_fn)(const struct sl_matrix *w, int64_t p, int c, char *panel);

// Packs w->packed: panels of panel_bytes, aligned to 64, in huge pages where they are large enough. Returns
// what sl_panels_allocate() does.
enum sl_status sl_panels_pack(struct sl_stream *stream, struct sl_matrix *w, size_t panel_bytes,
                              sl_pack_row_fn pack_row, struct sl_error *err);
// Allocates the same memory without packing. Raise SL_PACKED_LAYOUT (engine/tensor/shared_weights.h) if what any tier packs into it changes. SL_ERR_PEER_STALE: w->shared is for other
// matrices.
enum sl_status sl_panels_allocate(struct sl_matrix *w, size_t bytes, struct sl_error *err);
// Returns true if another process has already packed what was allocated: it must not be written.
bool sl_panels_are_packed(const struct sl_matrix *w);
void sl_panels_free(struct sl_matrix *w);

/*
 * The tasks of a product: groups of panels within blocks of rows; the groups of a block follow each other. A product of
 * few rows has one block, and its tasks read each weight once.
 */
struct sl_panel_tasks {
    int64_t m, n_panels; // of the product
    int64_t rows_per_task, panels_per_task, n_panel_groups;
    int64_t n;
};

// Divides a product of few rows: a task streams 64 KiB or more, in multiples of `wide` panels, or less where members
// would get no task.
struct sl_panel_tasks sl_panel_stream(const struct sl_stream *stream, int64_t m, int64_t n_panels, size_t panel_bytes,
                                      int64_t wide);
// Divides a product of many rows: at most row_block rows, whole tiles of them, by at most panel_group panels. There are
// at least four tasks for each member, if there are enough panels.
struct sl_panel_tasks sl_panel_blocks(const struct sl_stream *stream, int64_t m, int64_t row_block, int64_t tile_rows,
                                      int64_t n_panels, int64_t panel_group);

// The rows and panels that task t computes.
struct sl_panel_task {
    int64_t row, rows, first, last; // panels [first, last)
};
static inline struct sl_panel_task sl_panel_task(const struct sl_panel_tasks *tasks, int64_t t) {
    int64_t row = t / tasks->n_panel_groups * tasks->rows_per_task;
    int64_t first = t % tasks->n_panel_groups * tasks->panels_per_task;
    return (struct sl_panel_task){row, sl_min(tasks->rows_per_task, tasks->m - row), first,
                                  sl_min(first + tasks->panels_per_task, tasks->n_panels)};
}

/*
 * Quantizes group g of row c of panel p into codes_out[SL_WEIGHT_GROUP], with zeros where the row or the panel is
 * padded. Returns the scale (f16).
 */
uint16_t sl_panel_quantize(const struct sl_matrix *w, int64_t p, int c, int64_t g, int8_t *codes_out);

// One product; its tasks compute (rows, panels) blocks.
struct sl_product {
    const struct sl_matrix *w;
    const float *x;
    int64_t x_stride, m;
    float *y;
    int64_t y_stride;
    int64_t outputs; // columns of y
    bool accumulate;
    int64_t n_panels;
    struct sl_panel_tasks tasks;
    void *scratch;
    int64_t first_task; // the first task of a part of x
};

static inline struct sl_product sl_product_of(const struct sl_matrix *w, const struct sl_matmul *args) {
    int64_t outputs = args->n_columns > 0 ? args->n_columns : sl_matrix_outputs(w);
    return (struct sl_product){.w = w,
                               .x = args->x,
                               .x_stride = args->x_stride,
                               .m = args->m,
                               .y = args->y,
                               .y_stride = args->y_stride,
                               .outputs = outputs,
                               .accumulate = args->accumulate,
                               .n_panels = sl_panel_count(w, outputs),
                               .scratch = args->scratch};
}

// Sets the sums of a panel, [rows][SL_PANEL] of the rows from `row` on, to 0, or to y where the product adds to it. Fetches
// the lines of y that the sums will be written to: a large y has left the second-level cache.
void sl_panel_sums_start(const struct sl_product *a, int64_t p, int64_t row, int64_t rows, float *sums);
