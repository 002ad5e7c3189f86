// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with the tile unit, for bf16 and quantized weights.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: x is rounded to bf16 once a call, into tiles of 16 tokens [step][16 pairs of k][tokens][2]. A tile product
 *         multiplies 16 rows of W by 16 tokens over a step of 32 of k (amx_pack.h): 16 cycles of the tile unit, for which
 *         it may load one tile. So two tiles of W meet two of x, and the four sums stay in tile registers.
 *
 *         Many rows: a task is a block of rows by a few panels, stretch of k by stretch of k. A stretch of a panel lies in
 *         L1 while the tokens stream past it from L2. What streams is loaded with the hint that it will not be needed
 *         again (TILELOADDT1): it stays out of L1, and a stretch may fill nearly all of L1, which makes sums that pass
 *         through memory between stretches rare. Blocks are as high as L2 allows: W comes from memory once for each.
 *         Few rows: tasks are panels; W streams by, from memory, once, and sums stay in registers for all of k.
 *
 * Invariants: an element's sum is one chain of TDPBF16PS over the steps in ascending order, from 0, for any m: between
 *         stretches it passes through memory as the f32 that it is. A y that it is added to comes last: starting from it
 *         would be another transposition. What is in the other rows and columns of a tile does not touch it. TDPBF16PS
 *         rounds to nearest even and takes subnormals as zeros.
 * Threads: tile registers are configured and released within each call of a task.
 */
#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/dense/amx_pack.h"
#include "tensor/cpu/dense/avx512_dense.h"
#include "tensor/cpu/dense/avx512_sums.h"
#include "tensor/cpu/dense/fills.h"
#include "tensor/cpu/simd/amx_tile.h"
#include "tensor/cpu/simd/avx512_transpose.h"

#define TOKENS        16  // of a tile
#define STREAM_ROWS   32  // at most so many rows are computed as the weights stream by
#define STREAM_STEPS  4   // that quantized weights are made into tiles at once, then
#define STRETCH_STEPS 20  // 40 KiB of L1's 48
#define ROW_BLOCK     512 // of a task: a stretch of their x is 640 KiB in L2 ...
#define PANEL_GROUP   8   // ... and their sums for so many panels 512 KiB, on the stack
#define PACK_STEPS    8   // of x at once

#define TILE_FLOATS (SL_AMX_TILE_BYTES / (int64_t)sizeof(float))

// --- tile registers ------------------------------------------------------------------------------------------------

// By the tokens of a tile. 0 to 3: sums [16 rows of W][tokens], f32. 4, 5: W. 6, 7: x.
#define CONFIG(tokens)                                                                                                 \
    [tokens] = {                                                                                                       \
        .palette = 1,                                                                                                  \
        .row_bytes = {4 * (tokens), 4 * (tokens), 4 * (tokens), 4 * (tokens), 64, 64, 4 * (tokens), 4 * (tokens)},     \
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},                                                                      \
    }

static const struct sl_tile_config configs[TOKENS + 1] = {
    CONFIG(1), CONFIG(2),  CONFIG(3),  CONFIG(4),  CONFIG(5),  CONFIG(6),  CONFIG(7),  CONFIG(8),
    CONFIG(9), CONFIG(10), CONFIG(11), CONFIG(12), CONFIG(13), CONFIG(14), CONFIG(15), CONFIG(16),
};

/*
 * Where registers 0 to 3 lie between stretches: [2][2][TILE_FLOATS]; the second index is the half of the panel, the first
 * is the tile of tokens, or the panel where two panels meet one tile of tokens. With one of each, the other half is idle.
 */
#define SUMS_FLOATS (4 * TILE_FLOATS)

static inline void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void load_sums(const float *sums) {
    sl_amx_written();
    _tile_stream_loadd(0, sums, 64);
    _tile_stream_loadd(1, sums + TILE_FLOATS, 64);
    _tile_stream_loadd(2, sums + 2 * TILE_FLOATS, 64);
    _tile_stream_loadd(3, sums + 3 * TILE_FLOATS, 64);
}

static inline void store_sums(float *sums) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + TILE_FLOATS, 64);
    _tile_stored(2, sums + 2 * TILE_FLOATS, 64);
    _tile_stored(3, sums + 3 * TILE_FLOATS, 64);
}

// A panel's steps by two tiles of tokens; `lines` cache lines a step of what comes next are fetched into L2.
static __attribute__((noinline)) void steps_2x2(const char *w, const char *x0, const char *x1, int64_t count,
                                                const char *next, int64_t lines) {
    sl_amx_written();
    for (int64_t s = 0; s < count; s++) {
        _tile_stream_loadd(6, x0 + s * SL_AMX_TILE_BYTES, 64);
        _tile_loadd(4, w + s * SL_AMX_STEP_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, w + s * SL_AMX_STEP_BYTES + SL_AMX_TILE_BYTES, 64);
        _tile_dpbf16ps(1, 5, 6);
        _tile_stream_loadd(7, x1 + s * SL_AMX_TILE_BYTES, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        for (int64_t i = 0; i < lines; i++, next += 64) {
            _mm_prefetch(next, _MM_HINT_T1);
        }
    }
}

// Weights that stream by from memory: what comes a quarter of a step later is asked for now. Tile loads alone do not keep
// enough of them on their way; much further ahead, or into L2 only, is slower again.
static inline void fetch_ahead(const char *w) {
    SL_UNROLL
    for (int64_t i = 0; i < SL_AMX_STEP_BYTES; i += 64) {
        _mm_prefetch(w + SL_AMX_STEP_BYTES / 4 + i, _MM_HINT_T0);
    }
}

// A panel's steps by one tile of `tokens` tokens. `streams`: w is in memory, not in a buffer that has just been written.
static inline void steps_2x1(const char *w, const char *x, int64_t tokens, int64_t count, bool streams) {
    sl_amx_written();
    for (int64_t s = 0; s < count; s++) {
        if (streams) {
            fetch_ahead(w + s * SL_AMX_STEP_BYTES);
        }
        _tile_loadd(6, x + s * 64 * tokens, 4 * tokens);
        _tile_loadd(4, w + s * SL_AMX_STEP_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, w + s * SL_AMX_STEP_BYTES + SL_AMX_TILE_BYTES, 64);
        _tile_dpbf16ps(1, 5, 6);
    }
}

// Two panels' steps by one tile of tokens.
static inline void steps_4x1(const char *w0, const char *w1, const char *x, int64_t tokens, int64_t count,
                             bool streams) {
    sl_amx_written();
    for (int64_t s = 0; s < count; s++) {
        if (streams) {
            fetch_ahead(w0 + s * SL_AMX_STEP_BYTES);
            fetch_ahead(w1 + s * SL_AMX_STEP_BYTES);
        }
        _tile_loadd(6, x + s * 64 * tokens, 4 * tokens);
        _tile_loadd(4, w0 + s * SL_AMX_STEP_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, w0 + s * SL_AMX_STEP_BYTES + SL_AMX_TILE_BYTES, 64);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, w1 + s * SL_AMX_STEP_BYTES, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, w1 + s * SL_AMX_STEP_BYTES + SL_AMX_TILE_BYTES, 64);
        _tile_dpbf16ps(3, 5, 6);
    }
}

// --- sums and y ----------------------------------------------------------------------------------------------------

// rows[count][SL_PANEL] += y, where the product adds to it.
static void add_y(const struct sl_product *a, int64_t p, int64_t row, int64_t count, float *rows) {
    const float *y = a->y + row * a->y_stride + p * SL_PANEL;
    __mmask16 lo = sl_avx512_lanes(a->outputs - p * SL_PANEL), hi = sl_avx512_lanes(a->outputs - p * SL_PANEL - 16);
    for (int64_t r = 0; r < count; r++, y += a->y_stride, rows += SL_PANEL) {
        _mm512_store_ps(rows, _mm512_add_ps(_mm512_load_ps(rows), _mm512_maskz_loadu_ps(lo, y)));
        _mm512_store_ps(rows + 16, _mm512_add_ps(_mm512_load_ps(rows + 16), _mm512_maskz_loadu_ps(hi, y + 16)));
    }
}

// y from the sums [2][16 rows of W][16 tokens] of `count` tokens from row `row` on.
static void finish_tile(const struct sl_product *a, int64_t p, int64_t row, int64_t count, const float *sums) {
    float rows[TOKENS * SL_PANEL] __attribute__((aligned(64)));
    __m512 columns[16];
    for (int h = 0; h < 2; h++) {
        sl_avx512_transpose(sums + h * TILE_FLOATS, TOKENS, columns);
        SL_UNROLL
        for (int c = 0; c < 16; c++) {
            _mm512_store_ps(rows + c * SL_PANEL + 16 * h, columns[c]);
        }
    }
    if (a->accumulate) {
        add_y(a, p, row, count, rows);
    }
    sl_sums_finish(a, p, row, count, rows);
}

// --- x into tiles --------------------------------------------------------------------------------------------------

// Tokens of a tile: few rows make narrow tiles.
static int64_t tile_tokens(int64_t m) {
    return sl_min(m, TOKENS);
}

// bf16 and quantized weights; the others are tier avx512's.
static bool arranges(const struct sl_matrix *w) {
    return w->format != SL_WEIGHT_STORED || w->dtype == SL_BF16;
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    if (!arranges(w)) {
        return sl_avx512_matmul_scratch(w, m);
    }
    return (size_t)(sl_div_up(m, TOKENS) * sl_amx_steps(w) * 64 * tile_tokens(m));
}

// Steps of a stretch: all are alike but for the last one, which may be shorter.
static int64_t stretch_steps(const struct sl_matrix *w) {
    int64_t steps = sl_amx_steps(w);
    return sl_div_up(steps, sl_div_up(steps, STRETCH_STEPS));
}

// Tile t of tokens at a step: [stretch][tile][step]. What a stretch needs is contiguous, or it would compete with itself
// for the same sets of L2.
static inline char *x_tile(const struct sl_product *a, int64_t t, int64_t step) {
    int64_t length = stretch_steps(a->w), first = step / length * length;
    int64_t n_tiles = sl_div_up(a->m, TOKENS), count = sl_min(length, sl_amx_steps(a->w) - first);
    return (char *)a->scratch + (first * n_tiles + t * count + step - first) * 64 * tile_tokens(a->m);
}

// At most PACK_STEPS steps of a tile. Rows are read along k first: their stride may put them all in the same sets of L1.
static void pack_x_steps(const struct sl_product *a, int64_t t, int64_t begin, int64_t end) {
    int64_t tokens = tile_tokens(a->m), count = sl_min(TOKENS, a->m - t * TOKENS);
    float pairs[PACK_STEPS][TOKENS][16] __attribute__((aligned(64))); // of bf16, in every 32 bits
    for (int64_t r = 0; r < TOKENS; r++) {
        const float *x = a->x + (t * TOKENS + r) * a->x_stride;
        for (int64_t s = begin; s < end; s++) {
            int64_t i = s * SL_AMX_STEP, left = r < count ? a->w->k - i : 0;
            __m512 lo, hi;
            if (left >= SL_AMX_STEP) { // nearly always
                lo = _mm512_loadu_ps(x + i);
                hi = _mm512_loadu_ps(x + i + 16);
            } else {
                lo = _mm512_maskz_loadu_ps(sl_avx512_lanes(left), x + i);
                hi = _mm512_maskz_loadu_ps(sl_avx512_lanes(left - 16), x + i + 16);
            }
            _mm512_store_ps(pairs[s - begin][r], (__m512)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
    __mmask16 lanes = sl_avx512_lanes(tokens);
    for (int64_t s = begin; s < end; s++) {
        float *out = (float *)(void *)x_tile(a, t, s);
        if (tokens == 1) {
            _mm512_storeu_ps(out, _mm512_load_ps(pairs[s - begin][0]));
            continue;
        }
        __m512 columns[16];
        sl_avx512_transpose(pairs[s - begin][0], 16, columns);
        SL_UNROLL
        for (int c = 0; c < 16; c++) {
            _mm512_mask_storeu_ps(out + c * tokens, lanes, columns[c]);
        }
    }
}

// Tasks: chunks of PACK_STEPS of every tile.
static void pack_x(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    int64_t steps = sl_amx_steps(a->w), chunks = sl_div_up(steps, PACK_STEPS);
    (void)member;
    for (int64_t task = a->first_task + begin; task < a->first_task + end; task++) {
        int64_t first = task % chunks * PACK_STEPS;
        pack_x_steps(a, task / chunks, first, sl_min(first + PACK_STEPS, steps));
    }
}

// --- few rows ------------------------------------------------------------------------------------------------------

struct stream {
    float sums[SUMS_FLOATS];
    char tiles[2][STREAM_STEPS * SL_AMX_STEP_BYTES];
} __attribute__((aligned(64)));

// All of k for one or two panels from p on.
static void stream_steps(const struct sl_product *a, struct stream *stream, int64_t p, bool pair) {
    const struct sl_matrix *w = a->w;
    int64_t steps = sl_amx_steps(w), tokens = tile_tokens(a->m);
    size_t step_bytes = sl_amx_packed_step_bytes(w);
    const char *panel = (const char *)w->packed + (size_t)(p * steps) * step_bytes;
    int64_t length = stretch_steps(w);
    for (int64_t s = 0, count; s < steps; s += count) {
        count = sl_min(STREAM_STEPS, sl_min((s / length + 1) * length, steps) - s);
        const char *packed = panel + (size_t)s * step_bytes, *x = x_tile(a, 0, s);
        const char *w0 = sl_amx_tiles(w, packed, count, stream->tiles[0]);
        if (a->m > TOKENS) {
            steps_2x2(w0, x, x_tile(a, 1, s), count, NULL, 0);
        } else if (pair) {
            const char *w1 = sl_amx_tiles(w, packed + (size_t)steps * step_bytes, count, stream->tiles[1]);
            steps_4x1(w0, w1, x, tokens, count, w->format == SL_WEIGHT_STORED);
        } else {
            steps_2x1(w0, x, tokens, count, w->format == SL_WEIGHT_STORED);
        }
    }
}

static void matmul_stream(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    int64_t last = sl_min(end * a->tasks.panels_per_task, a->n_panels), n_tiles = sl_div_up(a->m, TOKENS);
    struct stream stream;
    memset(stream.sums, 0, sizeof stream.sums); // what is idle, and beyond the tokens of narrow tiles
    (void)member;
    _tile_loadconfig(&configs[tile_tokens(a->m)]);
    for (int64_t p = begin * a->tasks.panels_per_task; p < last;) {
        int64_t panels = n_tiles == 1 && p + 2 <= last ? 2 : 1;
        zero_sums();
        stream_steps(a, &stream, p, panels == 2);
        store_sums(stream.sums);
        for (int64_t i = 0; i < n_tiles * panels; i++) {
            int64_t row = n_tiles == 1 ? 0 : i * TOKENS;
            finish_tile(a, n_tiles == 1 ? p + i : p, row, sl_min(TOKENS, a->m - row),
                        stream.sums + 2 * i * TILE_FLOATS);
        }
        p += panels;
    }
    _tile_release();
}

// --- many rows -----------------------------------------------------------------------------------------------------

struct block {
    float sums[PANEL_GROUP][ROW_BLOCK / TOKENS][2 * TILE_FLOATS];
    char tiles[STRETCH_STEPS * SL_AMX_STEP_BYTES];
} __attribute__((aligned(64)));

// A stretch of panel p, in w, by all rows of a task; `next` is what will be needed afterwards.
static void multiply_stretch(const struct sl_product *a, const struct sl_panel_task *task, struct block *block,
                             int64_t p, const char *w, int64_t begin, int64_t count, const char *next,
                             size_t next_bytes) {
    int64_t n_tiles = sl_div_up(task->rows, TOKENS);
    int64_t lines = sl_div_up((int64_t)next_bytes, 64 * count * sl_div_up(n_tiles, 2)); // of every step
    for (int64_t t = 0; t < n_tiles; t += 2) {
        float *sums = block->sums[p - task->first][t];
        const char *x = x_tile(a, task->row / TOKENS + t, begin);
        if (begin == 0) {
            zero_sums();
        } else {
            load_sums(sums);
        }
        if (t + 1 < n_tiles) {
            steps_2x2(w, x, x + count * SL_AMX_TILE_BYTES, count, next + t / 2 * lines * count * 64, lines);
        } else {
            steps_2x1(w, x, TOKENS, count, false);
        }
        store_sums(sums);
    }
}

static void multiply_block(const struct sl_product *a, const struct sl_panel_task *task, struct block *block) {
    const struct sl_matrix *w = a->w;
    int64_t steps = sl_amx_steps(w), stretch = stretch_steps(w);
    size_t step_bytes = sl_amx_packed_step_bytes(w);
    for (int64_t s = 0; s < steps; s += stretch) {
        int64_t count = sl_min(stretch, steps - s);
        for (int64_t p = task->first; p < task->last; p++) {
            const char *packed = (const char *)w->packed + (size_t)(p * steps + s) * step_bytes;
            const char *tiles = sl_amx_tiles(w, packed, count, block->tiles);
            bool turn = p + 1 == task->last; // to the next stretch of the first panel
            const char *next = turn ? packed - (size_t)((p - task->first) * steps - stretch) * step_bytes
                                    : packed + (size_t)steps * step_bytes;
            multiply_stretch(a, task, block, p, tiles, s, count, next, (size_t)count * step_bytes);
        }
    }
    // All panels of a tile of tokens at once: what they give of a row of y is adjacent.
    for (int64_t r = 0; r < task->rows; r += TOKENS) {
        for (int64_t p = task->first; p < task->last; p++) {
            finish_tile(a, p, task->row + r, sl_min(TOKENS, task->rows - r), block->sums[p - task->first][r / TOKENS]);
        }
    }
}

static void matmul_block(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    struct block block;
    (void)member;
    _tile_loadconfig(&configs[TOKENS]);
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        multiply_block(a, &task, &block);
    }
    _tile_release();
}

// --- matmul --------------------------------------------------------------------------------------------------------

static void arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts) {
    struct sl_product a = sl_product_of(w, args);
    int64_t n_chunks = sl_div_up(a.m, TOKENS) * sl_div_up(sl_amx_steps(w), PACK_STEPS);
    a.first_task = n_chunks * part / n_parts;
    sl_stream_run(a.m * w->k < SL_ALONE_WORK ? NULL : stream, n_chunks * (part + 1) / n_parts - a.first_task, 16,
                  pack_x, &a);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (!arranges(w)) {
        sl_avx512_matmul(stream, w, args);
        return;
    }
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct sl_product a = sl_product_of(w, args);
    int64_t steps = sl_amx_steps(w);
    if (a.m < 1) {
        return;
    }
    if (!args->arranged) {
        arrange(stream, w, args, 0, 1);
    }
    struct sl_stream *used = a.n_panels * steps < 256 ? NULL : stream; // half a million weights a row
    if (a.m <= STREAM_ROWS) {
        size_t panel_bytes = (size_t)steps * sl_amx_packed_step_bytes(w);
        a.tasks = sl_panel_stream(stream, a.m, a.n_panels, panel_bytes, 2);
        sl_stream_run(used, a.tasks.n, 1, matmul_stream, &a);
    } else {
        a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK, 2 * TOKENS, a.n_panels, PANEL_GROUP);
        sl_stream_run(used, a.tasks.n, 1, matmul_block, &a);
    }
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return arranges(matrix) ? sl_amx_pack(stream, matrix, err) : sl_avx512_pack(stream, matrix, err);
}

void sl_amx_dense_fill(struct sl_ops *ops) { // the rest is tier avx512's, which also frees what either packs
    ops->widened = SL_BF16;
    ops->pack = pack;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = arranges;
    ops->arrange = arrange;
    ops->matmul = matmul;
}
