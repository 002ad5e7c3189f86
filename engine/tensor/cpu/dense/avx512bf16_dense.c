// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with VDPBF16PS, for bf16 weights.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: x is rounded to bf16 once a call. W is packed into panels (panels.h) of pairs: a register holds two of k for 16
 *         rows of W and is multiplied by one pair of x, broadcast. A tile is some rows of x by a panel, two registers of
 *         sums for each row; one or two rows take several panels at once so that enough sums are in flight.
 *
 *         A task is a block of rows by a few panels, one stretch of k after the other. A stretch of x for a tile stays
 *         in L1 and is multiplied by every panel; the panels' stretches stay in L2 and serve all tiles. With few rows
 *         there is one tile, and W streams from memory once.
 *
 * Invariants: an element's sum is one chain of VDPBF16PS over the pairs in ascending order, from 0 or y, for any m:
 *             between stretches it passes through memory as the f32 that it is. VDPBF16PS rounds to nearest even and
 *             takes subnormals as zeros.
 *
 * Processors: AMD from Zen 4 on issues VDPBF16PS as often as multiply-adds. From 128 rows on, bf16 products run at 2.2
 *        times avx512's rate; one row runs at the rate of memory (`kernels_matmul --time TIER 1`). Sapphire and
 *        Emerald Rapids issue it a quarter as often: there, avx512's rate is 1.6 times this one's.
 */
#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/code_panels.h"
#include "engine/tensor/cpu/dense/panels.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/weights.h"

// A step of a panel is two of k for its 32 weights, [32][2] bf16. A group is the steps of SL_WEIGHT_GROUP of k; the last
// one is padded with zeros.
#define PAIR_STEPS       (SL_WEIGHT_GROUP / 2)
#define PAIR_STEP_BYTES  (2 * SL_PANEL * 2L)
#define PAIR_GROUP_BYTES (PAIR_STEPS * PAIR_STEP_BYTES)

#define TILE_ROWS      14 // two registers each, and three more for weights and x
#define STRETCH_GROUPS 16 // 32 KiB for each panel
#define PANEL_GROUP    4  // panels of a task: their stretches are 128 KiB in L2
#define ROW_BLOCK      (TILE_ROWS * 16)
// Pairs of a row of x in a stretch. Not a power of two: rows of a tile must not compete for the same cache lines.
#define X_STRIDE (STRETCH_GROUPS * PAIR_STEPS + 16)

// --- tiles ---------------------------------------------------------------------------------------------------------

static inline size_t step_bytes(int form) {
    (void)form; // there is one
    return PAIR_STEP_BYTES;
}

static inline __attribute__((always_inline)) void load_step(int, const char *weights, __m512 step[2]) {
    step[0] = _mm512_load_ps(weights);
    step[1] = _mm512_load_ps(weights + 64);
}

#define STRIP                          SL_PANEL
#define MULTIPLY_ADD(pair, pairs, sum) _mm512_dpbf16_ps(sum, (__m512bh)(pair), (__m512bh)(pairs))
#define WHOLE_FOURS                    true
#include "engine/tensor/cpu/dense/panel_tiles.h"

TILES(pair_tiles, 0, X_STRIDE)

// --- x into pairs --------------------------------------------------------------------------------------------------

// Returns the groups of a stretch. All stretches have equal length, but the last one may be shorter.
static int64_t stretch_groups(const struct sl_matrix *w) {
    int64_t groups = sl_weight_groups(w->k);
    return sl_div_up(groups, sl_div_up(groups, STRETCH_GROUPS));
}

// Returns true for weights that this file multiplies.
static bool is_pairs(const struct sl_matrix *w) {
    return !sl_code_is(w) && w->dtype == SL_BF16;
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    if (!is_pairs(w)) {
        return sl_code_is(w) ? sl_code_scratch(w, m) : 0;
    }
    return (size_t)(sl_div_up(sl_weight_groups(w->k), stretch_groups(w)) * m * X_STRIDE) * sizeof(float);
}

// Returns row r of x from group g on, to the end of its stretch: [stretch][m][X_STRIDE] pairs, each in the place of a float.
static inline float *x_pairs(const struct sl_product *a, int64_t r, int64_t g) {
    int64_t length = stretch_groups(a->w);
    return (float *)a->scratch + (g / length * a->m + r) * X_STRIDE + g % length * PAIR_STEPS;
}

static void round_x(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    for (int64_t r = a->first_task + begin; r < a->first_task + end; r++) {
        const float *x = a->x + r * a->x_stride;
        for (int64_t i = 0; i < a->w->k; i += SL_WEIGHT_GROUP) {
            __m512 lo = _mm512_maskz_loadu_ps(sl_avx512_lanes(a->w->k - i), x + i);
            __m512 hi = _mm512_maskz_loadu_ps(sl_avx512_lanes(a->w->k - i - 16), x + i + 16);
            _mm512_store_si512(x_pairs(a, r, i / SL_WEIGHT_GROUP), (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
}

// --- matmul --------------------------------------------------------------------------------------------------------

static void multiply(const struct sl_product *a, const struct sl_panel_task *task, float sums[][ROW_BLOCK * SL_PANEL]) {
    int64_t row = task->row, rows = task->rows, first = task->first, n = task->last - task->first;
    // rows of a tile, balanced so that no tile has only a few
    int64_t even_rows = sl_div_up(rows, sl_div_up(rows, TILE_ROWS));
    int64_t groups = sl_weight_groups(a->w->k), length = stretch_groups(a->w);
    size_t stride = (size_t)groups * PAIR_GROUP_BYTES;
    for (int64_t p = 0; p < n; p++) {
        sl_sums_start(a, first + p, row, rows, sums[p]);
    }
    for (int64_t g = 0, count; g < groups; g += count) {
        count = sl_min(length, groups - g);
        const char *weights = (const char *)a->w->packed + (size_t)first * stride + (size_t)g * PAIR_GROUP_BYTES;
        for (int64_t r = 0, tile_rows; r < rows; r += tile_rows) {
            tile_rows = sl_min(even_rows, rows - r);
            const struct tiles *tiles = &pair_tiles[tile_rows - 1];
            for (int64_t p = 0, panels; p < n; p += panels) {
                panels = p + tiles->wide_strips <= n ? tiles->wide_strips : 1;
                tile_fn *fn = panels == tiles->wide_strips ? tiles->wide : tiles->one;
                fn(&(struct tile){.weights = weights + (size_t)p * stride,
                                  .stride = stride,
                                  .x = x_pairs(a, row + r, g),
                                  .k = count * PAIR_STEPS,
                                  .sums = sums[p] + r * SL_PANEL,
                                  .panel_sums = ROW_BLOCK * SL_PANEL});
            }
        }
    }
    for (int64_t p = 0; p < n; p++) {
        sl_sums_finish(a, first + p, row, rows, sums[p]);
    }
}

// A task is a (row block, panel group) pair.
static void multiply_tasks(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    float sums[PANEL_GROUP][ROW_BLOCK * SL_PANEL] __attribute__((aligned(64)));
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        multiply(a, &task, sums);
    }
}

static bool arranges(const struct sl_matrix *w) {
    return sl_code_is(w) || is_pairs(w);
}

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    if (sl_code_is(w)) {
        sl_code_arrange(&sl_vnni_code_kernels, stream, w, args, part, n_parts);
        return;
    }
    struct sl_product a = sl_product_of(w, args);
    a.first_task = a.m * part / n_parts;
    sl_stream_run(a.m * w->k < SL_ALONE_WORK ? NULL : stream, a.m * (part + 1) / n_parts - a.first_task, 8, round_x,
                  &a);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (sl_code_is(w)) {
        sl_code_matmul(&sl_vnni_code_kernels, stream, w, args);
        return;
    }
    if (!is_pairs(w)) {
        sl_avx512_matmul(stream, w, args);
        return;
    }
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct sl_product a = sl_product_of(w, args);
    if (a.m < 1) {
        return;
    }
    if (!args->arranged) {
        arrange(stream, w, args, 0, 1);
    }
    a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK, TILE_ROWS, a.n_panels, PANEL_GROUP);
    bool alone = a.m * a.n_panels * SL_PANEL * w->k < SL_ALONE_WORK;
    sl_stream_run(alone ? NULL : stream, a.tasks.n, 1, multiply_tasks, &a);
}

static void pack_row(const struct sl_matrix *w, int64_t p, int c, char *panel) {
    int64_t j = sl_panel_row(w, p, c);
    const unsigned char *row = j >= 0 ? sl_weight_row(w, j) : NULL;
    for (int64_t i = 0; i < w->k && row != NULL; i += 2) {
        memcpy(panel + i / 2 * PAIR_STEP_BYTES + 4L * c, row + 2 * i, (size_t)sl_min(2, w->k - i) * 2);
    }
}

static enum sl_status pack_pairs(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return sl_panels_pack(stream, matrix, (size_t)sl_weight_groups(matrix->k) * PAIR_GROUP_BYTES, pack_row, err);
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return is_pairs(matrix) ? pack_pairs(stream, matrix, err) : sl_avx512_pack(stream, matrix, err);
}

void sl_avx512bf16_dense_fill(struct sl_ops *ops) { // tier avx512 fills the rest, and frees what either packs
    ops->widened = SL_BF16;
    ops->pack = pack;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = arranges;
    ops->arrange = arrange;
    ops->matmul = matmul;
}
