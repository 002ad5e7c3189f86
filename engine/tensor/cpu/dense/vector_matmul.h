// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: pack and matmul for numbers of every type, in f32, with registers of any width (vector.h); codes are multiplied
 *          by a tier's kernels (code_matmul.h). Each tier includes it once, after it has defined
 *
 *     CODE_KERNELS           its struct sl_code_kernels
 *     STRIP                  outputs of a tile, two or four registers: a panel is one strip after the other
 *     STREAM_ROWS, TILE_ROWS the most rows of a tile while weights stream from memory, and otherwise: 8, 14 or 6, 6
 *     ROW_BLOCK              rows of a task, a multiple of TILE_ROWS
 *     sums_start(product, panel, row, rows, sums), sums_finish(...)    as sl_panel_sums_start(), sl_vector_finish_panel()
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: W is packed once into panels (panels.h), whose strips are k steps of STRIP weights in the type of the file; see
 *         `form`. A tile is some rows by one or more strips of sums in registers; a step multiplies STRIP weights by one
 *         x of every row. Few rows are bound by memory: weights are widened in registers as they are read, and one or
 *         two rows take several strips at once so that enough sums are in flight. Many rows are bound by arithmetic:
 *         K_BLOCK steps of a few panels are widened once, stay in L2, and serve all rows of a block; the x's of a tile
 *         are copied together so that they stay in L1.
 *
 * Invariants: every sum starts from 0 (or y) and takes i in ascending order with one fused multiply-add a step. So
 *             neither m, nor the tile, nor the number of threads changes a bit. All types widen exactly.
 */
#pragma once

#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/simd/vector.h"
#include "engine/tensor/weights.h"

#define K_BLOCK     256
#define X_STRIDE    (K_BLOCK + 16) // not a power of two: rows of a tile must not compete for the same cache lines
#define PANEL_GROUP 4 // panels of a task: K_BLOCK steps of them, widened, are 128 KiB on the stack and in L2

// --- packing -------------------------------------------------------------------------------------------------------

/*
 * The layout of the weights w[c] of a step in a strip:
 *   F32, F16  in order
 *   BF16      c and c + STRIP / 2 in the lower and upper half of 32-bit word c: a shift and a mask widen them
 */
enum form { FORM_F32, FORM_F16, FORM_BF16 };

static enum form form_of(const struct sl_matrix *w) {
    return w->dtype == SL_F32 ? FORM_F32 : w->dtype == SL_F16 ? FORM_F16 : FORM_BF16;
}

static inline size_t step_bytes(int form) {
    return STRIP * (form == FORM_F32 ? 4 : 2);
}

static size_t strip_bytes(const struct sl_matrix *w) {
    return (size_t)w->k * step_bytes(form_of(w));
}

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    size_t size = sl_dtype_bytes(w->dtype);
    int64_t j = sl_panel_row(w, p, c);
    int in_strip = c % STRIP, half = STRIP / 2;
    char *to = panel + (size_t)(c / STRIP) * strip_bytes(w) +
               (size_t)(w->dtype == SL_BF16 ? 2 * (in_strip % half) + in_strip / half : in_strip) * size;
    const unsigned char *from = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k; i++, to += STRIP * size) {
        if (from == NULL) {
            memset(to, 0, size);
        } else if (size == 2) {
            memcpy(to, from + 2 * i, 2);
        } else {
            memcpy(to, from + 4 * i, 4);
        }
    }
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    if (sl_code_is(matrix)) {
        return sl_code_pack(stream, matrix, err);
    }
    return sl_panels_pack(stream, matrix, SL_PANEL / STRIP * strip_bytes(matrix), pack_row, err);
}

// --- tiles ---------------------------------------------------------------------------------------------------------

// Loads the weights of a step, widened.
static inline __attribute__((always_inline)) void load_step(int form, const char *weights, SL_VECTOR *step) {
    enum { REGISTERS = STRIP / SL_VECTOR_FLOATS };
    typedef uint32_t words __attribute__((vector_size(sizeof(SL_VECTOR))));
    SL_UNROLL
    for (int c = 0; c < REGISTERS; c++) {
        if (form == FORM_F32) {
            step[c] = sl_vector_load((const float *)weights + c * SL_VECTOR_FLOATS);
        } else if (form == FORM_F16) {
            step[c] = sl_vector_from_f16((const uint16_t *)weights + c * SL_VECTOR_FLOATS);
        } else {
            words pairs;
            memcpy(&pairs, weights + (size_t)(c % (REGISTERS / 2)) * sizeof pairs, sizeof pairs);
            step[c] = (SL_VECTOR)(c < REGISTERS / 2 ? pairs << 16 : pairs & 0xffff0000u);
        }
    }
}

#define MULTIPLY_ADD sl_vector_multiply_add
#define WHOLE_FOURS  false
#include "engine/tensor/cpu/dense/panel_tiles.h"

// While weights stream from memory, and widened, with the x's of struct block.
TILES(stream_f32, FORM_F32, t->x_stride)
TILES(stream_f16, FORM_F16, t->x_stride)
TILES(stream_bf16, FORM_BF16, t->x_stride)
TILES(block_tiles, FORM_F32, X_STRIDE)

// --- few rows ------------------------------------------------------------------------------------------------------

static const struct tiles *stream_tiles(const struct sl_product *a) {
    static const struct tiles *const by_form[] = {
        [FORM_F32] = stream_f32, [FORM_F16] = stream_f16, [FORM_BF16] = stream_bf16};
    return &by_form[form_of(a->w)][a->m - 1];
}

// Multiplies `panels` panels from p on, some strips at a time.
static void stream_panels(const struct sl_product *a, int64_t p, int64_t panels, int strips, float *sums) {
    size_t stride = strip_bytes(a->w);
    const struct tiles *tiles = stream_tiles(a);
    tile_fn *fn = strips > 1 ? tiles->wide : tiles->one;
    for (int64_t i = 0; i < panels; i++) {
        sums_start(a, p + i, 0, a->m, sums + i * a->m * SL_PANEL);
    }
    for (int64_t s = 0; s < panels * STRIPS; s += strips) {
        fn(&(struct tile){.weights = (const char *)a->w->packed + (size_t)(p * STRIPS + s) * stride,
                          .stride = stride,
                          .x = a->x,
                          .x_stride = a->x_stride,
                          .k = a->w->k,
                          .sums = sums + s / STRIPS * a->m * SL_PANEL + s % STRIPS * STRIP,
                          .panel_sums = a->m * SL_PANEL});
    }
    for (int64_t i = 0; i < panels; i++) {
        sums_finish(a, p + i, 0, a->m, sums + i * a->m * SL_PANEL);
    }
}

// A task is a panel group. Every weight is read once and widened in registers.
static void matmul_stream(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    int wide = stream_tiles(a)->wide_strips;
    int64_t wide_panels = wide > STRIPS ? wide / STRIPS : 1;
    int64_t last = sl_min(end * a->tasks.panels_per_task, a->n_panels);
    float sums[STREAM_ROWS * SL_PANEL] __attribute__((aligned(64))); // enough for 4 panels of 1 row, or 2 of 2
    for (int64_t p = begin * a->tasks.panels_per_task, panels; p < last; p += panels) {
        bool is_wide = p + wide_panels <= last;
        panels = is_wide ? wide_panels : 1;
        stream_panels(a, p, panels, is_wide ? wide : 1, sums);
    }
}

// --- many rows -----------------------------------------------------------------------------------------------------

// K_BLOCK steps of a task's panels, widened, the same stretch of the x's of one tile, and all sums of the task.
struct block {
    float weights[PANEL_GROUP][STRIPS][K_BLOCK * STRIP];
    float sums[PANEL_GROUP][ROW_BLOCK * SL_PANEL];
    float x[TILE_ROWS * X_STRIDE];
} __attribute__((aligned(64)));

INLINE void widen_as(int form, const char *weights, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++, weights += step_bytes(form), out += STRIP) {
        SL_VECTOR step[REGISTERS];
        load_step(form, weights, step);
        SL_UNROLL
        for (int c = 0; c < REGISTERS; c++) {
            sl_vector_store(out + c * SL_VECTOR_FLOATS, step[c]);
        }
    }
}

// Returns k steps of a strip as f32; f32 weights are returned in place.
static const char *widen(enum form form, const char *weights, int64_t k, float *out) {
    switch (form) {
    case FORM_F32:
        return weights;
    case FORM_F16:
        widen_as(FORM_F16, weights, k, out);
        break;
    case FORM_BF16:
        widen_as(FORM_BF16, weights, k, out);
        break;
    }
    return (const char *)out;
}

// Multiplies `count` steps from i on, for all rows of a task.
static void multiply_stretch(const struct sl_product *a, const struct sl_panel_task *task, struct block *block,
                             int64_t i, int64_t count) {
    // rows of a tile, balanced so that no tile has only a few
    int64_t even_rows = sl_div_up(task->rows, sl_div_up(task->rows, TILE_ROWS)), n = task->last - task->first;
    enum form form = form_of(a->w);
    const char *weights[PANEL_GROUP * STRIPS];
    for (int64_t s = 0; s < n * STRIPS; s++) {
        const char *strip = (const char *)a->w->packed + (size_t)(task->first * STRIPS + s) * strip_bytes(a->w);
        weights[s] = widen(form, strip + (size_t)i * step_bytes(form), count, block->weights[s / STRIPS][s % STRIPS]);
    }
    for (int64_t r = 0, rows; r < task->rows; r += rows) {
        rows = sl_min(even_rows, task->rows - r);
        for (int64_t t = 0; t < rows; t++) {
            const float *x = a->x + (task->row + r + t) * a->x_stride + i;
            memcpy(block->x + t * X_STRIDE, x, (size_t)count * sizeof *x);
        }
        for (int64_t s = 0; s < n * STRIPS; s++) {
            float *sums = block->sums[s / STRIPS] + r * SL_PANEL + s % STRIPS * STRIP;
            block_tiles[rows - 1].one(&(struct tile){.weights = weights[s], .x = block->x, .k = count, .sums = sums});
        }
    }
}

// A task is a (row block, panel group) pair.
static void matmul_block(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    struct block block;
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        for (int64_t p = task.first; p < task.last; p++) {
            sums_start(a, p, task.row, task.rows, block.sums[p - task.first]);
        }
        for (int64_t i = 0; i < a->w->k; i += K_BLOCK) {
            multiply_stretch(a, &task, &block, i, sl_min(K_BLOCK, a->w->k - i));
        }
        for (int64_t p = task.first; p < task.last; p++) {
            sums_finish(a, p, task.row, task.rows, block.sums[p - task.first]);
        }
    }
}

static void multiply_numbers(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct sl_product a = sl_product_of(w, args);
    if (a.m < 1) {
        return;
    }
    struct sl_stream *used = a.m * a.n_panels * SL_PANEL * w->k < SL_ALONE_WORK ? NULL : stream;
    if (a.m <= STREAM_ROWS) {
        a.tasks = sl_panel_stream(stream, a.m, a.n_panels, STRIPS * strip_bytes(w), WIDE_STRIPS / STRIPS);
        sl_stream_run(used, a.tasks.n, 1, matmul_stream, &a);
    } else {
        a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK, TILE_ROWS, a.n_panels, PANEL_GROUP);
        sl_stream_run(used, a.tasks.n, 1, matmul_block, &a);
    }
}

// --- all products --------------------------------------------------------------------------------------------------

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return sl_code_is(w) ? sl_code_scratch(w, m) : 0;
}

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    sl_code_arrange(CODE_KERNELS, stream, w, args, part, n_parts);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(CODE_KERNELS, stream, w, args);
    } else {
        multiply_numbers(stream, w, args);
    }
}
