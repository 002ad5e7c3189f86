// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: matmul with the codes of a file: dot products of 8-bit integers (VNNI), without making floats of weights.
 *
 * matmul   y[r][j] (+)= sum_i x[r][i] W[j][i]        x [m][k], W [n][k], y [m][n]
 *
 * Design: 32 weights of a row of x share a scale t and become 16-bit integers X, x = t X, as two bytes: X = 256 h + l.
 *         For the 32 (or 16) weights of W that share a scale, with x^ = (D s) (c - zero) + (O o):
 *
 *             y += (D s) t (256 sum h c + sum l c - zero sum X) + (O o) (t sum X)
 *
 *         The sums are exact in 32 bits. |x - t X| is at most 2^-16 of the largest |x| of the 32, which is less than
 *         the rounding of x to bf16 that other tiers allow themselves.
 *
 *         Codes become bytes in registers as they are read, which costs little beside the products of eight rows. Few
 *         rows are bound by memory. More rows are tiles of eight: STRETCH groups of their x stay in L1, and those of a
 *         few panels of W in L2.
 *
 * Invariants: an element starts from 0 (or y), and takes its groups in ascending order with one fused multiply-add for
 *             the scale and one for the offset. Neither m, nor the tile, nor the number of threads changes a bit.
 */
#include "engine/tensor/cpu/dense/avx512vnni_codes.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/avx512_dense.h"
#include "engine/tensor/cpu/dense/avx512_codes.h"
#include "engine/tensor/cpu/dense/avx512_sums.h"
#include "engine/tensor/cpu/dense/fills.h"

#define TILE_ROWS   8  // registers for two sums and y each
#define STRETCH     32 // groups: 24 KiB of x
#define PANEL_GROUP 8  // panels of a task: a stretch of them is 150 KiB of Q4_K
#define ROW_BLOCK   (TILE_ROWS * 32)
#define AHEAD       4096 // bytes that a tile asks for before it reads them

// --- x ---------------------------------------------------------------------------------------------------------------

// A group of a row of x. The third sum is that of all 32 X, the first two are of their halves.
struct x_group {
    int8_t high[SL_CODE_GROUP], low[SL_CODE_GROUP];
    float scale;
    float scaled[3]; // scale * sums
    int32_t sums[3];
    int32_t unused;
};

static const float largest = 127.0f * 256.0f; // so that `high` fits a byte
static const float least = 0x1p-100f;         // groups without a larger |x| are zeros: 1 / x would not be finite

static void split_group(const float *x, struct x_group *out) {
    __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    __m512i magnitudes =
        _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(values[0])), _mm512_castps_si512(_mm512_abs_ps(values[1])));
    float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(magnitudes)))); // keeps NaN
    __m512 inverse = _mm512_set1_ps(most < least ? 0.0f : largest / most);
    out->scale = most < least ? 0.0f : most / largest;
    for (int half = 0; half < 2; half++) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[half], inverse));
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
        __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 8));
        _mm_storeu_si128((__m128i *)out->high + half, _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)out->low + half, _mm512_cvtepi32_epi8(low));
        out->sums[half] = _mm512_reduce_add_epi32(whole);
    }
    out->sums[2] = out->sums[0] + out->sums[1];
    for (int i = 0; i < 3; i++) {
        out->scaled[i] = out->scale * (float)out->sums[i];
    }
    out->unused = 0;
}

static void split_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    int64_t groups = a->w->k / SL_CODE_GROUP;
    (void)member;
    for (int64_t r = a->first_task + begin; r < a->first_task + end; r++) {
        struct x_group *out = (struct x_group *)a->scratch + r * groups;
        for (int64_t g = 0; g < groups; g++) {
            split_group(a->x + r * a->x_stride + g * SL_CODE_GROUP, &out[g]);
        }
    }
}

size_t sl_vnni_matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return (size_t)(m * (w->k / SL_CODE_GROUP)) * sizeof(struct x_group);
}

void sl_vnni_arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                     int n_parts) {
    struct sl_product a = sl_product_of(w, args);
    a.first_task = a.m * part / n_parts;
    sl_stream_run(a.m * w->k < SL_ALONE_WORK ? NULL : stream, a.m * (part + 1) / n_parts - a.first_task, 1, split_rows,
                  &a);
}

// --- a group ---------------------------------------------------------------------------------------------------------

SL_INLINE __m512i four_bytes(const int8_t *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
}

// The same group of several rows of x.
struct x_rows {
    const struct x_group *first;
    int64_t ldx; // groups from row to row
};

// Adds the products of the weights of a group that share scale number `share` to y[rows].
SL_INLINE void add_share(struct sl_code_form form, int rows, const char *codes, int share,
                         const struct sl_group_scales *of, struct x_rows x, __m512 *y) {
    const int steps = form.shared / 4, which = form.shared == SL_CODE_GROUP ? 2 : share;
    __m512i high[TILE_ROWS], low[TILE_ROWS];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        high[r] = low[r] = _mm512_setzero_si512();
    }
    SL_UNROLL
    for (int s = 0; s < steps; s++) {
        const int step = share * steps + s;
        __m512i c = sl_load_codes(form, codes, step);
        SL_UNROLL
        for (int r = 0; r < rows; r++) {
            high[r] = _mm512_dpbusd_epi32(high[r], c, four_bytes(x.first[r * x.ldx].high + 4 * step));
            low[r] = _mm512_dpbusd_epi32(low[r], c, four_bytes(x.first[r * x.ldx].low + 4 * step));
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        const struct x_group *group = &x.first[r * x.ldx];
        __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[r], 8), low[r]);
        if (form.zero_shift >= 0) {
            __m512i all = _mm512_set1_epi32(group->sums[which]);
            sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(all, (unsigned)form.zero_shift));
        }
        __m512 scaled = _mm512_mul_ps(of->scales[share], _mm512_set1_ps(group->scale));
        y[r] = _mm512_fmadd_ps(scaled, _mm512_cvtepi32_ps(sum), y[r]);
        if (form.has_offset) {
            y[r] = _mm512_fmadd_ps(of->offsets[share], _mm512_set1_ps(group->scaled[which]), y[r]);
        }
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

/*
 * sums[rows][16] += x[rows][n_groups] W, for half a panel. ldx: groups from row to row; sums are SL_PANEL floats apart.
 * Called with a constant form and rows, so that all sums stay in registers.
 */
SL_INLINE void tile(struct sl_code_form form, int rows, const char *half, const struct x_group *x, int64_t ldx,
                    int64_t n_groups, float *sums) {
    __m512 y[TILE_ROWS];
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        y[r] = _mm512_load_ps(sums + r * SL_PANEL);
    }
    const size_t code_bytes = sl_code_group_bytes(form.bits);
    for (int64_t g = 0; g < n_groups; g += form.block) {
        __m512 block_scales[2];
        half = sl_load_block_scales(form, half, block_scales);
        for (int i = 0; i < form.block; i++, x++) {
            struct sl_group_scales of = sl_load_scales(form, block_scales, &half);
            for (size_t line = 0; line < code_bytes; line += 64) {
                _mm_prefetch(half + AHEAD + line, _MM_HINT_T0);
            }
            SL_UNROLL
            for (int share = 0; share < SL_CODE_GROUP / form.shared; share++) {
                add_share(form, rows, half, share, &of, (struct x_rows){x, ldx}, y);
            }
            half += code_bytes;
        }
    }
    SL_UNROLL
    for (int r = 0; r < rows; r++) {
        _mm512_store_ps(sums + r * SL_PANEL, y[r]);
    }
}

typedef void (*tile_fn)(const char *half, const struct x_group *x, int64_t ldx, int64_t n_groups, float *sums);

#define TILE(name, rows, ...)                                                                                          \
    static void name##_##rows(const char *half, const struct x_group *x, int64_t ldx, int64_t n_groups, float *sums) { \
        tile((struct sl_code_form){__VA_ARGS__}, rows, half, x, ldx, n_groups, sums);                                  \
    }
#define TILES(name, ...)                                                                                               \
    TILE(name, 1, __VA_ARGS__)                                                                                         \
    TILE(name, 2, __VA_ARGS__)                                                                                         \
    TILE(name, 3, __VA_ARGS__)                                                                                         \
    TILE(name, 4, __VA_ARGS__)                                                                                         \
    TILE(name, 5, __VA_ARGS__)                                                                                         \
    TILE(name, 6, __VA_ARGS__)                                                                                         \
    TILE(name, 7, __VA_ARGS__)                                                                                         \
    TILE(name, 8, __VA_ARGS__)                                                                                         \
    static const tile_fn name[TILE_ROWS] = {name##_1, name##_2, name##_3, name##_4,                                    \
                                            name##_5, name##_6, name##_7, name##_8};
SL_CODE_FORMS(TILES)

static const tile_fn *tiles_of(enum sl_dtype dtype) { // by rows - 1
#define ENTRY(name, ...) [SL_##name] = name,
    static const tile_fn *const all[] = {SL_CODE_FORMS(ENTRY)};
    return all[dtype];
}

// --- matmul ----------------------------------------------------------------------------------------------------------

static int64_t groups_of(const struct sl_product *a) {
    return a->w->k / SL_CODE_GROUP;
}

static void multiply(const struct sl_product *a, const struct sl_panel_task *task, float sums[][ROW_BLOCK * SL_PANEL]) {
    int64_t even_rows = sl_div_up(task->rows, sl_div_up(task->rows, TILE_ROWS)); // so that no tile has only a few
    int64_t n = task->last - task->first, groups = groups_of(a);
    struct sl_code_half halves[2 * PANEL_GROUP];
    for (int64_t h = 0; h < 2 * n; h++) {
        halves[h] = sl_code_half_at(a->w, task->first + h / 2, (int)(h % 2));
    }
    for (int64_t p = 0; p < n; p++) {
        sl_sums_start(a, task->first + p, task->row, task->rows, sums[p]);
    }
    int64_t stretch = task->rows > TILE_ROWS ? STRETCH : groups; // one tile reads a half panel from end to end
    for (int64_t g = 0; g < groups; g += stretch) {
        int64_t count = sl_min(stretch, groups - g);
        for (int64_t r = 0, rows; r < task->rows; r += rows) {
            rows = sl_min(even_rows, task->rows - r);
            const struct x_group *x = (const struct x_group *)a->scratch + (task->row + r) * groups + g;
            for (int64_t h = 0; h < 2 * n; h++) {
                if (halves[h].type != NULL) {
                    size_t read = sl_code_half_bytes(halves[h].type, g * SL_CODE_GROUP);
                    tiles_of(halves[h].dtype)[rows - 1](halves[h].data + read, x, groups, count,
                                                        sums[h / 2] + r * SL_PANEL + h % 2 * SL_HALF);
                }
            }
        }
    }
    for (int64_t p = 0; p < n; p++) {
        sl_sums_finish(a, task->first + p, task->row, task->rows, sums[p]);
    }
}

// A task is a (row block, panel group) pair.
static void multiply_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_product *a = arg;
    float sums[PANEL_GROUP][ROW_BLOCK * SL_PANEL] __attribute__((aligned(64)));
    (void)member;
    for (int64_t t = begin; t < end; t++) {
        struct sl_panel_task task = sl_panel_task(&a->tasks, t);
        multiply(a, &task, sums);
    }
}

void sl_vnni_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    assert(!w->gated || (!args->accumulate && args->n_columns == 0));
    struct sl_product a = sl_product_of(w, args);
    if (a.m < 1) {
        return;
    }
    if (!args->arranged) {
        sl_vnni_arrange(stream, w, args, 0, 1);
    }
    struct sl_stream *used = a.m * a.n_panels * SL_PANEL * w->k < SL_ALONE_WORK ? NULL : stream;
    a.tasks = sl_panel_blocks(stream, a.m, ROW_BLOCK, TILE_ROWS, a.n_panels, PANEL_GROUP);
    sl_stream_run(used, a.tasks.n, 1, multiply_tasks, &a);
}

// --- tier avx512vnni -------------------------------------------------------------------------------------------------

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return matrix->format == SL_WEIGHT_CODES ? sl_code_pack(stream, matrix, err) : sl_avx512_pack(stream, matrix, err);
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return w->format == SL_WEIGHT_CODES ? sl_vnni_matmul_scratch(w, m) : sl_avx512_matmul_scratch(w, m);
}

static bool arranges(const struct sl_matrix *w) {
    return w->format == SL_WEIGHT_CODES;
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    if (w->format == SL_WEIGHT_CODES) {
        sl_vnni_matmul(stream, w, args);
    } else {
        sl_avx512_matmul(stream, w, args);
    }
}

void sl_avx512vnni_dense_fill(struct sl_ops *ops) {
    ops->keeps_codes = true;
    ops->pack = pack;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = arranges;
    ops->arrange = sl_vnni_arrange;
    ops->matmul = matmul;
}
