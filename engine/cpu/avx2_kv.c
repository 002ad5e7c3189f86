// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX2. The formulas are those of ref_kv.c.
 *
 * Design: a query vector is one (row, query head) pair. A task takes up to BLOCK vectors of one KV head, scaled (and
 *         rotated) once into scratch, and goes through the pages with them: a page is turned into f32 tiles (avx2_kv.h)
 *         once and used for all of them. Scores and weighted values are then the same kernel, chain(): A times strips.
 *
 *         Bits: a score is one chain of fused multiply-adds over the channels in order, an output channel one chain
 *         over the slots in order, whatever the page's format. Neither depends on how many vectors or columns a kernel
 *         works on together, so blocking never shows in a result.
 */
#include "engine/cpu/avx2_kv.h"

#include <assert.h>
#include <string.h>

#define BLOCK    96 // query vectors of one task: a multiple of ROWS; their scratch stays in the second-level cache
#define ROWS     6  // of A in one kernel: 6 by 16 sums, 2 loads and a broadcast take 15 of 16 registers
#define RUN      4  // pages of one task of column_sums
#define MAX_WIDE ((SL_MAX_HEAD_DIM + SL_STRIP - 1) / SL_STRIP * SL_STRIP)

// --- the kernel ------------------------------------------------------------------------------------------------------

// C[v][x] = factor[v] C[v][x] + sum_e A[v][e] B[e][x], e ascending; without factor C is only written.
struct product {
    const float *a; // [n_rows][a_stride]
    size_t a_stride;
    const float *b; // strips of strip_rows rows, begin_e .. end_e of which are used
    size_t strip_rows;
    float *c; // [n_rows][c_stride]
    size_t c_stride;
    const float *factor; // [n_rows] or NULL
};

// n_rows by n_strips strips, both constants at every call, of the strips from b and the columns from c on.
static inline __attribute__((always_inline)) void chain(const struct product *p, const float *a, const float *b,
                                                        float *c, const float *factor, size_t begin, size_t end,
                                                        int n_rows, int n_strips) {
    __m256 sum[ROWS][2 * SL_PAGE_STRIPS];
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int x = 0; x < 2 * n_strips; x++) {
            sum[v][x] = factor == NULL ? _mm256_setzero_ps()
                                       : _mm256_mul_ps(_mm256_load_ps(c + (size_t)v * p->c_stride + 8 * x),
                                                       _mm256_broadcast_ss(factor + v));
        }
    }
    size_t strip = p->strip_rows * SL_STRIP, a_stride = p->a_stride;
    b += begin * SL_STRIP;
    for (size_t e = begin; e < end; e++, b += SL_STRIP) {
        SL_UNROLL
        for (int s = 0; s < n_strips; s++) {
            __m256 b0 = _mm256_load_ps(b + (size_t)s * strip), b1 = _mm256_load_ps(b + (size_t)s * strip + 8);
            SL_UNROLL
            for (int v = 0; v < n_rows; v++) {
                __m256 w = _mm256_broadcast_ss(a + (size_t)v * a_stride + e);
                sum[v][2 * s] = _mm256_fmadd_ps(w, b0, sum[v][2 * s]);
                sum[v][2 * s + 1] = _mm256_fmadd_ps(w, b1, sum[v][2 * s + 1]);
            }
        }
    }
    SL_UNROLL
    for (int v = 0; v < n_rows; v++) {
        SL_UNROLL
        for (int x = 0; x < 2 * n_strips; x++) {
            _mm256_store_ps(c + (size_t)v * p->c_stride + 8 * x, sum[v][x]);
        }
    }
}

// Few rows take several strips at a time: a lone chain would wait for itself.
static void multiply_rows(const struct product *p, int row, int n_rows, int n_strips, size_t begin, size_t end) {
    const float *a = p->a + (size_t)row * p->a_stride, *b = p->b;
    const float *factor = p->factor == NULL ? NULL : p->factor + row;
    float *c = p->c + (size_t)row * p->c_stride;
    int wide = n_rows == 1 ? 4 : n_rows == 2 ? 2 : 1;
    for (int s = 0; s < n_strips;) {
        int n = s + wide <= n_strips ? wide : 1;
        switch (n_rows * 8 + n) { // every case is a kernel of its own
        case 1 * 8 + 4:
            chain(p, a, b, c, factor, begin, end, 1, 4);
            break;
        case 1 * 8 + 1:
            chain(p, a, b, c, factor, begin, end, 1, 1);
            break;
        case 2 * 8 + 2:
            chain(p, a, b, c, factor, begin, end, 2, 2);
            break;
        case 2 * 8 + 1:
            chain(p, a, b, c, factor, begin, end, 2, 1);
            break;
        case 3 * 8 + 1:
            chain(p, a, b, c, factor, begin, end, 3, 1);
            break;
        case 4 * 8 + 1:
            chain(p, a, b, c, factor, begin, end, 4, 1);
            break;
        case 5 * 8 + 1:
            chain(p, a, b, c, factor, begin, end, 5, 1);
            break;
        default:
            chain(p, a, b, c, factor, begin, end, 6, 1);
            break;
        }
        s += n;
        b += (size_t)n * p->strip_rows * SL_STRIP;
        c += n * SL_STRIP;
    }
}

// All rows from row_begin on. Strip by strip, so that one stays in the first-level cache while the rows go by.
static void multiply(const struct product *p, int row_begin, int row_end, int n_strips, size_t begin, size_t end) {
    if (row_end - row_begin <= ROWS) {
        multiply_rows(p, row_begin, row_end - row_begin, n_strips, begin, end);
        return;
    }
    for (int s = 0; s < n_strips; s++) {
        struct product one = *p;
        one.b += (size_t)s * p->strip_rows * SL_STRIP;
        one.c += s * SL_STRIP;
        for (int v = row_begin; v < row_end; v += ROWS) {
            multiply_rows(&one, v, v + ROWS < row_end ? ROWS : row_end - v, 1, begin, end);
        }
    }
}

// --- softmax ---------------------------------------------------------------------------------------------------------

// exp of what is at most a little above 0, as sl_avx2_exp() does it but for the guards above; NaN stays.
static inline __m256 exp_weight(__m256 x) {
    const __m256 shift = _mm256_set1_ps(12582912.0f); // 1.5 * 2^23: to add it rounds to an integer, in the low bits
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), shift), n = _mm256_sub_ps(t, shift);
    __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
    __m256 p = _mm256_set1_ps(1.0f / 720.0f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    __m256 power = _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-86.98f), _CMP_LT_OQ), _mm256_mul_ps(p, power));
}

// Minus infinity for the scores that are not below n.
static void mask(float *scores, int n) {
    for (int j = n; j < SL_PAGE_SLOTS; j++) {
        scores[j] = -INFINITY;
    }
}

struct softmax {
    float max, sum;
};

// Scores become weights exp(s - max'); returns c, by which what was summed before must be scaled.
static float softmax_add(struct softmax *s, float *scores) {
    __m256 most = _mm256_set1_ps(s->max);
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS; j += 8) {
        most = _mm256_max_ps(most, _mm256_load_ps(scores + j));
    }
    float max = sl_avx2_max(most);
    __m256 sum = _mm256_setzero_ps(), shift = _mm256_set1_ps(max);
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS; j += 8) {
        __m256 p = exp_weight(_mm256_sub_ps(_mm256_load_ps(scores + j), shift));
        _mm256_store_ps(scores + j, p);
        sum = _mm256_add_ps(sum, p);
    }
    float c = s->max == max ? 1.0f : _mm256_cvtss_f32(exp_weight(_mm256_set1_ps(s->max - max)));
    s->max = max;
    s->sum = s->sum * c + sl_avx2_sum(sum);
    return c;
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

// How many slots of the page the vector sees.
static int visible(const struct call *call, int head, int64_t vector, uint32_t page) {
    return sl_attend_visible(&call->args, &call->args.kv[head], (int)(vector / call->group), page);
}

// What one task works in.
struct scratch {
    _Alignas(64) float q[BLOCK * SL_MAX_HEAD_DIM]; // [n_vectors][d]
    float k[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];      // K^T tile
    float v[SL_PAGE_SLOTS * MAX_WIDE];             // V tile
    float scores[BLOCK * SL_PAGE_SLOTS];           // [n_vectors][SL_PAGE_SLOTS], then the weights
    float out[BLOCK * MAX_WIDE];                   // [n_vectors][d in whole strips]
    float factors[BLOCK];                          // c of softmax_add()
    struct sl_avx2_page_angles of_page;
};

// Query vectors [begin, begin + n) of a KV head, scaled and rotated.
static void load_queries(const struct call *call, int head, int64_t begin, int n, struct scratch *s) {
    int d = call->args.head_dim;
    float *q = s->q;
    for (int v = 0; v < n; v++, q += d) {
        const float *from = call->args.q + query_offset(call, head, begin + v);
        if (call->angles != NULL) {
            int64_t slot = (int64_t)call->args.kv[head].n_slots - call->args.m + (begin + v) / call->group;
            sl_avx2_rotate_query(call->angles, &s->of_page, slot, from, q);
            from = q;
        }
        for (int i = 0; i < d; i += 8) {
            _mm256_storeu_ps(q + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(call->args.scale)));
        }
    }
}

static void load_keys(const struct call *call, int head, uint32_t page, struct scratch *s) {
    const struct sl_kv *kv = &call->args.kv[head];
    sl_avx2_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], s->k);
    if (call->angles != NULL) {
        sl_avx2_rotate_keys(call->angles, &s->of_page, page, s->k);
    }
}

// scores[v] = q[v] K^T for the vectors [v_begin, v_end) and the first n slots, in whole strips
static void score(struct scratch *s, int d, int v_begin, int v_end, int n) {
    const struct product qk = {s->q, (size_t)d, s->k, (size_t)d, s->scores, SL_PAGE_SLOTS, NULL};
    multiply(&qk, v_begin, v_end, (n + SL_STRIP - 1) / SL_STRIP, 0, (size_t)d);
}

// --- attend ----------------------------------------------------------------------------------------------------------

// One page for the vectors of a task.
static void attend_page(const struct call *call, int head, int64_t begin, int n_vectors, uint32_t page, int n_page,
                        struct softmax *states, struct scratch *s) {
    const struct sl_kv *kv = &call->args.kv[head];
    int d = call->args.head_dim, n_strips = sl_avx2_n_strips(d), first = 0;
    while (visible(call, head, begin + first, page) == 0) {
        first++; // rows before this page
    }
    load_keys(call, head, page, s);
    sl_avx2_fill_values(sl_kv_page_layout(kv, page), kv->pages[page], n_page, s->v);
    score(s, d, first, n_vectors, n_page);
    for (int v = first; v < n_vectors; v++) {
        mask(s->scores + (size_t)v * SL_PAGE_SLOTS, visible(call, head, begin + v, page));
        s->factors[v] = softmax_add(&states[v], s->scores + (size_t)v * SL_PAGE_SLOTS);
    }
    // The slots that all vectors see together, then each vector's own: beyond what it sees there may be no number.
    const struct product pv = {s->scores, SL_PAGE_SLOTS, s->v, SL_PAGE_SLOTS, s->out, (size_t)n_strips * SL_STRIP,
                               s->factors};
    int n_all = visible(call, head, begin + first, page);
    multiply(&pv, first, n_vectors, n_strips, 0, (size_t)n_all);
    for (int v = first; v < n_vectors; v++) {
        int n = visible(call, head, begin + v, page);
        s->factors[v] = 1.0f;
        if (n > n_all) {
            multiply(&pv, v, v + 1, n_strips, (size_t)n_all, (size_t)n);
        }
    }
}

// Task: query vectors [begin, begin + n_vectors) of one KV head.
static void attend_block(const struct call *call, int head, int64_t begin, int n_vectors) {
    const struct sl_attend *args = &call->args;
    int d = args->head_dim;
    size_t wide = (size_t)sl_avx2_n_strips(d) * SL_STRIP;
    struct scratch s;
    struct softmax states[BLOCK];
    s.of_page.page = -1;
    load_queries(call, head, begin, n_vectors, &s);
    memset(s.out, 0, (size_t)n_vectors * wide * sizeof *s.out);
    for (int v = 0; v < n_vectors; v++) {
        states[v] = (struct softmax){-INFINITY, 0.0f};
    }
    for (uint32_t page = 0; page < sl_pages_for(args->kv[head].n_slots); page++) {
        int n_page = visible(call, head, begin + n_vectors - 1, page); // the last vector sees the most
        if (n_page == 0) {
            break;
        }
        attend_page(call, head, begin, n_vectors, page, n_page, states, &s);
    }
    for (int v = 0; v < n_vectors; v++) {
        float *out = args->out + query_offset(call, head, begin + v);
        for (int i = 0; i < d; i += 8) {
            __m256 sum = _mm256_load_ps(s.out + (size_t)v * wide + i);
            _mm256_storeu_ps(out + i, _mm256_div_ps(sum, _mm256_set1_ps(states[v].sum)));
        }
        if (args->lse != NULL) {
            *lse_of(call, head, begin + v) = states[v].max + logf(states[v].sum);
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

// sums[j] += exp(s[v][j] - lse[v]) over the vectors of a block, in order, that see slot j of the page
static void add_columns(const struct call *call, int head, int64_t begin, int n_vectors, uint32_t page,
                        struct scratch *s, float *sums) {
    int n_page = visible(call, head, begin + n_vectors - 1, page), first = 0;
    if (n_page == 0) {
        return;
    }
    while (visible(call, head, begin + first, page) == 0) {
        first++;
    }
    load_keys(call, head, page, s);
    score(s, call->args.head_dim, first, n_vectors, n_page);
    __m256 sum[SL_PAGE_SLOTS / 8];
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS / 8; j++) {
        sum[j] = _mm256_load_ps(sums + 8 * j);
    }
    for (int v = first; v < n_vectors; v++) {
        float *scores = s->scores + (size_t)v * SL_PAGE_SLOTS;
        mask(scores, visible(call, head, begin + v, page));
        __m256 lse = _mm256_set1_ps(*lse_of(call, head, begin + v));
        SL_UNROLL
        for (int j = 0; j < SL_PAGE_SLOTS / 8; j++) {
            sum[j] = _mm256_add_ps(sum[j], exp_weight(_mm256_sub_ps(_mm256_load_ps(scores + 8 * j), lse)));
        }
    }
    SL_UNROLL
    for (int j = 0; j < SL_PAGE_SLOTS / 8; j++) {
        _mm256_store_ps(sums + 8 * j, sum[j]);
    }
}

// Task: a run of pages of one KV head, all query vectors in order; a block of them is loaded once for the run.
static void column_sums_run(const struct call *call, int head, uint32_t page_begin) {
    const struct sl_attend *args = &call->args;
    const struct sl_kv *kv = &args->kv[head];
    uint32_t n_pages = sl_pages_for(kv->n_slots);
    uint32_t page_end = page_begin + RUN < n_pages ? page_begin + RUN : n_pages;
    _Alignas(32) float sums[RUN][SL_PAGE_SLOTS] = {{0}};
    struct scratch s;
    s.of_page.page = -1;
    for (int64_t begin = 0; begin < call->n_vectors; begin += BLOCK) {
        int n_vectors = call->n_vectors - begin < BLOCK ? (int)(call->n_vectors - begin) : BLOCK;
        load_queries(call, head, begin, n_vectors, &s);
        for (uint32_t page = page_begin; page < page_end; page++) {
            if (sl_kv_page_layout(kv, page)->n_states > 0) { // packed pages may have dropped their score
                add_columns(call, head, begin, n_vectors, page, &s, sums[page - page_begin]);
            }
        }
    }
    for (uint32_t page = page_begin; page < page_end; page++) {
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
        for (int j = 0; layout->n_states > 0 && j < sl_attend_visible(args, kv, args->m - 1, page); j++) {
            sl_page_state(layout, kv->pages[page], 0)[j] += sums[page - page_begin][j] / (float)call->group;
        }
    }
}

static void column_sums_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct call *call = arg;
    for (int64_t task = begin; task < end; task++) { // the heads differ in length: a run may be beyond one's end
        column_sums_run(call, (int)(task % call->args.n_kv_heads), (uint32_t)(task / call->args.n_kv_heads) * RUN);
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

static void fold(struct sl_team *team, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    (void)first_row, (void)what;
    struct sl_avx2_slot_angles angles;
    uint32_t n_pages = 0; // of the longest head
    for (int h = 0; h < args->n_kv_heads; h++) {
        uint32_t n = sl_pages_for(args->kv[h].n_slots);
        n_pages = n > n_pages ? n : n_pages;
    }
    run(team, args, &angles, column_sums_tasks, (int64_t)((n_pages + RUN - 1) / RUN) * args->n_kv_heads);
}

void sl_avx2_kv_fill(struct sl_ops *ops) {
    ops->append = sl_avx2_append;
    ops->attend = attend;
    ops->fold = fold;
}
