// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the operations on KV pages of every tier to the formulas of engine/ops.h, and times them (--time).
 *
 * Design: a fixture is one head set of random pages behind ordinary memory. Attention is compared with dense attention
 *         in f64 over read_rows(), which itself is compared with what was appended; everything else has an answer that
 *         can be said exactly (qsort, a copy, a group's extremes).
 */
#include "tests/kernels/kv_fixture.h"

// --- attention against dense attention in f64 ------------------------------------------------------------------------

static void rotate_f64(const struct sl_rope *rope, int64_t position, double *x) {
    int half = rope->head_dim / 2;
    for (int i = 0; i < half; i++) {
        double angle = (double)position * rope->inv_freq[i];
        double a = x[i], b = x[i + half];
        x[i] = (a * cos(angle) - b * sin(angle)) * rope->scale;
        x[i + half] = (b * cos(angle) + a * sin(angle)) * rope->scale;
    }
}

struct dense {
    double *out, *lse; // [m][H][d], [H][m]
    double *columns;   // [Hk][max n_slots], mean over the group
    uint32_t max_slots;
};

static struct dense dense_attention(const struct sl_attend *args) {
    int d = args->head_dim, group = args->n_heads / args->n_kv_heads;
    struct dense r = {0};
    for (int h = 0; h < args->n_kv_heads; h++) {
        r.max_slots = args->kv[h].n_slots > r.max_slots ? args->kv[h].n_slots : r.max_slots;
    }
    r.out = calloc((size_t)args->m * (size_t)args->n_heads * (size_t)d, sizeof(double));
    r.lse = calloc((size_t)args->m * (size_t)args->n_heads, sizeof(double));
    r.columns = calloc((size_t)args->n_kv_heads * r.max_slots, sizeof(double));
    double *weights = calloc(r.max_slots, sizeof(double)), *q = calloc((size_t)d, sizeof(double));
    double *keys = calloc((size_t)r.max_slots * (size_t)d, sizeof(double));
    for (int h = 0; h < args->n_kv_heads; h++) {
        const struct sl_kv *kv = &args->kv[h];
        float *k = take(((size_t)kv->n_slots + 1) * (size_t)d * sizeof *k),
              *v = take((size_t)kv->n_slots * (size_t)d * sizeof *v);
        tier("reference")->read_rows(kv, 0, kv->n_slots, k, v);
        for (uint32_t j = 0; j < kv->n_slots; j++) {
            for (int i = 0; i < d; i++) {
                keys[j * (size_t)d + (size_t)i] = (double)k[j * (size_t)d + (size_t)i];
            }
            if (args->rope != NULL) {
                rotate_f64(args->rope, j, keys + j * (size_t)d);
            }
        }
        for (int row = 0; row < args->m; row++) {
            uint32_t n = kv->n_slots - (uint32_t)args->m + (uint32_t)row + 1;
            for (int head = h * group; head < (h + 1) * group; head++) {
                size_t at = ((size_t)row * (size_t)args->n_heads + (size_t)head) * (size_t)d;
                for (int i = 0; i < d; i++) {
                    q[i] = (double)args->q[at + (size_t)i];
                }
                if (args->rope != NULL) {
                    rotate_f64(args->rope, n - 1, q);
                }
                double max = -INFINITY, sum = 0;
                for (uint32_t j = 0; j < n; j++) {
                    weights[j] = 0;
                    for (int i = 0; i < d; i++) {
                        weights[j] += q[i] * keys[j * (size_t)d + (size_t)i] * (double)args->scale;
                    }
                    max = fmax(max, weights[j]);
                }
                for (uint32_t j = 0; j < n; j++) {
                    sum += exp(weights[j] - max);
                }
                for (uint32_t j = 0; j < n; j++) {
                    double p = exp(weights[j] - max) / sum;
                    r.columns[(size_t)h * r.max_slots + j] += p / group;
                    for (int i = 0; i < d; i++) {
                        r.out[at + (size_t)i] += p * (double)v[j * (size_t)d + (size_t)i];
                    }
                }
                r.lse[head * args->m + row] = max + log(sum);
            }
        }
        free(k);
        free(v);
    }
    free(weights);
    free(q);
    free(keys);
    return r;
}

static void dense_free(struct dense *r) {
    free(r->out);
    free(r->lse);
    free(r->columns);
}

static void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

static const struct attend_case {
    enum sl_kv_format work, packed;
    int n_heads, n_kv_heads, d, m;
    bool slot_positions;
    uint32_t n_slots[MAX_KV_HEADS], n_packed[MAX_KV_HEADS];
} cases[] = {
    {SL_KV_F32, SL_KV_F32, 2, 1, 8, 1, false, {1}, {0}},
    {SL_KV_F32, SL_KV_F32, 4, 2, 16, 7, false, {7, 100}, {0, 0}},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, 33, false, {64, 193}, {0, 0}},
    {SL_KV_F16, SL_KV_F16, 3, 3, 128, 70, true, {70, 128, 333}, {0, 0, 0}},
    {SL_KV_BF16, SL_KV_BF16, 6, 2, 72, 5, true, {65, 66}, {0, 0}},
    {SL_KV_F16, SL_KV_INT8, 8, 2, 64, 3, false, {200, 130}, {2, 1}},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 128, 9, true, {200, 330}, {3, 5}},
    {SL_KV_F32, SL_KV_INT2, 5, 1, 40, 2, false, {66}, {1}},
    {SL_KV_F16, SL_KV_INT1, 8, 4, 32, 1, true, {64, 65, 127, 200}, {1, 1, 1, 3}},
    {SL_KV_F16, SL_KV_F16, 1, 1, 512, 2, true, {90}, {0}},
};
#define N_CASES (sizeof cases / sizeof cases[0])

static void case_open(const struct attend_case *a, const struct sl_ops *ops, struct cache *c, struct sl_rope *rope,
                      struct sl_attend *args) {
    cache_fill(c, ops, a->work, a->packed, a->n_kv_heads, a->d, 2, a->n_slots, a->n_packed);
    *rope = (struct sl_rope){a->d, a->d, inverse_frequencies(a->d), 1.0};
    size_t n_out = (size_t)a->m * (size_t)a->n_heads * (size_t)a->d;
    *args = (struct sl_attend){.q = random_floats(n_out, 7),
                               .m = a->m,
                               .n_heads = a->n_heads,
                               .n_kv_heads = a->n_kv_heads,
                               .head_dim = a->d,
                               .scale = 1.0f / sqrtf((float)a->d),
                               .kv = c->kv,
                               .rope = a->slot_positions ? rope : NULL,
                               .out = take(n_out * sizeof(float)),
                               .lse = take((size_t)a->m * (size_t)a->n_heads * sizeof(float))};
}

static void case_close(struct cache *c, struct sl_attend *args) {
    free((void *)args->q);
    free(args->out);
    free(args->lse);
    cache_free(c);
}

static void test_attend_equals_dense_attention(void **state) {
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct cache c;
            struct sl_rope rope;
            struct sl_attend args;
            case_open(&cases[i], tier(*name), &c, &rope, &args);
            struct dense want = dense_attention(&args);
            tier(*name)->attend(NULL, &args, 1);
            for (int e = 0; e < args.m * args.n_heads * args.head_dim; e++) {
                assert_close((double)args.out[e], want.out[e], 3e-6);
            }
            for (int e = 0; e < args.m * args.n_heads; e++) {
                assert_close((double)args.lse[e], want.lse[e], 2e-6);
            }
            dense_free(&want);
            case_close(&c, &args);
        }
    }
}

// The last m rows in one call, one by one, and in odd chunks, with and without a team: the same bits.
static void test_attend_rows_do_not_depend_on_each_other(void **state) {
    (void)state;
    struct sl_team *team;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    static const int chunks[] = {1, 2, 5, 31};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct cache c;
            struct sl_rope rope;
            struct sl_attend args;
            case_open(&cases[i], tier(*name), &c, &rope, &args);
            tier(*name)->attend(team, &args, 1);
            size_t row_floats = (size_t)args.n_heads * (size_t)args.head_dim;
            float *out = take((size_t)args.m * row_floats * sizeof *out);
            float *lse = take((size_t)args.m * (size_t)args.n_heads * sizeof *lse);
            for (size_t s = 0; s < sizeof chunks / sizeof chunks[0]; s++) {
                for (int row = 0; row < args.m; row += chunks[s]) {
                    struct sl_attend part = args;
                    struct sl_kv kv[MAX_KV_HEADS];
                    part.m = args.m - row < chunks[s] ? args.m - row : chunks[s];
                    for (int h = 0; h < args.n_kv_heads; h++) {
                        kv[h] = args.kv[h];
                        kv[h].n_slots -= (uint32_t)(args.m - row - part.m);
                    }
                    part.kv = kv;
                    part.q = args.q + (size_t)row * row_floats;
                    part.out = out + (size_t)row * row_floats;
                    part.lse = lse;
                    tier(*name)->attend(s % 2 ? team : NULL, &part, 1);
                    for (int head = 0; head < args.n_heads; head++) {
                        assert_memory_equal(lse + head * part.m, args.lse + head * args.m + row,
                                            (size_t)part.m * sizeof *lse);
                    }
                }
                assert_memory_equal(out, args.out, (size_t)args.m * row_floats * sizeof *out);
            }
            free(out);
            free(lse);
            case_close(&c, &args);
        }
    }
    sl_team_destroy(&team);
}

static const struct sl_fold sums_only = {.sum = 0, .square = -1, .above = -1};

static void test_fold_of_sums_equals_dense_columns(void **state) {
    (void)state;
    struct sl_team *team;
    assert_int_equal(sl_team_create(3, &team, NULL), SL_OK);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (size_t i = 0; i < N_CASES; i++) {
            struct cache c;
            struct sl_rope rope;
            struct sl_attend args;
            case_open(&cases[i], ops, &c, &rope, &args);
            struct dense want = dense_attention(&args);
            ops->attend(NULL, &args, 1);
            float *once = take(want.max_slots * sizeof *once), *twice = take(want.max_slots * sizeof *twice);
            ops->fold(NULL, &args, 0, &sums_only);
            for (int h = 0; h < args.n_kv_heads; h++) {
                double total = 0, packed = 0;
                ops->read_state(&args.kv[h], 0, once);
                for (uint32_t j = 0; j < args.kv[h].n_slots; j++) {
                    double column = want.columns[(size_t)h * want.max_slots + j];
                    bool is_packed = j < args.kv[h].n_packed * SL_PAGE_SLOTS;
                    assert_close((double)once[j], is_packed ? 0.0 : column, 3e-6);
                    total += (double)once[j];
                    packed += is_packed ? column : 0.0;
                }
                assert_close(total + packed, args.m, 1e-5);
                ops->read_state(&args.kv[h], 1, twice); // the other plane is nobody's business
                for (uint32_t j = 0; j < args.kv[h].n_slots; j++) {
                    assert_true(twice[j] == 0.0f);
                }
            }
            ops->fold(team, &args, 0, &sums_only); // adds the very same, whatever the team
            ops->read_state(&args.kv[0], 0, twice);
            struct cache fresh;
            struct sl_attend again;
            case_open(&cases[i], ops, &fresh, &rope, &again);
            ops->attend(team, &again, 1);
            ops->fold(team, &again, 0, &sums_only);
            ops->read_state(&again.kv[0], 0, once);
            for (uint32_t j = 0; j < args.kv[0].n_slots; j++) {
                assert_true(twice[j] == once[j] + once[j]);
            }
            case_close(&fresh, &again);
            free(once);
            free(twice);
            dense_free(&want);
            case_close(&c, &args);
        }
    }
    sl_team_destroy(&team);
}

// --- rows, positions -------------------------------------------------------------------------------------------------

static void test_append_stores_rows_rounded_and_saturated(void **state) {
    (void)state;
    enum { D = 16, N = 130 };
    static const float extremes[] = {65504.0f, 65519.9f, 65520.0f, 1e6f, -1e30f, 5.9e-8f, -6e-5f, 1.0f / 3.0f};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_F32; f <= SL_KV_BF16; f++) {
            struct cache c;
            uint32_t none[1] = {0};
            cache_fill(&c, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, 1, D, 1, none, none);
            for (int p = 0; p < 3; p++) {
                c.pages[0][p] = take(c.work.bytes);
            }
            float *k = random_floats(N * D, 1), *v = random_floats(N * D, 2);
            memcpy(k + 64 * D, extremes, sizeof extremes);
            int64_t positions[N], positions_back[N];
            for (int j = 0; j < N; j++) {
                positions[j] = 1000 + 7 * j;
            }
            ops->append(&c.kv[0], k, v, D, 65, positions); // in two parts, over a page boundary
            c.kv[0].n_slots = 65;
            ops->append(&c.kv[0], k + 65 * D, v + 65 * D, D, N - 65, positions + 65);
            c.kv[0].n_slots = N;
            float *k_back = take((N * D + 1) * sizeof(float)), *v_back = take(N * D * sizeof(float));
            ops->read_rows(&c.kv[0], 0, N, k_back, v_back);
            ops->read_positions(&c.kv[0], positions_back);
            assert_memory_equal(positions, positions_back, sizeof positions);
            for (int e = 0; e < N * D; e++) {
                float want_k = f == SL_KV_F32 ? k[e]
                               : f == SL_KV_BF16
                                   ? sl_bf16_to_f32(sl_f32_to_bf16(k[e]))
                                   : sl_f16_to_f32(sl_f32_to_f16(fminf(fmaxf(k[e], -65504.0f), 65504.0f)));
                float want_v = f == SL_KV_F32    ? v[e]
                               : f == SL_KV_BF16 ? sl_bf16_to_f32(sl_f32_to_bf16(v[e]))
                                                 : sl_f16_to_f32(sl_f32_to_f16(v[e]));
                assert_true(k_back[e] == want_k && v_back[e] == want_v);
            }
            ops->read_rows(&c.kv[0], 63, 129, k_back, NULL);
            float *all = take(N * D * sizeof(float));
            ops->read_rows(&c.kv[0], 0, N, all, NULL);
            assert_memory_equal(k_back, all + 63 * D, (129 - 63) * D * sizeof(float));
            free(all);
            free(k);
            free(v);
            free(k_back);
            free(v_back);
            cache_free(&c);
        }
    }
}

// --- quantize --------------------------------------------------------------------------------------------------------

static void test_quantize_stays_within_half_a_step(void **state) {
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        static const int dims[] = {8, 40, 64, 128};
        for (size_t s = 0; s < 4; s++) {
            for (int f = SL_KV_INT8; f <= SL_KV_INT1; f++) {
                int d = dims[s], bits = sl_kv_format_bits((enum sl_kv_format)f), group = d < 64 ? d : 64;
                struct cache plain, packed;
                uint32_t n[1] = {64}, none[1] = {0}, one[1] = {1};
                cache_fill(&plain, ops, SL_KV_F16, (enum sl_kv_format)f, 1, d, 1, n, none);
                cache_fill(&packed, ops, SL_KV_F16, (enum sl_kv_format)f, 1, d, 1, n, one);
                size_t count = (size_t)(64 * d);
                float *k = take(count * 4), *v = take(count * 4), *kq = take(count * 4), *vq = take(count * 4);
                ops->read_rows(&plain.kv[0], 0, 64, k, v);
                ops->read_rows(&packed.kv[0], 0, 64, kq, vq);
                int64_t positions[64];
                ops->read_positions(&packed.kv[0], positions);
                assert_true(positions[63] == position_of(63));
                for (int part = 0; part < 2; part++) {
                    const float *x = part ? v : k, *y = part ? vq : kq;
                    for (int e = 0; e < 64 * d; e++) {
                        float min = INFINITY, max = -INFINITY; // of e's group
                        int first = part ? e / group * group : e % d, step = part ? 1 : d, size = part ? group : 64;
                        for (int i = 0; i < size; i++) {
                            min = fminf(min, x[first + i * step]);
                            max = fmaxf(max, x[first + i * step]);
                        }
                        double scale = (double)(max - min) / ((1 << bits) - 1), range = (double)(max - min);
                        // f16 scale is off by 2^-11 of itself, times the largest code: 2^-11 of the range
                        double slack = range * 0x1p-11 + fabs((double)min) * 0x1p-11;
                        if (fabs((double)(y[e] - x[e])) > scale / 2 + slack) {
                            fail_msg("int%d d=%d: %g became %g", bits, d, (double)x[e], (double)y[e]);
                        }
                        if (x[e] == min) {
                            assert_true(y[e] == min); // it is an f16: exact
                        }
                        if (x[e] == max) {
                            assert_true(fabs((double)(y[e] - max)) <= slack);
                        }
                        if (bits == 1) {
                            assert_true(y[e] == min || fabs((double)(y[e] - max)) <= slack);
                        }
                    }
                }
                free(k);
                free(v);
                free(kq);
                free(vq);
                cache_free(&plain);
                cache_free(&packed);
            }
        }
    }
}

// Codes are packed least significant bits first, ties go to even, equal values give scale 0 and code 0.
static void test_quantize_packs_codes_lsb_first(void **state) {
    (void)state;
    enum { D = 8 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_INT8; f <= SL_KV_INT1; f++) {
            struct sl_page_layout work, packed;
            int bits = sl_kv_format_bits((enum sl_kv_format)f);
            assert_int_equal(sl_page_layout_init(&work, SL_KV_F32, D, 0, false), SL_OK);
            assert_int_equal(sl_page_layout_init(&packed, (enum sl_kv_format)f, D, 0, false), SL_OK);
            char *page = take(work.bytes), *out = take(packed.bytes);
            float *k = (float *)(page + work.k), *v = (float *)(page + work.v);
            int top = (1 << bits) - 1;
            for (int j = 0; j < 64; j++) {
                for (int i = 0; i < D; i++) {
                    k[j * D + i] = i == 7 ? 3.0f : j == 0 ? (float)(i == 0) : (float)(j % 2 * top); // range 0..top
                    v[j * D + i] = i == 0 ? 1.0f : i == 7 ? (float)top : 0.0f;                      // codes 1,0,..,top
                }
            }
            v[1] = top > 2 ? 0.5f : 0.0f; // halves round to even
            v[2] = top > 2 ? 1.5f : 0.0f;
            ops->quantize(&work, page, &packed, out);
            const uint8_t *k_codes = (const uint8_t *)out + packed.k, *v_codes = (const uint8_t *)out + packed.v;
            // channel 0 holds the codes 1, top, 0, top, ... of its 64 slots; channel 1 the same but for slot 0
            static const uint8_t mixed[] = {[8] = 1, [4] = 0xf1, [2] = 0xcd, [1] = 0xab};
            assert_int_equal(k_codes[0], mixed[bits]);
            assert_int_equal(k_codes[8 * bits], mixed[bits] - 1);
            static const uint8_t tied[] = {[8] = 1, [4] = 0x01, [2] = 0x21, [1] = 0x81};
            assert_int_equal(v_codes[0], tied[bits]);
            assert_int_equal(v_codes[bits - 1] >> (8 - bits), top);
            struct sl_kv kv = {(void *const[]){out}, 1, 64, &work, &packed};
            float back[64 * D];
            ops->read_rows(&kv, 0, 64, back, NULL);
            for (int j = 0; j < 64; j++) {
                assert_true(back[j * D + 7] == 3.0f);
                assert_true(back[j * D] == k[j * D]); // integers of the range are codes
            }
            free(page);
            free(out);
        }
    }
}

// --- select, gather --------------------------------------------------------------------------------------------------

static const float *sort_scores; // qsort has no argument for it

static int by_score(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    float x = sort_scores[i], y = sort_scores[j];
    if (isnan(x) || isnan(y)) {
        return isnan(x) && isnan(y) ? (i > j) - (i < j) : isnan(x) ? 1 : -1;
    }
    return x != y ? (x < y ? 1 : -1) : (i > j) - (i < j);
}

static int by_index(const void *a, const void *b) {
    return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b);
}

static void test_select_equals_sorting(void **state) {
    (void)state;
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f, 1.0f, -1.0f};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        uint64_t seed = 5;
        for (int trial = 0; trial < 3000; trial++) {
            uint32_t n = (uint32_t)(next_random(&seed) % 300), b = (uint32_t)(next_random(&seed) % (n + 3));
            float scores[300];
            uint32_t order[300], keep[300 + 1];
            for (uint32_t j = 0; j < n; j++) {
                scores[j] = trial % 3 == 0   ? special[next_random(&seed) % 10]
                            : trial % 3 == 1 ? (float)(next_random(&seed) % 4)
                                             : random_float(&seed);
                order[j] = j;
            }
            sort_scores = scores;
            qsort(order, n, sizeof *order, by_score);
            uint32_t n_keep = b < n ? b : n;
            qsort(order, n_keep, sizeof *order, by_index);
            keep[n_keep] = 0xdeadbeef;
            tier(*name)->select(scores, n, b, keep);
            assert_memory_equal(keep, order, n_keep * sizeof *keep);
            assert_int_equal(keep[n_keep], 0xdeadbeef);
        }
    }
}

static void test_gather_equals_a_copy(void **state) {
    (void)state;
    enum { D = 24, N = 321 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_F32; f <= SL_KV_BF16; f++) {
            uint64_t seed = 11 + (uint64_t)f;
            struct cache c;
            uint32_t n[1] = {N}, none[1] = {0}, keep[N], n_keep = 0;
            cache_fill(&c, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, 1, D, 2, n, none);
            for (uint32_t j = 0; j < N; j++) {
                sl_page_state(&c.work, c.pages[0][j / 64], 0)[j % 64] = (float)j;
                sl_page_state(&c.work, c.pages[0][j / 64], 1)[j % 64] = -(float)j;
                if (next_random(&seed) % 3 != 0) {
                    keep[n_keep++] = j;
                }
            }
            float *k = take(N * D * 4), *v = take(N * D * 4), *k2 = take(N * D * 4), *v2 = take(N * D * 4), scores[N];
            int64_t positions[N];
            ops->read_rows(&c.kv[0], 0, N, k, v);
            ops->gather(&c.kv[0], keep, n_keep);
            c.kv[0].n_slots = n_keep;
            ops->read_rows(&c.kv[0], 0, n_keep, k2, v2);
            ops->read_positions(&c.kv[0], positions);
            for (uint32_t i = 0; i < n_keep; i++) {
                assert_memory_equal(k2 + i * D, k + keep[i] * D, D * sizeof *k);
                assert_memory_equal(v2 + i * D, v + keep[i] * D, D * sizeof *v);
                assert_true(positions[i] == position_of(keep[i]));
            }
            for (int plane = 0; plane < 2; plane++) {
                ops->read_state(&c.kv[0], plane, scores);
                for (uint32_t i = 0; i < n_keep; i++) {
                    assert_true(scores[i] == (plane == 0 ? (float)keep[i] : -(float)keep[i]));
                }
            }
            free(k);
            free(v);
            free(k2);
            free(v2);
            cache_free(&c);
        }
    }
}

// --- time ------------------------------------------------------------------------------------------------------------

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// One line: median and best of several runs, of attend or of fold.
static void time_case(struct sl_team *team, const char *name, const struct attend_case *a, bool columns) {
    enum { RUNS = 7 };
    struct cache c;
    struct sl_rope rope;
    struct sl_attend args;
    case_open(a, tier(name), &c, &rope, &args);
    tier(name)->attend(team, &args, 1);
    int n_calls = a->m == 1 && strcmp(name, "reference") != 0 ? 20 : 1;
    int64_t times[RUNS];
    for (int i = 0; i < RUNS; i++) {
        int64_t begin = sl_now_ns();
        for (int call = 0; call < n_calls; call++) {
            if (columns) {
                tier(name)->fold(team, &args, 0, &sums_only);
            } else {
                tier(name)->attend(team, &args, 1);
            }
        }
        times[i] = (sl_now_ns() - begin) / n_calls;
    }
    qsort(times, RUNS, sizeof *times, by_time);
    double n = (double)a->n_slots[0], median = (double)times[RUNS / 2], best = (double)times[0];
    double flops = (columns ? 2.0 : 4.0) * a->m * (n - a->m / 2.0) * a->n_heads * a->d;
    double bytes = n / 64 * (double)(a->n_packed[0] > 0 ? c.packed.v : c.work.v) * (columns ? 1 : 2) * a->n_kv_heads;
    printf("%-10s %-12s %-5s n=%-6.0f d=%-4d m=%-4d median %9.3f ms %7.1f GFLOP/s %6.2f GB/s   best %9.3f ms %7.1f "
           "GFLOP/s %6.2f GB/s\n",
           name, columns ? "fold" : "attend", sl_kv_format_name(a->n_packed[0] > 0 ? a->packed : a->work), n, a->d,
           a->m, median * 1e-6, flops / median, bytes / median, best * 1e-6, flops / best, bytes / best);
    case_close(&c, &args);
}

static void time_attention(void) {
    enum { MANY = 16384, SOME = 8192, FEW = 512 }; // MANY: 32 MiB of f16 pages at d = 64, 64 MiB at d = 128
    static const enum sl_kv_format formats[] = {SL_KV_F32, SL_KV_F16, SL_KV_INT8, SL_KV_INT4, SL_KV_INT2};
    struct sl_team *team;
    assert_int_equal(sl_team_create(0, &team, NULL), SL_OK);
    printf("16 heads, 4 KV heads, team of %d\n", sl_team_size(team));
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        bool slow = strcmp(*name, "reference") == 0;
        for (int d = 64; d <= 128; d *= 2) {
            for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
                bool packed = sl_kv_format_is_quantized(formats[f]);
                uint32_t n = slow ? FEW : MANY, n_packed = packed ? n / 64 : 0;
                struct attend_case a = {
                    packed ? SL_KV_F16 : formats[f],         formats[f], 16, 4, d, 1, false, {n, n, n, n},
                    {n_packed, n_packed, n_packed, n_packed}};
                time_case(team, *name, &a, false);
            }
            uint32_t n = slow ? FEW : SOME;
            struct attend_case a = {SL_KV_F16, SL_KV_F16, 16, 4, d, slow ? 32 : 512, false, {n, n, n, n}, {0}};
            time_case(team, *name, &a, false);
            time_case(team, *name, &a, true);
        }
    }
    sl_team_destroy(&team);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_attention();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_stores_rows_rounded_and_saturated),
        cmocka_unit_test(test_attend_equals_dense_attention),
        cmocka_unit_test(test_attend_rows_do_not_depend_on_each_other),
        cmocka_unit_test(test_fold_of_sums_equals_dense_columns),
        cmocka_unit_test(test_quantize_stays_within_half_a_step),
        cmocka_unit_test(test_quantize_packs_codes_lsb_first),
        cmocka_unit_test(test_select_equals_sorting),
        cmocka_unit_test(test_gather_equals_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
