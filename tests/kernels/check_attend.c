// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds attention of every tier to the formulas of engine/tensor/ops.h, and times it (--time [TIER]).
 *
 * Design: the expected result is dense attention in f64 over read_rows(), which check_kv.c checks.
 *
 *         A tier that rounds nothing but sums of f32 may differ by a few units of f32. A tier that rounds to bf16 (by
 *         u, kv_fixture.h) has scores off by e, hence weights by a factor of exp(2e), and then rounds weights and
 *         values. An output is off by at most (exp(2e) (1 + u)^3 - 1) sum p |V| when the rounded weights' own sum
 *         divides them, and lse by e + u: bounds that random numbers are far from, so the root of the mean square of
 *         the errors is held to an eighth. What this might hide shows in test_attend_rounds_nothing_but_weights.
 */
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

// --- dense attention -------------------------------------------------------------------------------------------------

static void rotate_f64(const struct sl_rope *rope, int64_t position, double *x) {
    int half = rope->rotary_dim / 2;
    for (int i = 0; i < half; i++) {
        double angle = (double)position * rope->inv_freq[i];
        double a = x[i], b = x[i + half];
        x[i] = (a * cos(angle) - b * sin(angle)) * rope->scale;
        x[i + half] = (b * cos(angle) + a * sin(angle)) * rope->scale;
    }
}

struct dense {
    double *out, *lse;               // [m][H][d], [H][m]
    double *out_bound, *lse_bound;   // how far a tier that rounds to bf16 may be off
    double *columns, *columns_bound; // [Hk][max n_slots], mean over the group
    uint32_t max_slots;
};

// Query head `head` of a row of KV head h: out[d], lse, bounds; its weights are added to the columns.
static void attend_f64(const struct sl_attend *args, const struct roundings *by, const double *q, const double *keys,
                       const float *v, uint32_t first, uint32_t end, struct dense *r, int row, int head) {
    int d = args->head_dim, group = args->n_heads / args->heads.n;
    size_t at = ((size_t)row * (size_t)args->n_heads + (size_t)head) * (size_t)d;
    size_t lse_at = (size_t)head * (size_t)args->m + (size_t)row, column = (size_t)(head / group) * r->max_slots;
    double *weights = calloc(end, sizeof *weights), max = -INFINITY, sum = 0;
    for (uint32_t j = first; j < end; j++) {
        weights[j] = dot_f64(q, keys + j * (size_t)d, d) * (double)args->scale;
        max = fmax(max, weights[j]);
    }
    for (uint32_t j = first; j < end; j++) {
        sum += exp(weights[j] - max);
    }
    double u = by->u, e = score_error_by(by, q, keys + first * (size_t)d, end - first, d, (double)args->scale);
    double most[MAX_PAGES] = {0}; // the largest weight of each page
    const double factor = exp(2 * e) * pow(1 + u, 3) - 1, of_column = weight_error(e, u); // 0 without rounding
    for (uint32_t j = first; j < end; j++) {
        double p = exp(weights[j] - max) / sum;
        r->columns[column + j] += p / group;
        r->columns_bound[column + j] += p / group * of_column;
        add_value(r->out + at, r->out_bound + at, v + j * (size_t)d, d, p, factor);
        most[j / SL_PAGE_SLOTS] = fmax(most[j / SL_PAGE_SLOTS], p);
    }
    add_integer_errors(by, most, end, d, r->out_bound + at);
    r->lse[lse_at] = max + log(sum);
    r->lse_bound[lse_at] = e + u;
    free(weights);
}

static struct dense dense_attention(const struct sl_attend *args, struct roundings by) {
    int d = args->head_dim, group = args->n_heads / args->heads.n;
    size_t n_vectors = (size_t)args->m * (size_t)args->n_heads;
    struct dense r = {0};
    for (int h = 0; h < args->heads.n; h++) {
        r.max_slots = args->heads.kv[h].n_slots > r.max_slots ? args->heads.kv[h].n_slots : r.max_slots;
    }
    r.out = calloc(n_vectors * (size_t)d, sizeof(double));
    r.out_bound = calloc(n_vectors * (size_t)d, sizeof(double));
    r.lse = calloc(n_vectors, sizeof(double));
    r.lse_bound = calloc(n_vectors, sizeof(double));
    r.columns = calloc((size_t)args->heads.n * r.max_slots, sizeof(double));
    r.columns_bound = calloc((size_t)args->heads.n * r.max_slots, sizeof(double));
    double *keys = calloc((size_t)r.max_slots * (size_t)d, sizeof(double)), q[SL_MAX_HEAD_DIM];
    for (int h = 0; h < args->heads.n; h++) {
        const struct sl_kv *kv = &args->heads.kv[h];
        float *k = take((size_t)kv->n_slots * (size_t)d * sizeof *k),
              *v = take((size_t)kv->n_slots * (size_t)d * sizeof *v);
        tier("reference")->read_rows(kv, 0, kv->n_slots, k, v);
        for (size_t e = 0; e < (size_t)kv->n_slots * (size_t)d; e++) {
            keys[e] = (double)k[e];
        }
        for (uint32_t j = 0; args->rope != NULL && j < kv->n_slots; j++) {
            rotate_f64(args->rope, j, keys + j * (size_t)d);
        }
        for (int row = 0; row < args->m; row++) {
            uint32_t end = kv->n_slots - (uint32_t)args->m + (uint32_t)row + 1, first = first_in_window(args, kv, row);
            for (int head = h * group; head < (h + 1) * group; head++) {
                for (int i = 0; i < d; i++) {
                    q[i] = (double)args->q[row * sl_attend_q_stride(args) + head * d + i];
                }
                if (args->rope != NULL) {
                    rotate_f64(args->rope, end - 1, q);
                }
                attend_f64(args, &by, q, keys, v, first, end, &r, row, head);
            }
        }
        free(k);
        free(v);
    }
    free(keys);
    return r;
}

static void dense_free(struct dense *r) {
    free(r->out);
    free(r->out_bound);
    free(r->lse);
    free(r->lse_bound);
    free(r->columns);
    free(r->columns_bound);
}

static void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

// --- cases -----------------------------------------------------------------------------------------------------------

static const struct attend_case {
    enum sl_kv_format work, packed;
    int n_heads, n_kv_heads, d, m;
    bool slot_positions;
    uint32_t n_slots[MAX_KV_HEADS], n_packed[MAX_KV_HEADS];
    int64_t window;
    bool stored; // positions are in the pages, with gaps, as eviction leaves them; else they are the slots
    int q_gap;   // floats between rows of q
} cases[] = {
    {SL_KV_F32, SL_KV_F32, 2, 1, 8, 1, false, {1}, {0}, 0, true, 0},
    {SL_KV_F32, SL_KV_F32, 4, 2, 16, 7, false, {7, 100}, {0, 0}, 0, true, 0},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, 33, false, {64, 193}, {0, 0}, 0, true, 48},
    {SL_KV_F16, SL_KV_F16, 3, 3, 128, 70, true, {70, 128, 333}, {0, 0, 0}, 0, true, 16},
    {SL_KV_BF16, SL_KV_BF16, 6, 2, 72, 5, true, {65, 66}, {0, 0}, 0, true, 0},
    {SL_KV_BF16, SL_KV_BF16, 6, 2, 96, 35, true, {365, 66}, {0, 0}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 128, 9, true, {200, 330}, {3, 5}, 0, true, 0},
    {SL_KV_F32, SL_KV_INT2, 5, 1, 40, 2, false, {66}, {1}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT4, 4, 4, 96, 3, false, {150, 70, 64, 130}, {2, 1, 1, 2}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT1, 8, 4, 32, 1, true, {64, 65, 127, 200}, {1, 1, 1, 3}, 0, true, 0},
    {SL_KV_F16, SL_KV_F16, 1, 1, 512, 2, true, {90}, {0}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT3, 16, 1, 512, 3, false, {300}, {4}, 400, true, 0},
    {SL_KV_BF16, SL_KV_INT2, 2, 1, 256, 20, false, {140}, {1}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT8, 4, 1, 128, 1, false, {700}, {10}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 128, 11, false, {600, 65}, {9, 0}, 0, true, 16},
    {SL_KV_F16, SL_KV_INT2, 3, 1, 128, 2, false, {130}, {2}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT1, 12, 2, 64, 1, false, {129, 640}, {2, 10}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT1, 2, 1, 128, 3, false, {200}, {3}, 70, true, 0},
    {SL_KV_F16, SL_KV_INT1, 4, 2, 96, 9, false, {200, 70}, {2, 1}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT2, 6, 2, 64, 7, true, {200, 70}, {2, 1}, 0, true, 0},
    {SL_KV_F16, SL_KV_INT3, 8, 2, 128, 9, true, {200, 330}, {3, 5}, 0, true, 0},
    // windows: of one slot, within a page, over several, longer than the session; packed pages under them
    {SL_KV_F32, SL_KV_F32, 2, 2, 24, 70, false, {70, 200}, {0, 0}, 1, true, 0},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, 90, false, {300, 300}, {0, 0}, 37, false, 0},
    {SL_KV_BF16, SL_KV_BF16, 4, 2, 64, 150, false, {150, 301}, {0, 0}, 201, true, 8},
    {SL_KV_F32, SL_KV_F32, 5, 1, 80, 41, false, {333}, {0}, 129, false, 0},
    {SL_KV_F16, SL_KV_INT8, 6, 2, 128, 13, false, {400, 257}, {5, 3}, 555, true, 24},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 32, 1, false, {290, 500}, {3, 6}, 333, true, 0},
    {SL_KV_F16, SL_KV_F16, 2, 1, 32, 19, false, {100}, {0}, 100000, false, 0},
    // more than a split, and windows that begin in the first and in the last
    {SL_KV_F16, SL_KV_INT4, 4, 1, 32, 5, false, {8300}, {100}, 0, false, 0},
    {SL_KV_F32, SL_KV_F32, 3, 1, 16, 67, true, {4130}, {0}, 0, true, 0},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, 40, false, {4200, 8225}, {0, 0}, 333, true, 0},
    {SL_KV_F16, SL_KV_F16, 2, 1, 32, 9, false, {4500}, {0}, 4001, false, 0},
    // more vectors than a block takes: by their number, and by the length of a head
    {SL_KV_F16, SL_KV_F16, 8, 1, 64, 150, false, {211}, {0}, 0, true, 0},
    {SL_KV_BF16, SL_KV_BF16, 8, 1, 256, 70, false, {300}, {0}, 0, true, 0},
#define OF(format) /* in groups of 64 and of 32 */                                                                     \
    {SL_KV_F16, format, 8, 2, 64, 3, false, {200, 130}, {2, 1}, 0, true, 0},                                           \
        {SL_KV_BF16, format, 4, 2, 96, 3, true, {140, 200}, {2, 3}, 0, true, 0},
#define X(name, ...)          OF(SL_KV_##name)
#define PAIR(word, wire, ...) OF((enum sl_kv_format)wire)
    SL_KV_CODE_FORMATS(X) SL_KV_PAIRS(PAIR)
};
#define N_CASES (sizeof cases / sizeof cases[0])

// All of them, but for an emulated device the small ones.
static bool is_affordable(const char *name, const struct attend_case *a, double most) {
    uint32_t n = 0;
    for (int h = 0; h < a->n_kv_heads; h++) {
        n = a->n_slots[h] > n ? a->n_slots[h] : n;
    }
    return !is_emulated(name) || (double)a->m * a->n_heads * a->d * n <= most;
}

struct setup {
    struct cache cache;
    double inv_freq[SL_MAX_HEAD_DIM / 2];
    struct sl_rope rope;
    struct sl_attend args;
    int64_t *positions;
};

static void case_open(const struct attend_case *a, const struct sl_ops *ops, struct setup *s) {
    cache_fill(&s->cache, ops, a->work, a->packed, a->n_kv_heads, a->d, 2, a->n_slots, a->n_packed);
    memcpy(s->inv_freq, inverse_frequencies(a->d), sizeof s->inv_freq);
    s->rope = (struct sl_rope){a->d, a->d, s->inv_freq, 1.0};
    s->positions = take((size_t)a->m * sizeof *s->positions);
    size_t row = (size_t)a->n_heads * (size_t)a->d, n_out = (size_t)a->m * row;
    s->args = (struct sl_attend){.q = random_floats((size_t)a->m * (row + (size_t)a->q_gap), 7),
                                 .q_stride = a->q_gap > 0 ? (int64_t)row + a->q_gap : 0,
                                 .m = a->m,
                                 .n_heads = a->n_heads,
                                 .head_dim = a->d,
                                 .scale = 1.0f / sqrtf((float)a->d),
                                 .heads = {s->cache.kv, a->n_kv_heads},
                                 .rope = a->slot_positions ? &s->rope : NULL,
                                 .window = a->window,
                                 .positions = s->positions,
                                 .out = take(n_out * sizeof(float)),
                                 .lse = take((size_t)a->m * (size_t)a->n_heads * sizeof(float))};
    if (a->stored) {
        store_positions(&s->cache, a->m, s->positions);
    } else {
        s->cache.work.has_positions = s->cache.packed.has_positions = false;
        for (int r = 0; r < a->m; r++) {
            s->positions[r] = (int64_t)a->n_slots[0] - a->m + r; // the heads are of one length
        }
    }
}

static void case_close(struct setup *s) {
    free((void *)s->args.q);
    free(s->args.out);
    free(s->args.lse);
    free(s->positions);
    cache_free(&s->cache);
}

// --- attend ----------------------------------------------------------------------------------------------------------

// All together are to be a fraction of the bounds; of few roundings less of it cancels out.
static void assert_within(const float *got, const double *want, const double *bounds, size_t n, double fraction) {
    double errors = 0, most = 0;
    for (size_t e = 0; e < n; e++) {
        double error = fabs((double)got[e] - want[e]);
        if (!(error <= bounds[e])) {
            fail_msg("element %zu: got %.9g, expected %.9g, bound %.3g", e, (double)got[e], want[e], bounds[e]);
        }
        errors += error * error;
        most += bounds[e] * bounds[e];
    }
    assert_true(sqrt(errors) <= sqrt(most) * fraction);
}

static void assert_rounded(bool rounds, const float *got, const double *want, const double *bounds, size_t n,
                           double fraction, double tolerance) {
    for (size_t e = 0; !rounds && e < n; e++) {
        assert_close((double)got[e], want[e], tolerance);
    }
    if (rounds) {
        assert_within(got, want, bounds, n, fraction);
    }
}

static void test_attend_equals_dense_attention(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct setup s;
            if (!is_affordable(*name, &cases[i], 2e7)) {
                continue;
            }
            case_open(&cases[i], tier(*name), &s);
            const struct roundings by = roundings_of(*name, &s.args);
            struct dense want = dense_attention(&s.args, by);
            double fraction = by.u == 0 ? 0.03125 : by.score_u < by.u ? 0.25 : 0.125;
            tier(*name)->attend(NULL, &s.args, 1);
            size_t n_vectors = (size_t)s.args.m * (size_t)s.args.n_heads, n_out = n_vectors * (size_t)s.args.head_dim;
            assert_rounded(rounds_scores(&by) || by.values, s.args.out, want.out, want.out_bound, n_out, fraction,
                           within(*name, 3e-6));
            assert_rounded(rounds_scores(&by), s.args.lse, want.lse, want.lse_bound, n_vectors, fraction,
                           within(*name, 2e-6));
            dense_free(&want);
            case_close(&s);
        }
    }
}

// The last m rows in one call, one by one, and in odd chunks, with and without a team: the same bits.
static void test_attend_rows_do_not_depend_on_each_other(void **state) {
    (void)state;
    struct sl_stream *streams[2] = {test_stream_open(2), test_stream_open(40)}; // 40: splits are tasks
    static const int chunks[] = {1, 2, 5, 31};
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct setup s;
            if (!is_affordable(*name, &cases[i], 6e6)) {
                continue;
            }
            case_open(&cases[i], tier(*name), &s);
            const struct sl_attend *args = &s.args;
            tier(*name)->attend(streams[0], args, 1);
            size_t row_floats = (size_t)args->n_heads * (size_t)args->head_dim;
            float *out = take((size_t)args->m * row_floats * sizeof *out);
            float *lse = take((size_t)args->m * (size_t)args->n_heads * sizeof *lse);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                for (int row = 0; row < args->m; row += chunks[c]) {
                    struct sl_attend part = *args;
                    struct sl_kv kv[MAX_KV_HEADS];
                    part.m = args->m - row < chunks[c] ? args->m - row : chunks[c];
                    for (int h = 0; h < args->heads.n; h++) {
                        kv[h] = args->heads.kv[h];
                        kv[h].n_slots -= (uint32_t)(args->m - row - part.m);
                    }
                    part.heads.kv = kv;
                    part.q = args->q + row * sl_attend_q_stride(args);
                    part.positions = args->positions + row;
                    part.out = out + (size_t)row * row_floats;
                    part.lse = lse;
                    tier(*name)->attend(c % 3 == 2 ? NULL : streams[c % 2], &part, 1);
                    for (int head = 0; head < args->n_heads; head++) {
                        assert_memory_equal(lse + head * part.m, args->lse + head * args->m + row,
                                            (size_t)part.m * sizeof *lse);
                    }
                }
                assert_memory_equal(out, args->out, (size_t)args->m * row_floats * sizeof *out);
            }
            free(out);
            free(lse);
            case_close(&s);
        }
    }
    test_stream_close(&streams[0]);
    test_stream_close(&streams[1]);
}

// Rows of the result that lie apart, as they do where another device has the heads between them.
static void test_attend_writes_rows_apart(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct setup s;
            if (!is_affordable(*name, &cases[i], 2e6)) {
                continue;
            }
            case_open(&cases[i], tier(*name), &s);
            tier(*name)->attend(NULL, &s.args, 1);
            struct sl_attend apart = s.args;
            size_t row = (size_t)s.args.n_heads * (size_t)s.args.head_dim, stride = row + 40;
            apart.out_stride = (int64_t)stride;
            apart.out = take((size_t)apart.m * stride * sizeof *apart.out);
            tier(*name)->attend(NULL, &apart, 1);
            for (size_t r = 0; r < (size_t)apart.m; r++) {
                assert_memory_equal(apart.out + r * stride, s.args.out + r * row, row * sizeof *apart.out);
            }
            free(apart.out);
            case_close(&s);
        }
    }
}

// All cases as the calls of one step, whatever the team: the bits of each on its own.
static void test_attend_of_many_calls_equals_each_on_its_own(void **state) {
    (void)state;
    enum { N = 8 * N_CASES }; // more than one loop of the team takes
    for (const char *const *name = tested(); *name != NULL; name++) {
        static struct setup setups[N_CASES];
        struct sl_attend calls[N];
        float *outs[N], *lses[N];
        size_t n_setups = 0;
        for (size_t i = 0; i < N_CASES; i++) {
            if (is_affordable(*name, &cases[i], 4e6)) {
                case_open(&cases[i], tier(*name), &setups[n_setups]);
                tier(*name)->attend(NULL, &setups[n_setups++].args, 1);
            }
        }
        for (size_t i = 0; i < N; i++) {
            calls[i] = setups[i % n_setups].args;
            size_t n_vectors = (size_t)calls[i].m * (size_t)calls[i].n_heads;
            outs[i] = calls[i].out = take(n_vectors * (size_t)calls[i].head_dim * sizeof(float));
            lses[i] = calls[i].lse = take(n_vectors * sizeof(float));
        }
        for (int size = 1; size <= 17; size += 8) {
            struct sl_stream *stream;
            stream = test_stream_open(size);
            bool slow = strcmp(*name, "reference") == 0 || is_emulated(*name); // they take their time
            int n_calls = slow ? (int)n_setups : N;
            tier(*name)->attend(stream, calls, n_calls);
            for (int i = 0; i < n_calls; i++) {
                const struct sl_attend *alone = &setups[(size_t)i % n_setups].args;
                size_t n_vectors = (size_t)alone->m * (size_t)alone->n_heads;
                assert_memory_equal(outs[i], alone->out, n_vectors * (size_t)alone->head_dim * sizeof(float));
                assert_memory_equal(lses[i], alone->lse, n_vectors * sizeof(float));
            }
            test_stream_close(&stream);
        }
        for (size_t i = 0; i < N; i++) {
            free(outs[i]);
            free(lses[i]);
        }
        for (size_t i = 0; i < n_setups; i++) {
            case_close(&setups[i]);
        }
    }
}

/*
 * Queries, keys and values of 8 bits, and a scale that is ln 2 by a power of two: bf16 holds even the scores. Only
 * weights are rounded, by u = 2^-9 at most (and 2^-13 of a cheap exponential). Equal values lose nothing.
 */
static void test_attend_rounds_nothing_but_weights(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct attend_case a = {SL_KV_BF16, SL_KV_BF16, 4, 2, 64, 66, false, {200, 333}, {0, 0}, 0, true, 0};
        struct setup s;
        case_open(&a, tier(*name), &s);
        float *q = (float *)s.args.q;
        for (int e = 0; e < a.m * a.n_heads * a.d; e++) {
            q[e] = sl_bf16_to_f32(sl_f32_to_bf16(q[e]));
        }
        s.args.scale = (float)M_LN2 / 8;
        for (int h = 0; h < a.n_kv_heads; h++) {
            for (uint32_t j = 0; j < a.n_slots[h]; j++) { // the first value of every slot is 1
                ((uint16_t *)((char *)s.cache.pages[h][j / 64] + s.cache.work.v))[j % 64 * (size_t)a.d] = 0x3f80;
            }
        }
        struct dense want = dense_attention(&s.args, (struct roundings){0});
        tier(*name)->attend(NULL, &s.args, 1);
        const double u = 0x1p-9 + 0x1p-13;
        for (int e = 0; e < a.m * a.n_heads * a.d; e++) {
            assert_true(fabs((double)s.args.out[e] - want.out[e]) <= 2 * u * 2.0); // 2 u sum p |V|, |V| <= 2
            if (e % a.d == 0) {
                assert_close((double)s.args.out[e], 1.0,
                             is_device(*name) ? 2 * u : 1e-6); // the sum is of weights not yet rounded
            }
        }
        for (int e = 0; e < a.m * a.n_heads; e++) {
            assert_true(fabs((double)s.args.lse[e] - want.lse[e]) <= u + 4e-6);
        }
        dense_free(&want);
        case_close(&s);
    }
}

// --- fold ------------------------------------------------------------------------------------------------------------

static const struct sl_fold sums_only = {.sum = 0, .square = -1, .above = -1};

static void test_fold_of_sums_equals_dense_columns(void **state) {
    (void)state;
    struct sl_stream *stream;
    stream = test_stream_open(3);
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (size_t i = 0; i < N_CASES; i++) {
            struct setup s, fresh;
            if (!is_affordable(*name, &cases[i], 6e6)) {
                continue;
            }
            case_open(&cases[i], ops, &s);
            struct sl_attend args = s.args;
            const struct roundings by = roundings_of(*name, &args);
            struct dense want = dense_attention(&args, by);
            ops->attend(NULL, &args, 1);
            float *once = take(want.max_slots * sizeof *once), *twice = take(want.max_slots * sizeof *twice);
            ops->fold(NULL, &args, 0, &sums_only);
            for (int h = 0; h < args.heads.n; h++) {
                double total = 0, packed = 0;
                read_plane(ops, &args.heads.kv[h], 0, once);
                for (uint32_t j = 0; j < args.heads.kv[h].n_slots; j++) {
                    double column = want.columns[(size_t)h * want.max_slots + j];
                    bool is_packed = j < args.heads.kv[h].n_packed * SL_PAGE_SLOTS;
                    double bound = rounds_scores(&by) ? want.columns_bound[(size_t)h * want.max_slots + j] : 0.0;
                    double expected = is_packed ? 0.0 : column;
                    assert_true(fabs((double)once[j] - expected) <= within(*name, 3e-6) * (1.0 + expected) + bound);
                    total += (double)once[j];
                    packed += is_packed ? column : 0.0;
                }
                if (!rounds_scores(&by) || packed == 0) { // else one part is as the tier rounds and one as f64 has it
                    assert_close(total + packed, args.m, sum_tolerance(*name, &args, 1e-5));
                }
                read_plane(ops, &args.heads.kv[h], 1, twice); // the other plane must not change
                for (uint32_t j = 0; j < args.heads.kv[h].n_slots; j++) {
                    assert_true(twice[j] == 0.0f);
                }
            }
            ops->fold(stream, &args, 0, &sums_only); // adds the very same, whatever the team
            read_plane(ops, &args.heads.kv[0], 0, twice);
            case_open(&cases[i], ops, &fresh);
            struct sl_attend again = fresh.args;
            ops->attend(stream, &again, 1);
            ops->fold(stream, &again, 0, &sums_only);
            read_plane(ops, &again.heads.kv[0], 0, once);
            for (uint32_t j = 0; j < args.heads.kv[0].n_slots; j++) {
                assert_true(twice[j] == once[j] + once[j]);
            }
            case_close(&fresh);
            free(once);
            free(twice);
            dense_free(&want);
            case_close(&s);
        }
    }
    test_stream_close(&stream);
}

// --- time ------------------------------------------------------------------------------------------------------------

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum { TIME_KV_HEADS = 4 };

// One line: median and best of several runs of attend for n_sessions calls of m rows each at the same depth.
static void time_shape(struct sl_stream *stream, const char *name, enum sl_kv_format format, int group, int d, int m,
                       uint32_t depth, int n_sessions) {
    enum { RUNS = 5, MAX_SESSIONS = 16 };
    static struct setup setups[MAX_SESSIONS];
    struct sl_attend calls[MAX_SESSIONS];
    bool packed = sl_kv_format_is_quantized(format);
    struct attend_case a = {.work = packed ? SL_KV_F16 : format,
                            .packed = format,
                            .n_heads = TIME_KV_HEADS * group,
                            .n_kv_heads = TIME_KV_HEADS,
                            .d = d,
                            .m = m,
                            .stored = true};
    for (int h = 0; h < TIME_KV_HEADS; h++) {
        a.n_slots[h] = depth;
        a.n_packed[h] = packed ? depth / SL_PAGE_SLOTS : 0;
    }
    for (int i = 0; i < n_sessions; i++) {
        case_open(&a, tier(name), &setups[i]);
        calls[i] = setups[i].args;
    }
    tier(name)->attend(stream, calls, n_sessions);
    int64_t times[RUNS];
    for (int i = 0; i < RUNS; i++) {
        int64_t begin = sl_now_ns();
        tier(name)->attend(stream, calls, n_sessions);
        times[i] = sl_now_ns() - begin;
    }
    qsort(times, RUNS, sizeof *times, by_time);
    double n = (double)depth, best = (double)times[0];
    double flops = 4.0 * m * (n - m / 2.0) * a.n_heads * d * n_sessions;
    const struct sl_page_layout *layout = packed ? &setups[0].cache.packed : &setups[0].cache.work;
    double bytes = n / SL_PAGE_SLOTS * (double)layout->positions * TIME_KV_HEADS * n_sessions;
    printf("%-10s %-5s G=%d d=%-4d m=%-4d depth=%-6u sessions=%-3d median %9.3f ms  best %9.3f ms %7.1f GFLOP/s", name,
           sl_kv_format_name(format), group, d, m, depth, n_sessions, (double)times[RUNS / 2] * 1e-6, best * 1e-6,
           flops / best);
    if (m == 1) { // a prompt's rows share the reading
        printf(" %6.2f GB/s of KV", bytes / best);
    }
    printf("\n");
    for (int i = 0; i < n_sessions; i++) {
        case_close(&setups[i]);
    }
}

static void time_attention(const char *only) {
    static const enum sl_kv_format formats[] = {SL_KV_F32, SL_KV_BF16, SL_KV_INT8, SL_KV_INT4, SL_KV_INT2};
    struct sl_stream *stream;
    stream = test_stream_open(0);
    printf("%d KV heads of G query heads, team of %d\n", TIME_KV_HEADS, sl_stream_threads(stream));
    for (const char *const *name = tested(); *name != NULL; name++) {
        if (only != NULL ? strcmp(*name, only) != 0 : strcmp(*name, "reference") == 0) {
            continue; // the reference takes its time: only when asked for
        }
        for (int d = 64; d <= 128; d *= 2) {
            for (int group = 1; group <= 4; group *= 4) {
                for (uint32_t depth = 2048; depth <= 16384; depth *= depth == 2048 ? 4 : 2) {
                    time_shape(stream, *name, SL_KV_F16, group, d, 512, depth, 1);
                }
            }
            for (int group = 1; group <= 8; group *= group == 1 ? 4 : 2) {
                for (uint32_t depth = 4096; depth <= 16384; depth *= 4) {
                    time_shape(stream, *name, SL_KV_F16, group, d, 1, depth, 1);
                    time_shape(stream, *name, SL_KV_F16, group, d, 1, depth, 16);
                }
            }
            for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
                time_shape(stream, *name, formats[f], 4, d, 1, 16384, 1);
            }
        }
    }
    test_stream_close(&stream);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_attention(argc > 2 ? argv[2] : NULL);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_equals_dense_attention),
        cmocka_unit_test(test_attend_rows_do_not_depend_on_each_other),
        cmocka_unit_test(test_attend_writes_rows_apart),
        cmocka_unit_test(test_attend_of_many_calls_equals_each_on_its_own),
        cmocka_unit_test(test_attend_rounds_nothing_but_weights),
        cmocka_unit_test(test_fold_of_sums_equals_dense_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
