// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with AVX-512 in f32, for stored weights of every type.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: W is packed once into panels (panels.h), each k steps of 32 weights in the type of the file; see `forms`. A
 *         tile is some rows by one or more panels of sums in registers; a step multiplies 32 weights by one
 *         x of every row. Few rows are bound by memory: weights are widened in registers as they are read, and one or
 *         two rows take several panels at once so that enough sums are in flight. Many rows are bound by arithmetic:
 *         K_BLOCK steps of a few panels are widened once, stay in L2, and serve all rows of a block; the x's of a tile
 *         are copied together so that they stay in L1.
 *
 * Invariants: every sum starts from 0 (or y) and takes i in ascending order with one fused multiply-add a step. So
 *             neither m, nor the tile, nor the number of threads changes a bit. All types widen exactly.
 */
#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/code_panels.h"
#include "engine/tensor/weights.h"

#define STREAM_ROWS 8  // up to this many rows are computed while the weights stream from memory
#define TILE_ROWS   14 // two registers each, and three more for weights and x
#define WIDE_PANELS 4
#define K_BLOCK     256
#define X_STRIDE    (K_BLOCK + 16) // not a power of two: rows of a tile must not compete for the same cache lines
#define PANEL_GROUP 4 // panels of a task: K_BLOCK steps of them, widened, are 128 KiB on the stack and in L2
#define ROW_BLOCK   (TILE_ROWS * 16)

// --- packing -------------------------------------------------------------------------------------------------------

/*
 * The layout of the 32 weights w[c] of a step in a panel:
 *   F32, F16  in order
 *   BF16      c and c + 16 in the lower and upper half of 32-bit word c: a shift and a mask widen them
 */
enum form { FORM_F32, FORM_F16, FORM_BF16 };

static enum form form_of(const struct sl_matrix *w) {
    return w->dtype == SL_F32 ? FORM_F32 : w->dtype == SL_F16 ? FORM_F16 : FORM_BF16;
}

static inline size_t step_bytes(enum form form) {
    return SL_PANEL * (form == FORM_F32 ? 4 : 2);
}

static size_t panel_bytes(const struct sl_matrix *w) {
    return (size_t)w->k * step_bytes(form_of(w));
}

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    size_t size = sl_dtype_bytes(w->dtype);
    int64_t j = sl_panel_row(w, p, c);
    char *to = panel + (size_t)(w->dtype == SL_BF16 ? 2 * (c % 16) + c / 16 : c) * size;
    const unsigned char *from = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k; i++, to += SL_PANEL * size) {
        if (from == NULL) {
            memset(to, 0, size);
        } else if (size == 2) {
            memcpy(to, from + 2 * i, 2);
        } else {
            memcpy(to, from + 4 * i, 4);
        }
    }
}

enum sl_status sl_avx512_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_code_is(matrix) ? sl_code_pack(stream, matrix, err)
                              : sl_panels_pack(stream, matrix, panel_bytes(matrix), pack_row, err);
}

// --- tiles ---------------------------------------------------------------------------------------------------------

#define INLINE static inline __attribute__((always_inline))

// Loads the 32 weights of a step, widened.
INLINE void load_step(enum form form, const char *weights, __m512 step[2]) {
    if (form == FORM_F32) {
        step[0] = _mm512_loadu_ps((const float *)weights);
        step[1] = _mm512_loadu_ps((const float *)weights + 16);
    } else if (form == FORM_F16) {
        step[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)weights));
        step[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)weights + 1));
    } else {
        __m512i pairs = _mm512_loadu_si512(weights);
        step[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        step[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
    }
}

// The constants of a tile.
struct shape {
    int rows, panels;
    enum form form;
};

struct x_rows {
    const float *first;
    int64_t stride; // floats from row to row
};

/*
 * sums[panels][rows][32] += x[rows][k] W. weights: the first panel. The next panel is
 * `stride` bytes later, and its sums are `sums_stride` floats later. Called with constants only, so that acc stays in
 * registers.
 */
INLINE void tile(struct shape shape, const char *weights, size_t stride, struct x_rows x, int64_t k, float *sums,
                 int64_t sums_stride) {
    const int rows = shape.rows, panels = shape.panels;
    __m512 acc[WIDE_PANELS * TILE_ROWS][2];
    SL_UNROLL
    for (int t = 0; t < panels * rows; t++) {
        acc[t][0] = _mm512_load_ps(sums + t / rows * sums_stride + t % rows * SL_PANEL);
        acc[t][1] = _mm512_load_ps(sums + t / rows * sums_stride + t % rows * SL_PANEL + 16);
    }
    for (int64_t i = 0; i < k; i += 4) {
        SL_UNROLL
        for (int j = 0; j < 4; j++, weights += step_bytes(shape.form)) {
            if (i + j >= k) {
                break;
            }
            SL_UNROLL
            for (int p = 0; p < panels; p++) {
                __m512 step[2];
                load_step(shape.form, weights + (size_t)p * stride, step);
                SL_UNROLL
                for (int r = 0; r < rows; r++) {
                    __m512 xi = _mm512_set1_ps(x.first[r * x.stride + i + j]);
                    acc[p * rows + r][0] = _mm512_fmadd_ps(xi, step[0], acc[p * rows + r][0]);
                    acc[p * rows + r][1] = _mm512_fmadd_ps(xi, step[1], acc[p * rows + r][1]);
                }
            }
        }
    }
    SL_UNROLL
    for (int t = 0; t < panels * rows; t++) {
        _mm512_store_ps(sums + t / rows * sums_stride + t % rows * SL_PANEL, acc[t][0]);
        _mm512_store_ps(sums + t / rows * sums_stride + t % rows * SL_PANEL + 16, acc[t][1]);
    }
}

typedef void (*tile_fn)(const char *weights, size_t stride, struct x_rows x, int64_t k, float *sums,
                        int64_t sums_stride);

#define TILE(name, rows, panels, form)                                                                                 \
    static void name(const char *weights, size_t stride, struct x_rows x, int64_t k, float *sums,                      \
                     int64_t sums_stride) {                                                                            \
        tile((struct shape){rows, panels, form}, weights, stride, x, k, sums, sums_stride);                            \
    }
#define TILES(suffix, form)                                                                                            \
    TILE(tile_1x4_##suffix, 1, 4, form)                                                                                \
    TILE(tile_1x1_##suffix, 1, 1, form)                                                                                \
    TILE(tile_2x2_##suffix, 2, 2, form)                                                                                \
    TILE(tile_2x1_##suffix, 2, 1, form)                                                                                \
    TILE(tile_3x1_##suffix, 3, 1, form)                                                                                \
    TILE(tile_4x1_##suffix, 4, 1, form)                                                                                \
    TILE(tile_5x1_##suffix, 5, 1, form)                                                                                \
    TILE(tile_6x1_##suffix, 6, 1, form)                                                                                \
    TILE(tile_7x1_##suffix, 7, 1, form)                                                                                \
    TILE(tile_8x1_##suffix, 8, 1, form)
TILES(f32, FORM_F32)
TILES(f16, FORM_F16)
TILES(bf16, FORM_BF16)

// Multiplies widened weights by the x's of struct block. Their stride is a constant; otherwise addresses would need
// more registers than exist.
#define BLOCK_TILE(rows)                                                                                               \
    static void block_tile_##rows(const float *weights, const float *x, int64_t k, float *sums) {                      \
        tile((struct shape){rows, 1, FORM_F32}, (const char *)weights, 0, (struct x_rows){x, X_STRIDE}, k, sums, 0);   \
    }
BLOCK_TILE(1)
BLOCK_TILE(2)
BLOCK_TILE(3)
BLOCK_TILE(4)
BLOCK_TILE(5)
BLOCK_TILE(6)
BLOCK_TILE(7)
BLOCK_TILE(8)
BLOCK_TILE(9)
BLOCK_TILE(10)
BLOCK_TILE(11)
BLOCK_TILE(12)
BLOCK_TILE(13)
BLOCK_TILE(14)

// For weights that stream from memory, by form and rows - 1: one panel, and the most panels that the registers hold.
static const struct {
    tile_fn one, wide;
    int wide_panels;
} streams[][STREAM_ROWS] = {
#define STREAMS(suffix)                                                                                                \
    {                                                                                                                  \
        {tile_1x1_##suffix, tile_1x4_##suffix, 4}, {tile_2x1_##suffix, tile_2x2_##suffix, 2},                          \
            {tile_3x1_##suffix, tile_3x1_##suffix, 1}, {tile_4x1_##suffix, tile_4x1_##suffix, 1},                      \
            {tile_5x1_##suffix, tile_5x1_##suffix, 1}, {tile_6x1_##suffix, tile_6x1_##suffix, 1},                      \
            {tile_7x1_##suffix, tile_7x1_##suffix, 1}, {tile_8x1_##suffix, tile_8x1_##suffix, 1},                      \
    }
    [FORM_F32] = STREAMS(f32), [FORM_F16] = STREAMS(f16), [FORM_BF16] = STREAMS(bf16)};

typedef void (*block_tile_fn)(const float *weights, const float *x, int64_t k, float *sums);

static const block_tile_fn block_tiles[TILE_ROWS] = { // by rows - 1
    block_tile_1, block_tile_2, block_tile_3,  block_tile_4,  block_tile_5,  block_tile_6,  block_tile_7,
    block_tile_8, block_tile_9, block_tile_10, block_tile_11, block_tile_12, block_tile_13, block_tile_14};

// --- matmul --------------------------------------------------------------------------------------------------------

// Few rows: a task is a panel group. Every weight is read once and widened in registers.
static void matmul_stream(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    enum form form = form_of(a->w);
    size_t stride = panel_bytes(a->w);
    int wide = streams[form][a->m - 1].wide_panels;
    int64_t last = sl_min(end * a->tasks.panels_per_task, a->n_panels), sums_stride = a->m * SL_PANEL;
    float sums[STREAM_ROWS * SL_PANEL] __attribute__((aligned(64))); // enough for 4 panels of 1 row, or 2 of 2
    (void)member;
    for (int64_t p = begin * a->tasks.panels_per_task; p < last;) {
        int panels = p + wide <= last ? wide : 1;
        const char *weights = (const char *)a->w->packed + (size_t)p * stride;
        for (int i = 0; i < panels; i++) {
            sl_sums_start(a, p + i, 0, a->m, sums + i * sums_stride);
        }
        tile_fn fn = panels == wide ? streams[form][a->m - 1].wide : streams[form][a->m - 1].one;
        fn(weights, stride, (struct x_rows){a->x, a->x_stride}, a->w->k, sums, sums_stride);
        for (int i = 0; i < panels; i++) {
            sl_sums_finish(a, p + i, 0, a->m, sums + i * sums_stride);
        }
        p += panels;
    }
}

// K_BLOCK steps of a task's panels, widened, the same stretch of the x's of one tile, and all sums of the task.
struct block {
    float weights[PANEL_GROUP][K_BLOCK * SL_PANEL];
    float sums[PANEL_GROUP][ROW_BLOCK * SL_PANEL];
    float x[TILE_ROWS * X_STRIDE];
} __attribute__((aligned(64)));

INLINE void widen_as(enum form form, const char *weights, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++, weights += step_bytes(form), out += SL_PANEL) {
        __m512 step[2];
        load_step(form, weights, step);
        _mm512_store_ps(out, step[0]);
        _mm512_store_ps(out + 16, step[1]);
    }
}

// Returns k steps as f32; f32 weights are returned in place.
static const float *widen(enum form form, const char *weights, int64_t k, float *out) {
    switch (form) {
    case FORM_F32:
        return (const float *)weights;
    case FORM_F16:
        widen_as(FORM_F16, weights, k, out);
        break;
    case FORM_BF16:
        widen_as(FORM_BF16, weights, k, out);
        break;
    }
    return out;
}

static void multiply_block(const struct sl_product *a, const struct sl_panel_task *task, struct block *block) {
    int64_t row = task->row, rows = task->rows, first = task->first, last = task->last;
    enum form form = form_of(a->w);
    size_t stride = panel_bytes(a->w);
    // rows of a tile, balanced so that no tile has only a few
    int64_t even_rows = sl_div_up(rows, sl_div_up(rows, TILE_ROWS));
    const float *weights[PANEL_GROUP];
    for (int64_t p = first; p < last; p++) {
        sl_sums_start(a, p, row, rows, block->sums[p - first]);
    }
    for (int64_t i = 0; i < a->w->k; i += K_BLOCK) {
        int64_t count = sl_min(K_BLOCK, a->w->k - i);
        for (int64_t p = first; p < last; p++) {
            const char *panel = (const char *)a->w->packed + (size_t)p * stride;
            weights[p - first] = widen(form, panel + (size_t)i * step_bytes(form), count, block->weights[p - first]);
        }
        for (int64_t r = 0, tile_rows; r < rows; r += tile_rows) {
            tile_rows = sl_min(even_rows, rows - r);
            for (int64_t t = 0; t < tile_rows; t++) {
                memcpy(block->x + t * X_STRIDE, a->x + (row + r + t) * a->x_stride + i, (size_t)count * sizeof(float));
            }
            for (int64_t p = first; p < last; p++) {
                block_tiles[tile_rows - 1](weights[p - first], block->x, count, block->sums[p - first] + r * SL_PANEL);
            }
        }
    }
    for (int64_t p = first; p < last; p++) {
        sl_sums_finish(a, p, row, rows, block->sums[p - first]);
    }
}

// Many rows: a task is a (row block, panel group) pair.
static void matmul_block(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    struct block block;
    (void)member;
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        multiply_block(a, &task, &block);
    }
}

void sl_avx512_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct sl_product a = sl_product_of(w, args);
    if (a.m < 1) {
        return;
    }
    struct sl_stream *used = a.m * a.n_panels * SL_PANEL * w->k < SL_ALONE_WORK ? NULL : stream;
    if (a.m <= STREAM_ROWS) {
        a.tasks = sl_panel_stream(stream, a.m, a.n_panels, panel_bytes(w), WIDE_PANELS);
        sl_stream_run(used, a.tasks.n, 1, matmul_stream, &a);
    } else {
        a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK, TILE_ROWS, a.n_panels, PANEL_GROUP);
        sl_stream_run(used, a.tasks.n, 1, matmul_block, &a);
    }
}
