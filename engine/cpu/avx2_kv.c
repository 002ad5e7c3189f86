// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX2. The formulas are those of ref_kv.c.
 *
 * Design: a query vector is one (row, query head) pair. A task takes up to BLOCK vectors of one KV head, scaled (and
 *         rotated) once into scratch, and goes through the pages with them: a page is turned into f32 tiles once and
 *         used for all of them; for one or two vectors, f16 rows are converted in registers instead.
 *         Bits: a score is 8 partial sums over d (lane i adds channels i, i+8, ...) and one fixed tree over the lanes;
 *         an output channel is one chain of fused multiply-adds over the slots in order. Neither depends on how many
 *         vectors or keys a kernel works on together, so blocking never shows in a result.
 */
#include "engine/cpu/avx2_kv.h"

#include <string.h>

#define BLOCK      64 // query vectors of one task: their scratch stays in the second-level cache
#define DIRECT_MAX 2  // up to so many vectors, converting f16 in registers beats writing a tile

enum rows { ROWS_F32, ROWS_F16 };

static inline __attribute__((always_inline)) __m256 load8(const void *base, size_t e, enum rows rows) {
    return rows == ROWS_F16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)base + e)))
                            : _mm256_loadu_ps((const float *)base + e);
}

// Lanes of x0..x3 summed: 4 sums, always ((0+1)+(2+3)) + ((4+5)+(6+7)).
static inline __attribute__((always_inline)) __m128 sum4(__m256 x0, __m256 x1, __m256 x2, __m256 x3) {
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(x0, x1), _mm256_hadd_ps(x2, x3));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

// scores[q][j .. j+4) = q . K_j for n_q (1 or 2, a constant at every call) vectors
static inline __attribute__((always_inline)) void dot4(const float *q, int n_q, const void *keys, size_t j, int d,
                                                       enum rows rows, float (*scores)[SL_PAGE_SLOTS]) {
    __m256 sum[2][4];
    for (int a = 0; a < n_q; a++) {
        sum[a][0] = sum[a][1] = sum[a][2] = sum[a][3] = _mm256_setzero_ps();
    }
    size_t row = (size_t)d;
    for (size_t i = 0; i < row; i += 8) {
        __m256 q0 = _mm256_loadu_ps(q + i), q1 = n_q > 1 ? _mm256_loadu_ps(q + row + i) : q0;
        SL_UNROLL
        for (size_t b = 0; b < 4; b++) {
            __m256 k = load8(keys, (j + b) * row + i, rows);
            sum[0][b] = _mm256_fmadd_ps(q0, k, sum[0][b]);
            if (n_q > 1) {
                sum[1][b] = _mm256_fmadd_ps(q1, k, sum[1][b]);
            }
        }
    }
    for (int a = 0; a < n_q; a++) {
        _mm_storeu_ps(scores[a] + j, sum4(sum[a][0], sum[a][1], sum[a][2], sum[a][3]));
    }
}

// The scores of n_q vectors against the first n keys; up to the next multiple of 8 they are computed and masked.
static void score_keys(const float *q, int n_q, const void *keys, int n, int d, enum rows rows,
                       float (*scores)[SL_PAGE_SLOTS]) {
    size_t padded = ((size_t)n + 7) / 8 * 8;
    for (size_t j = 0; j < padded; j += 4) {
        if (n_q > 1) {
            rows == ROWS_F16 ? dot4(q, 2, keys, j, d, ROWS_F16, scores) : dot4(q, 2, keys, j, d, ROWS_F32, scores);
        } else {
            rows == ROWS_F16 ? dot4(q, 1, keys, j, d, ROWS_F16, scores) : dot4(q, 1, keys, j, d, ROWS_F32, scores);
        }
    }
}

// The lanes of scores j .. j+8 that are below n; minus infinity above it.
static inline __m256 masked(const float *scores, int j, int n) {
    __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 below = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(scores + j), below);
}

struct softmax {
    float max, sum;
};

// Scores become weights exp(s - max'); returns c, by which what was summed before must be scaled.
static float softmax_add(struct softmax *s, float *scores, int n) {
    __m256 most = _mm256_set1_ps(s->max);
    for (int j = 0; j < n; j += 8) {
        most = _mm256_max_ps(most, masked(scores, j, n));
    }
    float max = sl_avx2_max(most);
    __m256 sum = _mm256_setzero_ps(), shift = _mm256_set1_ps(max);
    for (int j = 0; j < n; j += 8) {
        __m256 p = sl_avx2_exp(_mm256_sub_ps(masked(scores, j, n), shift));
        _mm256_storeu_ps(scores + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    float c = _mm256_cvtss_f32(sl_avx2_exp(_mm256_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx2_sum(sum);
    return c;
}

// out[i .. i + 8 n_v) = out c + sum_j p_j V_j[i ..]
static inline __attribute__((always_inline)) void add_values(float *out, float c, const float *p, const void *values,
                                                             int n, size_t i, int d, int n_v, enum rows rows) {
    __m256 sum[8];
    SL_UNROLL
    for (int b = 0; b < n_v; b++) {
        sum[b] = _mm256_mul_ps(_mm256_loadu_ps(out + i + 8 * b), _mm256_set1_ps(c));
    }
    for (int j = 0; j < n; j++) {
        __m256 w = _mm256_broadcast_ss(p + j);
        SL_UNROLL
        for (int b = 0; b < n_v; b++) {
            sum[b] = _mm256_fmadd_ps(w, load8(values, (size_t)j * (size_t)d + i + 8 * (size_t)b, rows), sum[b]);
        }
    }
    SL_UNROLL
    for (int b = 0; b < n_v; b++) {
        _mm256_storeu_ps(out + i + 8 * b, sum[b]);
    }
}

static void weigh_values(float *out, float c, const float *p, const void *values, int n, int d, enum rows rows) {
    size_t i = 0;
    for (; i + 64 <= (size_t)d; i += 64) {
        rows == ROWS_F16 ? add_values(out, c, p, values, n, i, d, 8, ROWS_F16)
                         : add_values(out, c, p, values, n, i, d, 8, ROWS_F32);
    }
    for (; i < (size_t)d; i += 8) {
        rows == ROWS_F16 ? add_values(out, c, p, values, n, i, d, 1, ROWS_F16)
                         : add_values(out, c, p, values, n, i, d, 1, ROWS_F32);
    }
}

// --- a call ----------------------------------------------------------------------------------------------------------

struct call {
    struct sl_attend args;
    const struct sl_avx2_slot_angles *angles; // NULL: keys are rotated already
    int group;                                // query heads a KV head
    int64_t n_vectors;                        // a KV head: m * group
};

static size_t query_offset(const struct call *call, int head, int64_t vector) {
    int64_t row = vector / call->group, g = vector % call->group;
    return ((size_t)row * (size_t)call->args.n_heads + (size_t)(head * call->group + g)) * (size_t)call->args.head_dim;
}

static float *lse_of(const struct call *call, int head, int64_t vector) {
    int64_t row = vector / call->group, g = vector % call->group;
    return call->args.lse + (size_t)(head * call->group + g) * (size_t)call->args.m + (size_t)row;
}

// Query vectors [begin, begin + n) of a KV head, scaled and rotated, to q[n][d].
static void load_queries(const struct call *call, int head, int64_t begin, int n, struct sl_avx2_page_angles *of_page,
                         float *q) {
    int d = call->args.head_dim;
    for (int v = 0; v < n; v++, q += d) {
        const float *from = call->args.q + query_offset(call, head, begin + v);
        if (call->angles != NULL) {
            int64_t slot = (int64_t)call->args.kv[head].n_slots - call->args.m + (begin + v) / call->group;
            sl_avx2_rotate_slot(call->angles, of_page, slot, from, q);
            from = q;
        }
        for (int i = 0; i < d; i += 8) {
            _mm256_storeu_ps(q + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(call->args.scale)));
        }
    }
}

static const float *load_keys(const struct call *call, int head, uint32_t page, int n,
                              struct sl_avx2_page_angles *of_page, float *tile) {
    const struct sl_kv *kv = &call->args.kv[head];
    int d = call->args.head_dim;
    const float *keys = sl_avx2_load_k(sl_kv_page_layout(kv, page), kv->pages[page], n, tile);
    if (call->angles == NULL) {
        return keys;
    }
    for (int j = 0; j < n; j++) {
        sl_avx2_rotate_slot(call->angles, of_page, (int64_t)page * SL_PAGE_SLOTS + j, keys + j * d, tile + j * d);
    }
    return tile;
}

struct scratch {
    _Alignas(64) float q[BLOCK * SL_MAX_HEAD_DIM];
    _Alignas(64) float k[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    _Alignas(64) float v[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    _Alignas(64) float scores[2][SL_PAGE_SLOTS];
    struct sl_avx2_page_angles of_page;
};

// The pages' rows as the kernels read them.
struct tiles {
    const void *k, *v;
    enum rows k_rows, v_rows;
};

static struct tiles load_page(const struct call *call, int head, uint32_t page, int n, bool direct, struct scratch *s) {
    const struct sl_kv *kv = &call->args.kv[head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    const char *at = kv->pages[page];
    direct = direct && layout->format == SL_KV_F16;
    int padded = (n + 7) / 8 * 8; // what score_keys() reads
    struct tiles t = {at + layout->k, at + layout->v, ROWS_F16, ROWS_F16};
    if (!direct || call->angles != NULL) {
        t.k = load_keys(call, head, page, padded, &s->of_page, s->k);
        t.k_rows = ROWS_F32;
    }
    if (!direct) {
        t.v = sl_avx2_load_v(layout, at, n, s->v);
        t.v_rows = ROWS_F32;
    }
    return t;
}

// --- attend ----------------------------------------------------------------------------------------------------------

// Task: query vectors [begin, begin + n_vectors) of one KV head. `out` of the call is where the sums grow.
static void attend_block(const struct call *call, int head, int64_t begin, int n_vectors) {
    const struct sl_attend *args = &call->args;
    const struct sl_kv *kv = &args->kv[head];
    int d = args->head_dim;
    struct scratch s;
    struct softmax state[BLOCK];
    s.of_page.page = -1;
    load_queries(call, head, begin, n_vectors, &s.of_page, s.q);
    for (int v = 0; v < n_vectors; v++) {
        state[v] = (struct softmax){-INFINITY, 0.0f};
        memset(args->out + query_offset(call, head, begin + v), 0, (size_t)d * sizeof *args->out);
    }
    int last_row = (int)((begin + n_vectors - 1) / call->group);
    for (uint32_t page = 0; page < sl_pages_for(kv->n_slots); page++) {
        int n_page = sl_attend_visible(args, kv, last_row, page); // the last row sees the most
        if (n_page == 0) {
            break;
        }
        struct tiles t = load_page(call, head, page, n_page, n_vectors <= DIRECT_MAX, &s);
        for (int v = 0; v < n_vectors; v += 2) {
            int n_q = v + 1 < n_vectors ? 2 : 1;
            int n_last = sl_attend_visible(args, kv, (int)((begin + v + n_q - 1) / call->group), page);
            score_keys(s.q + (size_t)v * (size_t)d, n_q, t.k, n_last, d, t.k_rows, s.scores);
            for (int a = 0; a < n_q; a++) {
                int n = sl_attend_visible(args, kv, (int)((begin + v + a) / call->group), page);
                if (n > 0) {
                    float c = softmax_add(&state[v + a], s.scores[a], n);
                    weigh_values(args->out + query_offset(call, head, begin + v + a), c, s.scores[a], t.v, n, d,
                                 t.v_rows);
                }
            }
        }
    }
    for (int v = 0; v < n_vectors; v++) {
        float *out = args->out + query_offset(call, head, begin + v);
        for (int i = 0; i < d; i += 8) {
            _mm256_storeu_ps(out + i, _mm256_div_ps(_mm256_loadu_ps(out + i), _mm256_set1_ps(state[v].sum)));
        }
        if (args->lse != NULL) {
            *lse_of(call, head, begin + v) = state[v].max + logf(state[v].sum);
        }
    }
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct call *call = arg;
    int64_t n_blocks = (call->n_vectors + BLOCK - 1) / BLOCK;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task % n_blocks * BLOCK, left = call->n_vectors - first;
        attend_block(call, (int)(task / n_blocks), first, left < BLOCK ? (int)left : BLOCK);
    }
}

// --- column sums -----------------------------------------------------------------------------------------------------

// Task: one page of one KV head, all query vectors in order.
static void column_sums_page(const struct call *call, int head, uint32_t page) {
    const struct sl_attend *args = &call->args;
    const struct sl_kv *kv = &args->kv[head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    if (page >= sl_pages_for(kv->n_slots) || layout->n_states == 0) {
        return; // the heads differ in length; packed pages may have dropped their score
    }
    int d = args->head_dim, n_page = sl_attend_visible(args, kv, args->m - 1, page);
    struct scratch s;
    s.of_page.page = -1;
    struct tiles t = load_page(call, head, page, n_page, false, &s);
    _Alignas(32) float sums[SL_PAGE_SLOTS] = {0};
    for (int64_t begin = 0; begin < call->n_vectors; begin += BLOCK) {
        int n_vectors = call->n_vectors - begin < BLOCK ? (int)(call->n_vectors - begin) : BLOCK;
        if (sl_attend_visible(args, kv, (int)((begin + n_vectors - 1) / call->group), page) == 0) {
            continue;
        }
        load_queries(call, head, begin, n_vectors, &s.of_page, s.q);
        for (int v = 0; v < n_vectors; v++) {
            int n = sl_attend_visible(args, kv, (int)((begin + v) / call->group), page);
            score_keys(s.q + (size_t)v * (size_t)d, 1, t.k, n, d, t.k_rows, s.scores);
            __m256 lse = _mm256_set1_ps(*lse_of(call, head, begin + v));
            for (int j = 0; j < n; j += 8) {
                __m256 p = sl_avx2_exp(_mm256_sub_ps(masked(s.scores[0], j, n), lse));
                _mm256_store_ps(sums + j, _mm256_add_ps(_mm256_load_ps(sums + j), p));
            }
        }
    }
    float *state = sl_page_state(layout, kv->pages[page], SL_STATE_ACC);
    for (int j = 0; j < n_page; j++) {
        state[j] += sums[j] / (float)call->group;
    }
}

static void column_sums_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct call *call = arg;
    for (int64_t task = begin; task < end; task++) {
        column_sums_page(call, (int)(task % call->args.n_kv_heads), (uint32_t)(task / call->args.n_kv_heads));
    }
}

// --- the entries -----------------------------------------------------------------------------------------------------

static void run(struct sl_team *team, const struct sl_attend *args, struct sl_avx2_slot_angles *angles,
                sl_team_fn tasks, int64_t n_tasks) {
    int group = args->n_heads / args->n_kv_heads;
    struct call call = {.args = *args, .group = group, .n_vectors = (int64_t)args->m * group};
    if (args->rope != NULL) {
        sl_avx2_slot_angles_init(angles, args->rope);
        call.angles = angles;
    }
    sl_team_run(team, n_tasks, 1, tasks, &call);
}

static void attend(struct sl_team *team, const struct sl_attend *args) {
    struct sl_avx2_slot_angles angles;
    int64_t n_vectors = (int64_t)args->m * (args->n_heads / args->n_kv_heads);
    run(team, args, &angles, attend_tasks, args->n_kv_heads * ((n_vectors + BLOCK - 1) / BLOCK));
}

static void column_sums(struct sl_team *team, const struct sl_attend *args) {
    struct sl_avx2_slot_angles angles;
    uint32_t n_pages = 0; // of the longest head
    for (int h = 0; h < args->n_kv_heads; h++) {
        uint32_t n = sl_pages_for(args->kv[h].n_slots);
        n_pages = n > n_pages ? n : n_pages;
    }
    run(team, args, &angles, column_sums_tasks, (int64_t)n_pages * args->n_kv_heads);
}

void sl_avx2_kv_fill(struct sl_ops *ops) {
    ops->append = sl_avx2_append;
    ops->attend = attend;
    ops->column_sums = column_sums;
}
