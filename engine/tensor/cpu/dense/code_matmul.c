// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/dense/code_matmul.h"

#include <assert.h>
#include <string.h>

#define STRETCH     16  // groups: 12 KiB of x in tiles of 12 rows
#define PANEL_GROUP 4   // panels of a task: a stretch of them is 40 KiB of Q4_K
#define ROW_BLOCK   264 // whole tiles of each tier

struct product {
    struct sl_product of;
    const struct sl_code_kernels *kernels;
};

static int64_t groups_of(const struct sl_matrix *w) {
    return sl_div_up(w->k, SL_CODE_GROUP);
}

// Returns the groups from row to row of x: an odd number, so that rows of a tile do not compete for the same cache lines.
static int64_t row_stride(const struct sl_matrix *w) {
    return groups_of(w) | 1;
}

size_t sl_code_scratch(const struct sl_matrix *w, int64_t m) {
    return (size_t)(m * row_stride(w)) * sizeof(struct sl_code_x);
}

static void split_rows(void *arg, int64_t begin, int64_t end, int) {
    const struct product *product = arg;
    const struct sl_product *a = &product->of;
    int64_t k = a->w->k, whole = k / SL_CODE_GROUP, groups = groups_of(a->w);
    for (int64_t r = a->first_task + begin; r < a->first_task + end; r++) {
        struct sl_code_x *out = (struct sl_code_x *)a->scratch + r * row_stride(a->w);
        const float *x = a->x + r * a->x_stride;
        for (int64_t g = 0; g < whole; g++) {
            product->kernels->split(x + g * SL_CODE_GROUP, &out[g]);
        }
        if (whole < groups) {
            float rest[SL_CODE_GROUP] = {0};
            memcpy(rest, x + whole * SL_CODE_GROUP, (size_t)(k - whole * SL_CODE_GROUP) * sizeof *rest);
            product->kernels->split(rest, &out[whole]);
        }
    }
}

void sl_code_arrange(const struct sl_code_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                     const struct sl_matmul *args, int part, int n_parts) {
    struct product product = {sl_product_of(w, args), kernels};
    int64_t m = args->m, first = m * part / n_parts;
    product.of.first_task = first;
    sl_stream_run(m * w->k < SL_ALONE_WORK ? NULL : stream, m * (part + 1) / n_parts - first, 1, split_rows, &product);
}

static void multiply(const struct product *product, const struct sl_panel_task *task,
                     float sums[][ROW_BLOCK * SL_PANEL]) {
    const struct sl_product *a = &product->of;
    const struct sl_code_kernels *kernels = product->kernels;
    // rows of a tile, balanced so that no tile has only a few
    int64_t even_rows = sl_div_up(task->rows, sl_div_up(task->rows, kernels->tile_rows));
    int64_t n = task->last - task->first, groups = groups_of(a->w), stride = row_stride(a->w);
    struct sl_code_half halves[2 * PANEL_GROUP];
    for (int64_t h = 0; h < 2 * n; h++) {
        halves[h] = sl_code_half_at(a->w, task->first + h / 2, (int)(h % 2));
    }
    for (int64_t p = 0; p < n; p++) {
        sl_panel_sums_start(a, task->first + p, task->row, task->rows, sums[p]);
    }
    int64_t stretch = task->rows > kernels->tile_rows ? STRETCH : groups; // one tile reads a half panel from end to end
    for (int64_t g = 0; g < groups; g += stretch) {
        int64_t count = sl_min(stretch, groups - g);
        for (int64_t r = 0, rows; r < task->rows; r += rows) {
            rows = sl_min(even_rows, task->rows - r);
            const struct sl_code_x *x = (const struct sl_code_x *)a->scratch + (task->row + r) * stride + g;
            for (int64_t h = 0; h < 2 * n; h++) {
                if (halves[h].type != NULL) {
                    size_t read = sl_code_half_bytes(halves[h].type, g * SL_CODE_GROUP);
                    kernels->tiles[halves[h].dtype][rows - 1](halves[h].data + read, x, stride, count,
                                                              sums[h / 2] + r * SL_PANEL + h % 2 * SL_HALF);
                }
            }
        }
    }
    for (int64_t p = 0; p < n; p++) {
        kernels->finish(a, task->first + p, task->row, task->rows, sums[p]);
    }
}

// A task is a (row block, panel group) pair.
static void multiply_tasks(void *arg, int64_t begin, int64_t end, int) {
    const struct product *product = arg;
    float sums[PANEL_GROUP][ROW_BLOCK * SL_PANEL] __attribute__((aligned(64)));
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&product->of.tasks, t);
        multiply(product, &task, sums);
    }
}

void sl_code_matmul(const struct sl_code_kernels *kernels, struct sl_stream *stream, const struct sl_matrix *w,
                    const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct product product = {sl_product_of(w, args), kernels};
    struct sl_product *a = &product.of;
    if (a->m < 1) {
        return;
    }
    if (!args->arranged) {
        sl_code_arrange(kernels, stream, w, args, 0, 1);
    }
    struct sl_stream *used = a->m * a->n_panels * SL_PANEL * w->k < SL_ALONE_WORK ? NULL : stream;
    a->tasks = sl_panel_blocks(stream, a->m, ROW_BLOCK, kernels->tile_rows, a->n_panels, PANEL_GROUP);
    sl_stream_run(used, a->tasks.n, 1, multiply_tasks, &product);
}
