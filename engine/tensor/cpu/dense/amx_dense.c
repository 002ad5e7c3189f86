// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with the tile unit: for bf16 weights, and for rows of prompts with codes and, on tier amx2, f16.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: x becomes bf16 once a call, in tiles of 16 tokens [step][tokens][32 of k]. A tile product multiplies 16
 *         tokens by 16 rows of W over a step of 32 of k (amx_pack.h). It takes 16 cycles of the tile unit, in which one
 *         tile can be loaded. The four sums of two panels, or of a panel and two tiles of tokens, stay in tile
 *         registers.
 *
 *         Terms: tier amx rounds x, and weights that are not bf16. Tier amx2 writes x, and such weights, as the sum of
 *         two bf16 numbers, x = x1 + x2, W = W1 + W2, and adds x1 W1, x2 W1, x1 W2. The product that is left out, and
 *         the remainder of each number, are some 2^-16 of a product. Tiles of W and of x are loaded once for all
 *         products.
 *
 *         Many rows: a task is a block of rows by a few panels, one stretch of k after the other. A stretch of two
 *         panels stays in L1 while the tokens stream past it from L2. Loads of the streamed data carry the hint that it
 *         will not be needed again (TILELOADDT1), so it stays out of L1. A stretch may then fill nearly all of L1, so
 *         that sums seldom pass through memory between stretches. Blocks are as high as L2 allows: W comes from memory
 *         once for each. Few rows: tasks are panels. W streams from memory once, and sums stay in registers for all of
 *         k.
 *
 * Invariants: an element's sum is one chain of TDPBF16PS over the steps in ascending order, and the terms of each in
 *         the order above, from 0, for any m: between stretches it passes through memory as the f32 that it is. The old
 *         y, where the product adds to it, is added last. The other rows and columns of a tile do not change an
 *         element. TDPBF16PS rounds to nearest even and takes subnormals as zeros.
 * Threads: each call of a task configures and releases the tile registers.
 */
#include <assert.h>
#include <immintrin.h>

#include "engine/tensor/cpu/dense/amx_pack.h"
#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/simd/amx_tile.h"

#define TOKENS        16         // of a tile
#define STREAM_ROWS   32         // up to this many rows are computed while the weights stream from memory
#define STREAM_STEPS  1          // steps made into tiles at once in this case, while the previous step is multiplied
#define BLOCK_STEPS   8          // of the longest block of codes, which is made into tiles as a whole
#define STRETCH_BYTES (40 << 10) // for two panels, of L1's 48 KiB
#define ROW_BLOCK     512        // rows of a task: a stretch of their x is 320 KiB in L2, or with two terms twice that
#define PANEL_GROUP   8          // panels of a task: their sums are 512 KiB, on the stack
#define PACK_STEPS    8          // steps of x packed at once

// --- tile registers ------------------------------------------------------------------------------------------------

// The configuration by tokens of a tile. 0 to 3: sums [tokens][16 rows of W], f32. 4, 5: W. 6, 7: x.
#define CONFIG(tokens)                                                                                                 \
    [tokens] = {                                                                                                       \
        .palette = 1,                                                                                                  \
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},                                                                 \
        .rows = {(tokens), (tokens), (tokens), (tokens), 16, 16, (tokens), (tokens)},                                  \
    }

static const struct sl_tile_config configs[TOKENS + 1] = {
    CONFIG(1), CONFIG(2),  CONFIG(3),  CONFIG(4),  CONFIG(5),  CONFIG(6),  CONFIG(7),  CONFIG(8),
    CONFIG(9), CONFIG(10), CONFIG(11), CONFIG(12), CONFIG(13), CONFIG(14), CONFIG(15), CONFIG(16),
};

/*
 * The memory of registers 0 to 3 between stretches: twice the sums [TOKENS][SL_PANEL] of a panel, for two panels or two
 * tiles of tokens. With one panel and one tile, the other half is unused.
 */
#define PANEL_FLOATS (TOKENS * SL_PANEL)
#define SUMS_FLOATS  (2 * PANEL_FLOATS)
#define SUMS_STRIDE  (SL_PANEL * 4) // bytes

static inline void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void load_sums(const float *sums) {
    sl_amx_written();
    _tile_loadd(0, sums, SUMS_STRIDE);
    _tile_loadd(1, sums + SL_PANEL_HALF, SUMS_STRIDE);
    _tile_loadd(2, sums + PANEL_FLOATS, SUMS_STRIDE);
    _tile_loadd(3, sums + PANEL_FLOATS + SL_PANEL_HALF, SUMS_STRIDE);
}

static inline void store_sums(float *sums) {
    _tile_stored(0, sums, SUMS_STRIDE);
    _tile_stored(1, sums + SL_PANEL_HALF, SUMS_STRIDE);
    _tile_stored(2, sums + PANEL_FLOATS, SUMS_STRIDE);
    _tile_stored(3, sums + PANEL_FLOATS + SL_PANEL_HALF, SUMS_STRIDE);
}

/*
 * Adds two tiles of W times one tile of x, in register 6, and its second term, in 7, to sums `i` and `j`. The second
 * term of W, a step's bytes after the first, is multiplied by the first term of x only. Sums alternate: each product
 * waits for the previous one of the same sum.
 */
#define MEET(i, j, w, x_terms, w_terms)                                                                                \
    do {                                                                                                               \
        _tile_loadd(4, w, 64);                                                                                         \
        _tile_dpbf16ps(i, 6, 4);                                                                                       \
        _tile_loadd(5, (w) + SL_AMX_TILE_BYTES, 64);                                                                   \
        _tile_dpbf16ps(j, 6, 5);                                                                                       \
        if ((x_terms) == 2) {                                                                                          \
            _tile_dpbf16ps(i, 7, 4);                                                                                   \
            _tile_dpbf16ps(j, 7, 5);                                                                                   \
        }                                                                                                              \
        if ((w_terms) == 2) {                                                                                          \
            _tile_loadd(4, (w) + SL_AMX_STEP_BYTES, 64);                                                               \
            _tile_dpbf16ps(i, 6, 4);                                                                                   \
            _tile_loadd(5, (w) + SL_AMX_STEP_BYTES + SL_AMX_TILE_BYTES, 64);                                           \
            _tile_dpbf16ps(j, 6, 5);                                                                                   \
        }                                                                                                              \
    } while (0)

#define INLINE static inline __attribute__((always_inline))

// The data that is needed after a stretch. `lines` cache lines for each step from `at` on, and as many at `stride`
// bytes after them, are prefetched into L2.
struct next {
    const char *at;
    int64_t stride, lines;
};

// The numbers of terms of x and of a weight: constants.
struct terms {
    int x, w;
};

// Multiplies two panels' steps by one full tile of tokens.
INLINE void steps_4x1(const char *w0, const char *w1, const char *x, struct terms terms, int64_t count,
                      struct next next) {
    int64_t step_bytes = terms.w * SL_AMX_STEP_BYTES;
    sl_amx_written();
    for (int64_t s = 0; s < count; s++, x += terms.x * SL_AMX_TILE_BYTES) {
        _tile_stream_loadd(6, x, 64);
        if (terms.x == 2) {
            _tile_stream_loadd(7, x + SL_AMX_TILE_BYTES, 64);
        }
        MEET(0, 1, w0 + s * step_bytes, terms.x, terms.w);
        MEET(2, 3, w1 + s * step_bytes, terms.x, terms.w);
        for (int64_t i = 0; i < next.lines; i++, next.at += 64) {
            _mm_prefetch(next.at, _MM_HINT_T1);
            _mm_prefetch(next.at + next.stride, _MM_HINT_T1);
        }
    }
}

// Prefetches weights that stream from memory a quarter of a step before their use. Tile loads alone do not keep enough
// loads in flight; a much longer distance, or L2 only, is slower again.
static inline void fetch_ahead(const char *w) {
    SL_UNROLL
    for (int64_t i = 0; i < SL_AMX_STEP_BYTES; i += 64) {
        _mm_prefetch(w + SL_AMX_STEP_BYTES / 4 + i, _MM_HINT_T0);
    }
}

// Multiplies one or two panels' steps (w1 NULL: one) by one tile of `tokens` tokens. `streams`: w is in memory, not in
// a buffer that was just written.
INLINE void steps_nx1(const char *w0, const char *w1, const char *x, int64_t tokens, struct terms terms, int64_t count,
                      bool streams) {
    int64_t step_bytes = terms.w * SL_AMX_STEP_BYTES;
    sl_amx_written();
    for (int64_t s = 0; s < count; s++, x += terms.x * 64 * tokens) {
        if (streams) {
            fetch_ahead(w0 + s * step_bytes);
            if (w1 != NULL) {
                fetch_ahead(w1 + s * step_bytes);
            }
        }
        _tile_loadd(6, x, 64);
        if (terms.x == 2) {
            _tile_loadd(7, x + 64 * tokens, 64);
        }
        MEET(0, 1, w0 + s * step_bytes, terms.x, terms.w);
        if (w1 != NULL) {
            MEET(2, 3, w1 + s * step_bytes, terms.x, terms.w);
        }
    }
}

#define MEET_TWO(w, x0, x1)                                                                                            \
    do {                                                                                                               \
        _tile_loadd(6, x0, 64);                                                                                        \
        _tile_loadd(4, w, 64);                                                                                         \
        _tile_dpbf16ps(0, 6, 4);                                                                                       \
        _tile_loadd(5, (w) + SL_AMX_TILE_BYTES, 64);                                                                   \
        _tile_dpbf16ps(1, 6, 5);                                                                                       \
        _tile_loadd(7, x1, 64);                                                                                        \
        _tile_dpbf16ps(2, 7, 4);                                                                                       \
        _tile_dpbf16ps(3, 7, 5);                                                                                       \
    } while (0)

// Multiplies a panel's steps by two tiles of tokens.
INLINE void steps_2x2(const char *w, const char *x0, const char *x1, struct terms terms, int64_t count) {
    sl_amx_written();
    for (int64_t s = 0; s < count; s++, w += terms.w * SL_AMX_STEP_BYTES) {
        MEET_TWO(w, x0, x1);
        if (terms.x == 2) {
            MEET_TWO(w, x0 + SL_AMX_TILE_BYTES, x1 + SL_AMX_TILE_BYTES);
        }
        if (terms.w == 2) {
            MEET_TWO(w + SL_AMX_STEP_BYTES, x0, x1);
        }
        x0 += terms.x * SL_AMX_TILE_BYTES;
        x1 += terms.x * SL_AMX_TILE_BYTES;
    }
}

// --- sums and y ----------------------------------------------------------------------------------------------------

// Adds y to rows[count][SL_PANEL], where the product adds to it.
static void add_y(const struct sl_product *a, int64_t p, int64_t row, int64_t count, float *rows) {
    const float *y = a->y + row * a->y_stride + p * SL_PANEL;
    __mmask16 lo = sl_avx512_lanes(a->outputs - p * SL_PANEL), hi = sl_avx512_lanes(a->outputs - p * SL_PANEL - 16);
    for (int64_t r = 0; r < count; r++, y += a->y_stride, rows += SL_PANEL) {
        _mm512_store_ps(rows, _mm512_add_ps(_mm512_load_ps(rows), _mm512_maskz_loadu_ps(lo, y)));
        _mm512_store_ps(rows + 16, _mm512_add_ps(_mm512_load_ps(rows + 16), _mm512_maskz_loadu_ps(hi, y + 16)));
    }
}

// Writes y from the sums of `count` tokens from row `row` on.
static void finish_tile(const struct sl_product *a, int64_t p, int64_t row, int64_t count, float *sums) {
    if (a->accumulate) {
        add_y(a, p, row, count, sums);
    }
    sl_sums_finish(a, p, row, count, sums);
}

// --- x into tiles --------------------------------------------------------------------------------------------------

static int64_t tile_tokens(int64_t m) {
    return sl_min(m, TOKENS);
}

// Returns true for products by tiles. Tier avx512vnni multiplies other rows by codes, and tier avx512 other weights.
static bool by_tiles(const struct sl_matrix *w, bool reading) {
    bool converted = sl_code_is(w) || (w->dtype == SL_F16 && w->in_two_terms);
    return converted ? reading : w->dtype == SL_BF16;
}

static bool arranges(const struct sl_matrix *w) {
    return by_tiles(w, true);
}

static int x_terms_of(const struct sl_matrix *w) {
    return w->in_two_terms ? 2 : 1;
}

// Returns the bytes of a step of a tile of tokens: the terms of x, each [tokens][32 of k].
static int64_t x_step_bytes(const struct sl_matrix *w, int64_t tokens) {
    return x_terms_of(w) * 64 * tokens;
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    if (!arranges(w)) {
        return 0;
    }
    size_t bytes = (size_t)(sl_div_up(m, TOKENS) * sl_amx_steps(w) * x_step_bytes(w, tile_tokens(m)));
    size_t of_codes = sl_code_is(w) ? sl_code_scratch(w, m) : 0;
    return bytes > of_codes ? bytes : of_codes;
}

// Returns the steps of a stretch. All stretches have equal length, but the last one may be shorter. Those of codes are
// whole blocks.
static int64_t stretch_steps(const struct sl_matrix *w) {
    if (sl_code_is(w)) {
        return BLOCK_STEPS;
    }
    int64_t steps = sl_amx_steps(w), most = STRETCH_BYTES / (2 * sl_amx_terms(w) * SL_AMX_STEP_BYTES);
    return sl_div_up(steps, sl_div_up(steps, most));
}

// Returns tile t of tokens at a step: [stretch][tile][step]. The data of a stretch is contiguous; otherwise its lines
// would compete for the same sets of L2.
static inline char *x_tile(const struct sl_product *a, int64_t t, int64_t step) {
    int64_t length = stretch_steps(a->w), first = step / length * length;
    int64_t n_tiles = sl_div_up(a->m, TOKENS), count = sl_min(length, sl_amx_steps(a->w) - first);
    return (char *)a->scratch + (first * n_tiles + t * count + step - first) * x_step_bytes(a->w, tile_tokens(a->m));
}

// Packs step s of row r of tile t, with zeros past k.
static inline void pack_x_row(const struct sl_product *a, int64_t t, int64_t s, int64_t r, char *row, char *second) {
    const float *x = a->x + (t * TOKENS + r) * a->x_stride + s * SL_AMX_STEP;
    int64_t left = t * TOKENS + r < a->m ? a->w->k - s * SL_AMX_STEP : 0;
    __m512 lo, hi;
    if (left >= SL_AMX_STEP) { // almost always
        lo = _mm512_loadu_ps(x);
        hi = _mm512_loadu_ps(x + 16);
    } else {
        lo = _mm512_maskz_loadu_ps(sl_avx512_lanes(left), x);
        hi = _mm512_maskz_loadu_ps(sl_avx512_lanes(left - 16), x + 16);
    }
    if (second == NULL) {
        _mm512_storeu_si512(row, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        return;
    }
    __m512i of_first, of_second;
    sl_amx_split(lo, hi, &of_first, &of_second);
    _mm512_storeu_si512(row, of_first);
    _mm512_storeu_si512(second, of_second);
}

// Packs at most PACK_STEPS steps of a tile.
static void pack_x_steps(const struct sl_product *a, int64_t t, int64_t begin, int64_t end) {
    int64_t tokens = tile_tokens(a->m);
    for (int64_t s = begin; s < end; s++) {
        char *tile = x_tile(a, t, s);
        for (int64_t r = 0; r < tokens; r++) {
            pack_x_row(a, t, s, r, tile + r * 64, a->w->in_two_terms ? tile + (tokens + r) * 64 : NULL);
        }
    }
}

// A task is a chunk of PACK_STEPS steps of a tile.
static void pack_x(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    int64_t steps = sl_amx_steps(a->w), chunks = sl_div_up(steps, PACK_STEPS);
    for (int64_t task = a->first_task + begin; task < a->first_task + end; task++) {
        int64_t first = task % chunks * PACK_STEPS;
        pack_x_steps(a, task / chunks, first, sl_min(first + PACK_STEPS, steps));
    }
}

// --- few rows ------------------------------------------------------------------------------------------------------

struct stream {
    float sums[SUMS_FLOATS];
    char tiles[2][BLOCK_STEPS * 2 * SL_AMX_STEP_BYTES];
} __attribute__((aligned(64)));

// Multiplies `count` steps from s on of panel p, and of the next one.
INLINE void stream_some(const struct sl_product *a, struct stream *stream, int64_t p, bool pair, struct terms terms,
                        int64_t s, int64_t count) {
    const struct sl_matrix *w = a->w;
    bool streams = sl_amx_keeps_tiles(w);
    const char *x = x_tile(a, 0, s), *w0 = sl_amx_tiles(w, p, s, count, stream->tiles[0]);
    if (a->m > TOKENS) {
        steps_2x2(w0, x, x_tile(a, 1, s), terms, count);
    } else if (pair) {
        const char *w1 = sl_amx_tiles(w, p + 1, s, count, stream->tiles[1]);
        steps_nx1(w0, w1, x, a->m, terms, count, streams);
    } else {
        steps_nx1(w0, NULL, x, a->m, terms, count, streams);
    }
}

// Multiplies all of k for one or two panels from p on.
static void stream_steps(const struct sl_product *a, struct stream *stream, int64_t p, bool pair) {
    const struct sl_matrix *w = a->w;
    int64_t steps = sl_amx_steps(w), length = stretch_steps(w), most = sl_code_is(w) ? length : STREAM_STEPS;
    for (int64_t s = 0, count; s < steps; s += count) {
        count = sl_min(most, sl_min((s / length + 1) * length, steps) - s);
        if (!w->in_two_terms) {
            stream_some(a, stream, p, pair, (struct terms){1, 1}, s, count);
        } else if (sl_amx_terms(w) == 1) {
            stream_some(a, stream, p, pair, (struct terms){2, 1}, s, count);
        } else {
            stream_some(a, stream, p, pair, (struct terms){2, 2}, s, count);
        }
    }
}

static void matmul_stream(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    int64_t last = sl_min(end * a->tasks.panels_per_task, a->n_panels), n_tiles = sl_div_up(a->m, TOKENS);
    struct stream stream;
    _tile_loadconfig(&configs[tile_tokens(a->m)]);
    for (int64_t p = begin * a->tasks.panels_per_task; p < last;) {
        int64_t panels = n_tiles == 1 && p + 2 <= last ? 2 : 1;
        zero_sums();
        stream_steps(a, &stream, p, panels == 2);
        store_sums(stream.sums);
        for (int64_t i = 0; i < n_tiles * panels; i++) {
            int64_t row = n_tiles == 1 ? 0 : i * TOKENS;
            finish_tile(a, n_tiles == 1 ? p + i : p, row, sl_min(TOKENS, a->m - row), stream.sums + i * PANEL_FLOATS);
        }
        p += panels;
    }
    _tile_release();
}

// --- many rows -----------------------------------------------------------------------------------------------------

struct block {
    float sums[PANEL_GROUP / 2][ROW_BLOCK / TOKENS][SUMS_FLOATS]; // of two panels each
    char tiles[2][BLOCK_STEPS * 2 * SL_AMX_STEP_BYTES];
} __attribute__((aligned(64)));

// Steps [begin, begin + count).
struct stretch {
    int64_t begin, count;
};

// Multiplies a stretch of one or two panels, with tiles w[0] and w[1] (NULL: one), by all rows of a task.
INLINE void multiply_stretch(const struct sl_product *a, const struct sl_panel_task *task, float (*sums)[SUMS_FLOATS],
                             const char *const w[2], struct terms terms, struct stretch stretch, struct next next) {
    int64_t n_tiles = sl_div_up(task->rows, TOKENS);
    for (int64_t t = 0; t < n_tiles; t++, next.at += next.lines * stretch.count * 64) {
        const char *x = x_tile(a, task->row / TOKENS + t, stretch.begin);
        if (stretch.begin == 0) {
            zero_sums();
        } else {
            load_sums(sums[t]);
        }
        if (w[1] != NULL) {
            steps_4x1(w[0], w[1], x, terms, stretch.count, next);
        } else {
            steps_nx1(w[0], NULL, x, TOKENS, terms, stretch.count, false);
        }
        store_sums(sums[t]);
    }
}

// Returns what is read after a stretch of panels p and p + 1: nothing of codes, which the conversion prefetches.
static struct next next_of(const struct sl_product *a, const struct sl_panel_task *task, int64_t p, int64_t begin,
                           int64_t count) {
    int64_t panel_bytes = sl_amx_steps(a->w) * SL_AMX_STEP_BYTES;
    bool turn = p + 2 >= task->last; // continue with the next stretch of the first panels
    const char *packed = (const char *)a->w->packed + begin * SL_AMX_STEP_BYTES;
    if (sl_code_is(a->w)) {
        return (struct next){packed, 0, 0};
    }
    return (struct next){
        .at = turn ? packed + task->first * panel_bytes + count * SL_AMX_STEP_BYTES : packed + (p + 2) * panel_bytes,
        .stride = panel_bytes,
        .lines = sl_div_up(SL_AMX_STEP_BYTES, 64 * sl_div_up(task->rows, TOKENS)), // for every step
    };
}

// Multiplies panel p and, if it belongs to this task, panel p + 1, in steps [begin, begin + count).
static void multiply_pair(const struct sl_product *a, const struct sl_panel_task *task, struct block *block, int64_t p,
                          int64_t begin, int64_t count) {
    const struct sl_matrix *matrix = a->w;
    const struct stretch stretch = {begin, count};
    const char *w[2] = {sl_amx_tiles(matrix, p, begin, count, block->tiles[0]), NULL};
    if (p + 1 < task->last) {
        w[1] = sl_amx_tiles(matrix, p + 1, begin, count, block->tiles[1]);
    }
    struct next next = next_of(a, task, p, begin, count);
    float(*sums)[SUMS_FLOATS] = block->sums[(p - task->first) / 2];
    if (!matrix->in_two_terms) {
        multiply_stretch(a, task, sums, w, (struct terms){1, 1}, stretch, next);
    } else if (sl_amx_terms(matrix) == 1) {
        multiply_stretch(a, task, sums, w, (struct terms){2, 1}, stretch, next);
    } else {
        multiply_stretch(a, task, sums, w, (struct terms){2, 2}, stretch, next);
    }
}

static void multiply_block(const struct sl_product *a, const struct sl_panel_task *task, struct block *block) {
    int64_t steps = sl_amx_steps(a->w), stretch = stretch_steps(a->w);
    for (int64_t s = 0; s < steps; s += stretch) {
        for (int64_t p = task->first; p < task->last; p += 2) {
            multiply_pair(a, task, block, p, s, sl_min(stretch, steps - s));
        }
    }
    // Finishes all panels of a tile of tokens at once, because their outputs are adjacent in a row of y.
    for (int64_t r = 0; r < task->rows; r += TOKENS) {
        for (int64_t p = task->first; p < task->last; p++) {
            int64_t i = p - task->first;
            finish_tile(a, p, task->row + r, sl_min(TOKENS, task->rows - r),
                        block->sums[i / 2][r / TOKENS] + i % 2 * PANEL_FLOATS);
        }
    }
}

static void matmul_block(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_product *a = arg;
    struct block block;
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
    if (!by_tiles(w, args->reading)) { // f16 needs no preparation
        if (sl_code_is(w)) {
            sl_code_arrange(&sl_vnni_code_kernels, stream, w, args, part, n_parts);
        }
        return;
    }
    struct sl_product a = sl_product_of(w, args);
    int64_t n_chunks = sl_div_up(a.m, TOKENS) * sl_div_up(sl_amx_steps(w), PACK_STEPS);
    a.first_task = n_chunks * part / n_parts;
    sl_stream_run(a.m * w->k < SL_ALONE_WORK ? NULL : stream, n_chunks * (part + 1) / n_parts - a.first_task, 16,
                  pack_x, &a);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (!by_tiles(w, args->reading)) {
        if (sl_code_is(w)) {
            sl_code_matmul(&sl_vnni_code_kernels, stream, w, args);
        } else {
            sl_avx512_matmul(stream, w, args);
        }
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
    struct sl_stream *used = a.n_panels * steps < 256 ? NULL : stream; // half a million weights for each row
    if (a.m <= STREAM_ROWS) {
        size_t panel_bytes = (size_t)(steps * SL_AMX_STEP_BYTES);
        a.tasks = sl_panel_stream(stream, a.m, a.n_panels, panel_bytes, 2);
        sl_stream_run(used, a.tasks.n, 1, matmul_stream, &a);
    } else {
        a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK / x_terms_of(w), 2 * TOKENS, a.n_panels, PANEL_GROUP);
        sl_stream_run(used, a.tasks.n, 1, matmul_block, &a);
    }
}

static enum sl_status pack_terms(struct sl_stream *stream, struct sl_matrix *matrix, bool two, struct sl_error *err) {
    matrix->in_two_terms = two;
    return sl_amx_keeps_tiles(matrix) ? sl_amx_pack(stream, matrix, err) : sl_avx512_pack(stream, matrix, err);
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack_terms(stream, matrix, false, err);
}

static enum sl_status pack_in_two_terms(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack_terms(stream, matrix, true, err);
}

void sl_amx_dense_fill(struct sl_ops *ops) { // tier avx512 fills the rest, and frees what either packs
    ops->widened = SL_BF16;
    ops->pack = pack;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = arranges;
    ops->arrange = arrange;
    ops->matmul = matmul;
}

void sl_amx2_dense_fill(struct sl_ops *ops) { // tier amx fills the rest
    ops->widened = SL_F16;
    ops->pack = pack_in_two_terms;
}
