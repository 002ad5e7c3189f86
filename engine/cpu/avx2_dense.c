// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the dense operations with AVX2, FMA and F16C.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: W is packed once into panels of 16 outputs, [n/16][k][16], in the type of the file; the last panel is
 *         padded with zeros. A tile is up to 6 rows by 16 outputs of y in 12 registers; each step of k multiplies 16
 *         weights by one x of every row. Few rows are bound by memory: weights are widened in registers as they stream
 *         by, and narrow tiles take several panels at once so that enough sums are in flight. Many rows are bound by
 *         arithmetic: K_BLOCK steps of a few panels are widened once, stay in L2, and serve all rows of a block; the
 *         x's of a tile are copied together so that they stay in L1.
 *
 * Invariants: every sum starts from 0 (or y) and takes i in ascending order with one fused multiply-add a step; between
 *             stretches of k it passes through y unchanged. So neither m, nor the tile, nor the number of threads
 *             changes a bit. f16 and bf16 widen exactly.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/cpu/avx2_math.h"
#include "engine/cpu/tier.h"
#include "engine/cpu/weights.h"

#define PANEL       16
#define TILE_ROWS   6
#define K_BLOCK     256
#define ROW_BLOCK   240            // rows of a task
#define X_STRIDE    (K_BLOCK + 16) // no power of two: rows of a tile must not compete for the same lines of a cache
#define PANEL_GROUP 8         // panels of a task: K_BLOCK steps of them, widened, are 128 KiB on the stack and in L2
#define ALONE_WORK  (1 << 16) // multiply-adds below which waking a team costs more than it brings
#define HUGE_PAGE   (2u << 20)

static inline int64_t div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- packing -------------------------------------------------------------------------------------------------------

/*
 * The 16 weights of one step, as they lie in a panel. f32 and f16: in order. bf16: output c and output c + 8 share a
 * 32-bit word, c below, so that a shift and a mask widen all sixteen.
 */
static void pack_panels(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_matrix *w = arg;
    (void)member;
    for (int64_t p = begin; p < end; p++) {
        for (int c = 0; c < PANEL; c++) {
            int64_t j = p * PANEL + c;
            int slot = w->dtype == SL_BF16 ? (c < 8 ? 2 * c : 2 * (c - 8) + 1) : c;
            size_t size = sl_dtype_bytes(w->dtype);
            char *to = (char *)w->packed + ((size_t)(p * w->k) * PANEL + (size_t)slot) * size;
            if (j >= w->n) {
                for (int64_t i = 0; i < w->k; i++) {
                    memset(to + (size_t)i * PANEL * size, 0, size);
                }
                continue;
            }
            const unsigned char *from = sl_weight_row(w, j);
            if (size == 2) {
                for (int64_t i = 0; i < w->k; i++) {
                    memcpy(to + (size_t)i * PANEL * 2, from + (size_t)i * 2, 2);
                }
            } else {
                for (int64_t i = 0; i < w->k; i++) {
                    memcpy(to + (size_t)i * PANEL * 4, from + (size_t)i * 4, 4);
                }
            }
        }
    }
}

static enum sl_status pack(struct sl_team *team, struct sl_matrix *matrix, struct sl_error *err) {
    if (matrix->format != SL_WEIGHT_STORED) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "quantized weights: not with the kernels of tier avx2");
    }
    int64_t n_panels = div_up(matrix->n, PANEL);
    size_t bytes = (size_t)(n_panels * PANEL * matrix->k) * sl_dtype_bytes(matrix->dtype);
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
    void *packed = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (packed == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of packed weights", bytes);
    }
    if (align == HUGE_PAGE) {
        (void)madvise(packed, bytes, MADV_HUGEPAGE); // advice: with small pages it is only slower
    }
    matrix->packed = packed;
    matrix->packed_bytes = bytes;
    sl_team_run(team, n_panels, 4, pack_panels, matrix);
    return SL_OK;
}

static void unpack(struct sl_matrix *matrix) {
    free(matrix->packed);
    matrix->packed = NULL;
    matrix->packed_bytes = 0;
}

// --- tiles ---------------------------------------------------------------------------------------------------------

// The 16 weights of one step, widened.
static inline __attribute__((always_inline)) void load_step(const char *weights, enum sl_dtype dtype, __m256 *lo,
                                                            __m256 *hi) {
    if (dtype == SL_F32) {
        *lo = _mm256_loadu_ps((const float *)weights);
        *hi = _mm256_loadu_ps((const float *)weights + 8);
    } else if (dtype == SL_F16) {
        *lo = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)weights));
        *hi = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)weights + 1));
    } else {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)weights);
        *lo = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        *hi = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
    }
}

/*
 * y[rows][16 panels] += x[rows][k] W: the sums go on from what y holds, or from 0 when `fresh`. weights: the first
 * panel at the first step; the next panel is `panel_bytes` further. Called with constants only, so that acc stays in
 * registers.
 */
static inline __attribute__((always_inline)) void tile(int rows, int panels, enum sl_dtype dtype, const char *weights,
                                                       size_t panel_bytes, const float *x, int64_t ldx, int64_t k,
                                                       float *y, int64_t ldy, bool fresh) {
    __m256 acc[TILE_ROWS][8];
    size_t step_bytes = PANEL * sl_dtype_bytes(dtype);
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < 2 * panels; c++) {
            acc[r][c] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(y + r * ldy + 8 * c);
        }
    }
    for (int64_t i = 0; i < k; i++) {
        SL_UNROLL
        for (int p = 0; p < panels; p++) {
            __m256 lo, hi;
            const char *step = weights + (size_t)p * panel_bytes + (size_t)i * step_bytes;
            load_step(step, dtype, &lo, &hi);
            SL_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256 xi = _mm256_broadcast_ss(x + r * ldx + i);
                acc[r][2 * p] = _mm256_fmadd_ps(xi, lo, acc[r][2 * p]);
                acc[r][2 * p + 1] = _mm256_fmadd_ps(xi, hi, acc[r][2 * p + 1]);
            }
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        SL_UNROLL
        for (int c = 0; c < 2 * panels; c++) {
            _mm256_storeu_ps(y + r * ldy + 8 * c, acc[r][c]);
        }
    }
}

typedef void (*tile_fn)(const char *weights, size_t panel_bytes, const float *x, int64_t ldx, int64_t k, float *y,
                        int64_t ldy, bool fresh);

#define TILE(name, rows, panels, dtype)                                                                                \
    static void name(const char *weights, size_t panel_bytes, const float *x, int64_t ldx, int64_t k, float *y,        \
                     int64_t ldy, bool fresh) {                                                                        \
        tile(rows, panels, dtype, weights, panel_bytes, x, ldx, k, y, ldy, fresh);                                     \
    }
#define TILES(suffix, dtype)                                                                                           \
    TILE(tile_1x4_##suffix, 1, 4, dtype)                                                                               \
    TILE(tile_1x1_##suffix, 1, 1, dtype)                                                                               \
    TILE(tile_2x2_##suffix, 2, 2, dtype)                                                                               \
    TILE(tile_2x1_##suffix, 2, 1, dtype)                                                                               \
    TILE(tile_3x1_##suffix, 3, 1, dtype)                                                                               \
    TILE(tile_4x1_##suffix, 4, 1, dtype)                                                                               \
    TILE(tile_5x1_##suffix, 5, 1, dtype)                                                                               \
    TILE(tile_6x1_##suffix, 6, 1, dtype)
TILES(f32, SL_F32)
TILES(f16, SL_F16)
TILES(bf16, SL_BF16)

// By type and rows: one panel, and the widest that the registers hold.
struct tile_choice {
    tile_fn one, wide;
    int wide_panels;
};
#define CHOICES(suffix)                                                                                                \
    {                                                                                                                  \
        {tile_1x1_##suffix, tile_1x4_##suffix, 4}, {tile_2x1_##suffix, tile_2x2_##suffix, 2},                          \
            {tile_3x1_##suffix, tile_3x1_##suffix, 1}, {tile_4x1_##suffix, tile_4x1_##suffix, 1},                      \
            {tile_5x1_##suffix, tile_5x1_##suffix, 1}, {tile_6x1_##suffix, tile_6x1_##suffix, 1},                      \
    }
static const struct tile_choice choices[3][TILE_ROWS] = {
    [SL_F32] = CHOICES(f32), [SL_F16] = CHOICES(f16), [SL_BF16] = CHOICES(bf16)};

// The last panel may be wider than what is left of y: compute it beside y.
static void tile_ragged(tile_fn fn, int rows, int columns, const char *weights, const float *x, int64_t ldx, int64_t k,
                        float *y, int64_t ldy, bool fresh) {
    float beside[TILE_ROWS * PANEL] = {0};
    for (int r = 0; r < rows && !fresh; r++) {
        memcpy(beside + r * PANEL, y + r * ldy, (size_t)columns * sizeof(float));
    }
    fn(weights, 0, x, ldx, k, beside, PANEL, fresh);
    for (int r = 0; r < rows; r++) {
        memcpy(y + r * ldy, beside + r * PANEL, (size_t)columns * sizeof(float));
    }
}

// --- matmul --------------------------------------------------------------------------------------------------------

struct matmul_args {
    const struct sl_matrix *w;
    const float *x;
    int64_t x_stride, m;
    float *y;
    int64_t n, y_stride; // columns of y
    bool accumulate;
    int64_t panels_per_task, n_panel_groups; // the grid of tasks: panel groups within row blocks
    int64_t rows_per_task;
};

// Few rows: tasks are panel groups; every weight is read once and widened on the way.
static void matmul_stream(void *arg, int64_t begin, int64_t end, int member) {
    const struct matmul_args *a = arg;
    const struct sl_matrix *w = a->w;
    const struct tile_choice *choice = &choices[w->dtype][a->m - 1];
    size_t panel_bytes = (size_t)w->k * PANEL * sl_dtype_bytes(w->dtype);
    int64_t last = min_i64(end * a->panels_per_task, div_up(a->n, PANEL));
    (void)member;
    for (int64_t p = begin * a->panels_per_task; p < last;) {
        const char *weights = (const char *)w->packed + (size_t)p * panel_bytes;
        float *y = a->y + p * PANEL;
        int64_t columns = a->n - p * PANEL;
        if (p + choice->wide_panels <= last && columns >= choice->wide_panels * PANEL) {
            choice->wide(weights, panel_bytes, a->x, a->x_stride, w->k, y, a->y_stride, !a->accumulate);
            p += choice->wide_panels;
        } else if (columns >= PANEL) {
            choice->one(weights, 0, a->x, a->x_stride, w->k, y, a->y_stride, !a->accumulate);
            p++;
        } else {
            tile_ragged(choice->one, (int)a->m, (int)columns, weights, a->x, a->x_stride, w->k, y, a->y_stride,
                        !a->accumulate);
            p++;
        }
    }
}

// K_BLOCK steps of a task's panels, widened, and the same stretch of the x's of one tile.
struct block {
    float weights[PANEL_GROUP][K_BLOCK * PANEL] __attribute__((aligned(64)));
    float x[TILE_ROWS * X_STRIDE];
};

static void widen(const struct sl_matrix *w, int64_t panel, int64_t k_begin, int64_t k_count, float *out) {
    size_t step_bytes = PANEL * sl_dtype_bytes(w->dtype);
    const char *weights = (const char *)w->packed + (size_t)(panel * w->k + k_begin) * step_bytes;
    for (int64_t s = 0; s < k_count; s++) {
        __m256 lo, hi;
        load_step(weights + (size_t)s * step_bytes, w->dtype, &lo, &hi);
        _mm256_store_ps(out + s * PANEL, lo);
        _mm256_store_ps(out + s * PANEL + 8, hi);
    }
}

// One stretch of k for `rows` rows of a tile and all panels of a task.
static void block_tiles(const struct matmul_args *a, struct block *block, int64_t first, int64_t last, int64_t row,
                        int rows, int64_t k_begin, int64_t k_count) {
    bool fresh = k_begin == 0 && !a->accumulate;
    tile_fn fn = choices[SL_F32][rows - 1].one;
    for (int r = 0; r < rows; r++) {
        memcpy(block->x + r * X_STRIDE, a->x + (row + r) * a->x_stride + k_begin, (size_t)k_count * sizeof(float));
    }
    for (int64_t p = first; p < last; p++) {
        const char *weights = (const char *)block->weights[p - first];
        float *y = a->y + row * a->y_stride + p * PANEL;
        int64_t columns = a->n - p * PANEL;
        if (columns >= PANEL) {
            fn(weights, 0, block->x, X_STRIDE, k_count, y, a->y_stride, fresh);
        } else {
            tile_ragged(fn, rows, (int)columns, weights, block->x, X_STRIDE, k_count, y, a->y_stride, fresh);
        }
    }
}

// Many rows: tasks are (row block, panel group) pairs.
static void matmul_block(void *arg, int64_t begin, int64_t end, int member) {
    const struct matmul_args *a = arg;
    const struct sl_matrix *w = a->w;
    struct block block;
    (void)member;
    for (int64_t task = begin; task < end; task++) {
        int64_t row_begin = task / a->n_panel_groups * a->rows_per_task;
        int64_t row_end = min_i64(row_begin + a->rows_per_task, a->m);
        int64_t first = task % a->n_panel_groups * a->panels_per_task;
        int64_t last = min_i64(first + a->panels_per_task, div_up(a->n, PANEL));
        for (int64_t i = 0; i < w->k; i += K_BLOCK) {
            int64_t count = min_i64(K_BLOCK, w->k - i);
            for (int64_t p = first; p < last; p++) {
                widen(w, p, i, count, block.weights[p - first]);
            }
            for (int64_t row = row_begin; row < row_end; row += TILE_ROWS) {
                block_tiles(a, &block, first, last, row, (int)min_i64(TILE_ROWS, row_end - row), i, count);
            }
        }
    }
}

// The sums of args: y = (y +) x W^T.
static void multiply(struct sl_team *team, struct matmul_args *args) {
    const struct sl_matrix *w = args->w;
    int64_t n_panels = div_up(args->n, PANEL), m = args->m;
    int64_t members = sl_team_size(team); // 1 when there is none
    if (m * args->n * w->k < ALONE_WORK) {
        team = NULL;
    }
    if (m <= TILE_ROWS) {
        // A task streams some 64 KiB or more, in multiples of the widest tile, but there are tasks for every member.
        int64_t panels = div_up(65536, w->k * PANEL * (int64_t)sl_dtype_bytes(w->dtype));
        panels = min_i64(panels, div_up(n_panels, members));
        args->panels_per_task = div_up(panels, 4) * 4;
        sl_team_run(team, div_up(n_panels, args->panels_per_task), 1, matmul_stream, args);
        return;
    }
    int64_t n_blocks = div_up(m, ROW_BLOCK);
    args->rows_per_task = div_up(div_up(m, n_blocks), TILE_ROWS) * TILE_ROWS;
    n_blocks = div_up(m, args->rows_per_task);
    args->panels_per_task = PANEL_GROUP;
    while (args->panels_per_task > 1 && n_blocks * div_up(n_panels, args->panels_per_task) < 4 * members) {
        args->panels_per_task /= 2;
    }
    args->n_panel_groups = div_up(n_panels, args->panels_per_task);
    sl_team_run(team, n_blocks * args->n_panel_groups, 1, matmul_block, args);
}

// What sums go through on their way to y: [m][n] of sums, or [m][2n] of them when the matrix is gated.
struct finish_args {
    const struct sl_matrix *w;
    const float *sums;
    int64_t sums_stride;
    float *y;
    int64_t n, y_stride;
};

static inline __m256 activate_8(enum sl_activation activation, __m256 x);

static void finish_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct finish_args *a = arg;
    const float *bias = a->w->bias;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        const float *sums = a->sums + r * a->sums_stride;
        float *y = a->y + r * a->y_stride;
        for (int64_t i = 0; i < a->n; i += 8) {
            // the last ones through the same instructions: an element's bits do not depend on where it lies
            int64_t left = min_i64(8, a->n - i);
            __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            __m256 x = _mm256_maskload_ps(sums + i, lanes);
            if (bias != NULL) {
                x = _mm256_add_ps(x, _mm256_maskload_ps(bias + i, lanes));
            }
            x = activate_8(a->w->activation, x);
            if (a->w->gated) {
                __m256 up = _mm256_maskload_ps(sums + a->n + i, lanes);
                if (bias != NULL) {
                    up = _mm256_add_ps(up, _mm256_maskload_ps(bias + a->n + i, lanes));
                }
                x = _mm256_mul_ps(x, up);
            }
            _mm256_maskstore_ps(y + i, lanes, x);
        }
    }
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return w->gated ? (size_t)(m * w->n) * sizeof(float) : 0;
}

static void matmul(struct sl_team *team, const struct sl_matrix *w, const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    if (args->m < 1) {
        return;
    }
    int64_t outputs = args->n_columns > 0 ? args->n_columns : sl_matrix_outputs(w);
    struct matmul_args product = {.w = w,
                                  .x = args->x,
                                  .x_stride = args->x_stride,
                                  .m = args->m,
                                  .y = w->gated ? args->scratch : args->y,
                                  .n = w->gated ? w->n : outputs,
                                  .y_stride = w->gated ? w->n : args->y_stride,
                                  .accumulate = args->accumulate};
    multiply(team, &product);
    if (w->gated || w->bias != NULL || w->activation != SL_ACT_NONE) {
        struct finish_args finish = {w, product.y, product.y_stride, args->y, outputs, args->y_stride};
        sl_team_run(args->m * outputs < ALONE_WORK ? NULL : team, args->m, div_up(1 << 12, outputs), finish_rows,
                    &finish);
    }
}

// --- the others ----------------------------------------------------------------------------------------------------

static void embed(struct sl_team *team, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    (void)team;
    for (int64_t r = 0; r < m; r++) {
        assert(ids[r] >= 0 && ids[r] < table->n);
        const unsigned char *from = sl_weight_row(table, ids[r]);
        float *to = out + r * table->k;
        int64_t i = 0;
        if (table->dtype == SL_F32) {
            memcpy(to, from, (size_t)table->k * sizeof(float));
            continue;
        }
        for (; i + 8 <= table->k; i += 8) {
            __m128i halves = _mm_loadu_si128((const __m128i *)(from + 2 * i));
            __m256 wide = table->dtype == SL_F16
                              ? _mm256_cvtph_ps(halves)
                              : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
            _mm256_storeu_ps(to + i, wide);
        }
        for (; i < table->k; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = table->dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half);
        }
    }
}

struct norm_args {
    const struct sl_norm *norm;
    const float *x;
    int64_t x_stride;
    int n_groups;
    float *out;
    int64_t out_stride;
};

// sum_i (x[i] - mean)^power for power 1 or 2; 32 partial sums, added in a fixed order
static inline __attribute__((always_inline)) float moment(const float *x, int64_t n, float mean, int power) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        SL_UNROLL
        for (int c = 0; c < 4; c++) {
            __m256 v = _mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * c), _mm256_set1_ps(mean));
            sums[c] = power == 2 ? _mm256_fmadd_ps(v, v, sums[c]) : _mm256_add_ps(v, sums[c]);
        }
    }
    float sum = sl_avx2_sum(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    for (; i < n; i++) {
        float v = x[i] - mean;
        sum += power == 2 ? v * v : v;
    }
    return sum;
}

static void norm_vector(const struct sl_norm *norm, const float *x, float *out) {
    float n = (float)norm->n, mean = norm->kind == SL_NORM_LAYER ? moment(x, norm->n, 0.0f, 1) / n : 0.0f;
    float scale = 1.0f / sqrtf(moment(x, norm->n, mean, 2) / n + norm->eps);
    int64_t i = 0;
    for (; i + 8 <= norm->n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(mean)), _mm256_set1_ps(scale));
        v = _mm256_mul_ps(v, _mm256_loadu_ps(norm->weight + i));
        _mm256_storeu_ps(out + i, norm->bias != NULL ? _mm256_add_ps(v, _mm256_loadu_ps(norm->bias + i)) : v);
    }
    for (; i < norm->n; i++) {
        float v = (x[i] - mean) * scale * norm->weight[i];
        out[i] = norm->bias != NULL ? v + norm->bias[i] : v;
    }
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct norm_args *a = arg;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t g = 0; g < a->n_groups; g++) {
            norm_vector(a->norm, a->x + r * a->x_stride + g * a->norm->n, a->out + r * a->out_stride + g * a->norm->n);
        }
    }
}

static void norm(struct sl_team *team, const struct sl_norm *norm, const float *x, int64_t x_stride, int64_t m,
                 int n_groups, float *out, int64_t out_stride) {
    struct norm_args args = {norm, x, x_stride, n_groups, out, out_stride};
    int64_t row = norm->n * n_groups;
    sl_team_run(m * row < ALONE_WORK ? NULL : team, m, div_up(1 << 14, row), norm_rows, &args);
}

struct angles_args {
    const struct sl_rope *rope;
    const int64_t *positions;
    float *cosines, *sines;
};

static void angles_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct angles_args *a = arg;
    int half = a->rope->rotary_dim / 2;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        sl_rope_angles(a->rope, a->positions[r], a->cosines + r * half, a->sines + r * half);
    }
}

static void angles(struct sl_team *team, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    struct angles_args args = {rope, positions, cosines, sines};
    sl_team_run(m < 8 ? NULL : team, m, 8, angles_rows, &args);
}

struct rotate_args {
    const struct sl_rope *rope;
    const float *cosines, *sines;
    float *x;
    int64_t stride;
    int n_heads;
};

// (a, b) = (x[i], x[i + half]) becomes (a cos - b sin, b cos + a sin)
static void rotate_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct rotate_args *args = arg;
    int half = args->rope->rotary_dim / 2;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        const float *cosines = args->cosines + r * half, *sines = args->sines + r * half;
        for (int h = 0; h < args->n_heads; h++) {
            float *head = args->x + r * args->stride + (int64_t)h * args->rope->head_dim;
            for (int i = 0; i < half; i += 4) { // rotary_dim is a multiple of 8, so half is one of 4
                __m128 a = _mm_loadu_ps(head + i), b = _mm_loadu_ps(head + i + half);
                __m128 c = _mm_loadu_ps(cosines + i), s = _mm_loadu_ps(sines + i);
                _mm_storeu_ps(head + i, _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s)));
                _mm_storeu_ps(head + i + half, _mm_add_ps(_mm_mul_ps(b, c), _mm_mul_ps(a, s)));
            }
        }
    }
}

static void rotate(struct sl_team *team, const struct sl_rope *rope, const float *cosines, const float *sines, float *x,
                   int64_t stride, int64_t m, int n_heads) {
    struct rotate_args args = {rope, cosines, sines, x, stride, n_heads};
    assert(rope->rotary_dim % 8 == 0);
    sl_team_run(m < 16 ? NULL : team, m, 8, rotate_rows, &args);
}

// Lane by lane where there is no vector form: these activations are of families with small MLPs.
static __m256 by_lane(enum sl_activation activation, __m256 x) {
    float lanes[8];
    _mm256_storeu_ps(lanes, x);
    for (int i = 0; i < 8; i++) {
        lanes[i] = sl_activate(activation, lanes[i]);
    }
    return _mm256_loadu_ps(lanes);
}

static inline __m256 activate_8(enum sl_activation activation, __m256 x) {
    if (activation == SL_ACT_NONE) {
        return x;
    }
    if (activation != SL_ACT_SILU) {
        return by_lane(activation, x);
    }
    __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0f), sl_avx2_exp(_mm256_sub_ps(_mm256_setzero_ps(), x)));
    return _mm256_div_ps(x, denominator);
}

void sl_avx2_dense_fill(struct sl_ops *ops) {
    ops->pack = pack;
    ops->unpack = unpack;
    ops->matmul_scratch = matmul_scratch;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->angles = angles;
    ops->rotate = rotate;
}
