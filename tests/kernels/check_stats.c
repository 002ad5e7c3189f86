// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds fold and window_sums of every tier to their formulas (engine/tensor/ops.h), and times them (--time).
 *
 * Design: random geometries over random pages; what is expected is computed densely in f64 from read_rows(). A weight
 *         that lies within rounding of 1/v_r may count as above or not, so counts are held between two bounds.
 */
#include "tests/kernels/stats_fixture.h"
#include "tests/stream.h"

// --- fold ------------------------------------------------------------------------------------------------------------

// Every slot holds `before` and what was wanted of the expected statistics, in the planes that its page has.
static void assert_states(const struct setup *s, const struct sl_fold *what, float before, const struct expected *e) {
    for (int h = 0; h < s->args.heads.n; h++) {
        for (uint32_t j = 0; j < s->args.heads.kv[h].n_slots; j++) {
            for (int plane = 0; plane < SL_MAX_STATES; plane++) {
                const float *state = state_of(&s->args.heads.kv[h], j, plane);
                if (state == NULL) {
                    continue;
                }
                if (plane == what->sum && what->largest) {
                    assert_close_or_rounded((double)*state, fmax((double)before, e->largest[h][j]),
                                            within(tested()[0], 9e-6), e->slack);
                } else if (plane == what->sum) {
                    assert_close_or_rounded((double)*state - (double)before, e->sum[h][j], within(tested()[0], 9e-6),
                                            e->slack);
                } else if (plane == what->square) {
                    double slack = e->slack * (2 + e->slack); // (1 + slack)^2 - 1
                    assert_close_or_rounded((double)*state - (double)before, e->square[h][j], within(tested()[0], 9e-6),
                                            slack);
                } else if (plane == what->above) {
                    double count = (double)*state - (double)before;
                    assert_true(count == floor(count));
                    assert_true(count >= e->above_least[h][j] && count <= e->above_most[h][j]);
                } else {
                    assert_true(*state == before); // it was not requested
                }
            }
        }
        for (uint32_t p = 0; p < s->args.heads.kv[h].n_packed; p++) { // a plane that a page lacks would lie after it
            static const char zeros[GUARD_BYTES];
            assert_memory_equal((const char *)s->cache.pages[h][p] + s->cache.packed.bytes, zeros, GUARD_BYTES);
        }
    }
}

static void test_fold_equals_dense_statistics_in_any_combination_of_planes(void **state) {
    (void)state;
    static const int orders[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 1;
        for (int trial = 0; trial < trials(*name, 12); trial++) {
            struct shape a = shape_for(*name, &seed);
            struct setup s;
            setup_open(&s, tier(*name), &a);
            int first_row = trial % 3 == 0 ? 0 : (int)(next_random(&seed) % (uint64_t)(a.m + 1));
            const int *order = orders[next_random(&seed) % 4];
            struct expected *e = expect(*name, &s.args, first_row);
            int step = strcmp(*name, "reference") == 0 || is_emulated(*name) ? 3 : 1; // 7, 4, 1: they take their time
            for (int wanted = 7; wanted >= 0; wanted -= step) {
                struct sl_fold what = {wanted & 1 ? order[0] : -1, wanted & 2 ? order[1] : -1,
                                       wanted & 4 ? order[2] : -1, false};
                set_states(&s, 3.0f);
                tier(*name)->fold(NULL, &s.args, first_row, &what);
                assert_states(&s, &what, 3.0f, e);
            }
            struct sl_fold largest = {.sum = order[0], .square = -1, .above = -1, .largest = true};
            set_states(&s, 0.01f); // some are above it, some below
            tier(*name)->fold(NULL, &s.args, first_row, &largest);
            assert_states(&s, &largest, 0.01f, e);
            expected_free(e);
            setup_close(&s);
        }
    }
}

static const struct sl_fold everything = {.sum = 0, .square = 1, .above = 2};

// A slot whose weight in three rows is .2, .4, .6: mean .4, standard deviation .163299.
static void test_fold_rows_2_4_6_give_mean_4_and_deviation_163299(void **state) {
    (void)state;
    enum { D = 8, M = 3 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct shape a = {SL_KV_F32, SL_KV_F32, 1, 1, D, M, 3, 3, false, {4}, {0}, 0};
        struct setup s;
        setup_open(&s, tier(*name), &a);
        float *k = (float *)((char *)s.cache.pages[0][0] + s.cache.work.k), *q = (float *)s.args.q;
        memset(k, 0, 4 * D * sizeof *k); // a logit x at slot 0 and 0 elsewhere
        memset(q, 0, M * D * sizeof *q);
        k[0] = 1.0f;
        for (int r = 0; r < M; r++) { // the row sees r + 1 other slots: e^x / (e^x + r + 1) = w
            double w = 0.2 * (r + 1);
            q[r * D] = (float)(log(w * (r + 1) / (1.0 - w)) / (double)s.args.scale);
        }
        tier(*name)->attend(NULL, &s.args, 1);
        tier(*name)->fold(NULL, &s.args, 0, &everything);
        double mean = (double)*state_of(s.args.heads.kv, 0, 0) / M,
               square = (double)*state_of(s.args.heads.kv, 0, 1) / M;
        assert_close(mean, 0.4, within(*name, 1e-6));
        assert_close(sqrt(square - mean * mean), 0.163299, within(*name, 2e-6));
        assert_true(*state_of(s.args.heads.kv, 0, 2) == 2.0f); // .2 of 2 slots is not above, .4 of 3 and .6 of 4 are
        setup_close(&s);
    }
}

// A row that sees one slot gives it everything, which is the mean: 1 > 1 does not count, whichever way 1 is rounded.
static void test_fold_counts_nothing_for_a_row_that_sees_one_slot(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int group = 1; group <= 16; group++) {
            struct shape a = {SL_KV_F32, SL_KV_F32, group, MAX_KV_HEADS, 24, 1, 3, 3, group % 2 == 0, {0}, {0}, 0};
            for (int h = 0; h < MAX_KV_HEADS; h++) {
                a.n_slots[h] = 1;
            }
            struct setup s;
            setup_open(&s, tier(*name), &a);
            set_states(&s, 0.0f);
            tier(*name)->fold(NULL, &s.args, 0, &everything);
            for (int h = 0; h < MAX_KV_HEADS; h++) {
                assert_close((double)*state_of(&s.args.heads.kv[h], 0, 0), 1, within(*name, 1e-6));
                assert_true(*state_of(&s.args.heads.kv[h], 0, 2) == 0.0f);
            }
            setup_close(&s);
        }
    }
}

// With nothing evicted: sum_j sum_j = number of rows, per KV head.
static void test_fold_sums_add_up_to_the_number_of_rows(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 2;
        for (int trial = 0; trial < trials(*name, 10); trial++) {
            struct shape a = shape_for(*name, &seed);
            memset(a.n_packed, 0, sizeof a.n_packed);
            struct setup s;
            setup_open(&s, tier(*name), &a);
            int first_row = (int)(next_random(&seed) % (uint64_t)a.m);
            tier(*name)->fold(NULL, &s.args, 0, &everything);
            tier(*name)->fold(NULL, &s.args, first_row, &everything);
            for (int h = 0; h < a.n_kv_heads; h++) {
                double total = 0;
                for (uint32_t j = 0; j < a.n_slots[h]; j++) {
                    total += (double)*state_of(&s.args.heads.kv[h], j, 0);
                }
                assert_close(total, 2 * a.m - first_row, sum_tolerance(*name, &s.args, 1e-6));
            }
            setup_close(&s);
        }
    }
}

// Rows [row, row + n) as a call of their own, when the later rows had not been appended yet.
static void fold_part(const struct sl_ops *ops, const struct setup *s, int row, int n) {
    struct sl_attend part = s->args;
    struct sl_kv kv[MAX_KV_HEADS];
    for (int h = 0; h < part.heads.n; h++) {
        kv[h] = s->args.heads.kv[h];
        kv[h].n_slots -= (uint32_t)(s->args.m - row - n);
    }
    float *lse = take((size_t)part.n_heads * (size_t)n * sizeof *lse);
    for (int head = 0; head < part.n_heads; head++) {
        memcpy(lse + head * n, s->args.lse + head * s->args.m + row, (size_t)n * sizeof *lse);
    }
    part.m = n;
    part.heads.kv = kv;
    part.lse = lse;
    part.q += (size_t)row * (size_t)part.n_heads * (size_t)part.head_dim;
    part.positions += row;
    ops->fold(NULL, &part, 0, &everything);
    free(lse);
}

static void test_fold_of_a_block_equals_fold_of_its_rows(void **state) {
    (void)state;
    float *whole = take(MAX_STATES_COPIED * sizeof *whole), *parts = take(MAX_STATES_COPIED * sizeof *parts);
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 3;
        for (int trial = 0; trial < trials(*name, 12); trial++) {
            struct shape a = shape_for(*name, &seed);
            struct setup s;
            setup_open(&s, tier(*name), &a);
            set_states(&s, 0.0f);
            tier(*name)->fold(NULL, &s.args, 0, &everything);
            size_t n = copy_states(&s, whole);
            set_states(&s, 0.0f);
            int chunk = trial % 2 ? 1 : 17;
            for (int row = 0; row < a.m; row += chunk) {
                fold_part(tier(*name), &s, row, row + chunk < a.m ? chunk : a.m - row);
            }
            copy_states(&s, parts);
            for (size_t i = 0; i < n; i++) {
                if (!isnan(whole[i]) || !isnan(parts[i])) {
                    assert_close((double)parts[i], (double)whole[i], within(*name, 1e-6));
                }
            }
            setup_close(&s);
        }
    }
    free(whole);
    free(parts);
}

// Equal rows give the slot a deviation of 0, whatever the rounding leaves of it.
static void test_fold_of_equal_rows_has_no_deviation(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct shape a = {SL_KV_F16, SL_KV_F16, 4, 1, 64, 1, 3, 3, false, {150}, {0}, 0};
        struct setup s;
        setup_open(&s, tier(*name), &a);
        for (int i = 0; i < 10; i++) {
            tier(*name)->fold(NULL, &s.args, 0, &everything);
        }
        for (uint32_t j = 0; j < 150; j++) {
            double mean = (double)*state_of(s.args.heads.kv, j, 0) / 10,
                   square = (double)*state_of(s.args.heads.kv, j, 1) / 10;
            assert_true(fabs(square - mean * mean) <= within(*name, 1e-6) * square);
        }
        setup_close(&s);
    }
}

// --- window sums -----------------------------------------------------------------------------------------------------

static void test_window_sums_equal_dense_sums_of_every_query_head(void **state) {
    (void)state;
    const size_t stride = MAX_SLOTS + 3;
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 4;
        for (int trial = 0; trial < trials(*name, 24); trial++) {
            struct shape a = shape_for(*name, &seed);
            struct setup s;
            setup_open(&s, tier(*name), &a);
            int first_row = trial % 4 == 0   ? 0
                            : trial % 4 == 1 ? a.m - 1 // the last row: its softmax
                                             : (int)(next_random(&seed) % (uint64_t)(a.m + 1));
            struct expected *e = expect(*name, &s.args, first_row);
            size_t n_heads = (size_t)s.args.n_heads;
            float *sums = take(n_heads * stride * sizeof *sums), *untouched = take(stride * sizeof *sums);
            tier(*name)->window_sums(NULL, &s.args, first_row, (struct sl_vectors){sums, stride});
            for (size_t head = 0; head < n_heads; head++) {
                uint32_t n = a.n_slots[head / (size_t)a.group];
                double total = 0;
                for (uint32_t j = 0; j < n; j++) {
                    double want = e->heads[head * MAX_SLOTS + j];
                    assert_close_or_rounded((double)sums[head * stride + j], want, within(*name, 3e-6), e->slack);
                    assert_true(want != 0.0 || sums[head * stride + j] == 0.0f); // no row sees the slot
                    total += (double)sums[head * stride + j];
                }
                assert_close(total, a.m - first_row, sum_tolerance(*name, &s.args, 2e-6));
                assert_memory_equal(sums + head * stride + n, untouched, (stride - n) * sizeof *sums);
            }
            free(sums);
            free(untouched);
            expected_free(e);
            setup_close(&s);
        }
    }
}

static void test_window_sums_of_the_last_row_are_its_softmax(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct shape a = {SL_KV_F32, SL_KV_INT4, 2, 1, 64, 40, 1, 1, true, {201}, {1}, 0};
        struct setup s;
        setup_open(&s, tier(*name), &a);
        float sums[2 * MAX_SLOTS];
        tier(*name)->window_sums(NULL, &s.args, a.m - 1, (struct sl_vectors){sums, MAX_SLOTS});
        double *keys = keys_f64(&s.args, s.args.heads.kv), weights[MAX_SLOTS], q[64];
        for (int head = 0; head < 2; head++) {
            for (int i = 0; i < 64; i++) {
                q[i] = (double)s.args.q[((a.m - 1) * 2 + head) * 64 + i];
            }
            rotate_f64(&s.rope, 200, q);
            softmax_f64(q, keys, 201, 64, (double)s.args.scale, weights);
            for (int j = 0; j < 201; j++) {
                assert_close((double)sums[head * MAX_SLOTS + j], weights[j], within(*name, 1e-6));
            }
        }
        free(keys);
        setup_close(&s);
    }
}

// --- tiers, teams ----------------------------------------------------------------------------------------------------

static void test_tiers_agree_with_the_reference(void **state) {
    (void)state;
    float *want = take(MAX_STATES_COPIED * sizeof *want), *got = take(MAX_STATES_COPIED * sizeof *got);
    const struct sl_fold no_counts = {.sum = 2, .square = 0, .above = -1};
    uint64_t seed = 5;
    for (int trial = 0; trial < trials(tested()[0], 12); trial++) {
        struct shape a = shape_for(tested()[0], &seed);
        if (trial == 0) { // more query heads a KV head than a kernel may hold at a time
            a = (struct shape){SL_KV_F32, SL_KV_F32, 97, 1, 8, 3, 3, 0, false, {70}, {0}, 0};
        }
        struct setup s;
        setup_open(&s, tier("reference"), &a);
        size_t n_sums = (size_t)s.args.n_heads * MAX_SLOTS;
        float *want_sums = calloc(n_sums, sizeof(float)), *got_sums = calloc(n_sums, sizeof(float));
        set_states(&s, 0.0f);
        tier("reference")->fold(NULL, &s.args, a.m / 3, &no_counts);
        tier("reference")->window_sums(NULL, &s.args, a.m / 3, (struct sl_vectors){want_sums, MAX_SLOTS});
        size_t n = copy_states(&s, want);
        for (const char *const *name = tested(); *name != NULL; name++) {
            set_states(&s, 0.0f);
            tier(*name)->fold(NULL, &s.args, a.m / 3, &no_counts);
            tier(*name)->window_sums(NULL, &s.args, a.m / 3, (struct sl_vectors){got_sums, MAX_SLOTS});
            copy_states(&s, got);
            struct expected *e = expect(*name, &s.args, a.m / 3);
            double slack = e->slack;
            expected_free(e);
            for (size_t i = 0; i < n; i++) {
                if (!isnan(want[i]) || !isnan(got[i])) {
                    assert_close_or_rounded((double)got[i], (double)want[i], within(*name, 3e-6), slack * (2 + slack));
                }
            }
            for (size_t i = 0; i < n_sums; i++) {
                assert_close_or_rounded((double)got_sums[i], (double)want_sums[i], within(*name, 3e-6), slack);
            }
        }
        free(want_sums);
        free(got_sums);
        setup_close(&s);
    }
    free(want);
    free(got);
}

// The same bits again and again, whatever the team.
static void test_statistics_do_not_depend_on_the_team(void **state) {
    (void)state;
    float *want = take(MAX_STATES_COPIED * sizeof *want), *got = take(MAX_STATES_COPIED * sizeof *got);
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 6;
        for (int trial = 0; trial < trials(*name, 5); trial++) {
            struct shape a = shape_for(*name, &seed);
            struct setup s;
            setup_open(&s, tier(*name), &a);
            size_t n_sums = (size_t)s.args.n_heads * MAX_SLOTS;
            float *want_sums = calloc(n_sums, sizeof(float)), *got_sums = calloc(n_sums, sizeof(float));
            set_states(&s, 0.0f);
            tier(*name)->fold(NULL, &s.args, 0, &everything);
            tier(*name)->window_sums(NULL, &s.args, 0, (struct sl_vectors){want_sums, MAX_SLOTS});
            size_t n = copy_states(&s, want);
            for (int size = 1; size <= 4; size++) {
                struct sl_stream *stream;
                stream = test_stream_open(size);
                for (int repeat = 0; repeat < 2; repeat++) {
                    set_states(&s, 0.0f);
                    tier(*name)->fold(stream, &s.args, 0, &everything);
                    tier(*name)->window_sums(stream, &s.args, 0, (struct sl_vectors){got_sums, MAX_SLOTS});
                    copy_states(&s, got);
                    assert_memory_equal(got, want, n * sizeof *want);
                    assert_memory_equal(got_sums, want_sums, n_sums * sizeof *want_sums);
                }
                test_stream_close(&stream);
            }
            free(want_sums);
            free(got_sums);
            setup_close(&s);
        }
    }
    free(want);
    free(got);
}

// --- attention and statistics at once --------------------------------------------------------------------------------

static void clear_results(const struct setup *s, size_t n_out, size_t n_lse) {
    memset(s->args.out, 0xff, n_out * sizeof(float));
    memset(s->args.lse, 0xff, n_lse * sizeof(float));
    set_states(s, 3.0f);
}

static void assert_attend_fold_equals_the_two(const struct sl_ops *ops, const struct shape *a,
                                              const struct sl_fold *what) {
    struct setup s;
    setup_open(&s, ops, a);
    size_t n_lse = (size_t)a->m * (size_t)s.args.n_heads, n_out = n_lse * (size_t)a->d, n_states = 0;
    for (int h = 0; h < a->n_kv_heads; h++) {
        n_states += a->n_slots[h] * (size_t)SL_MAX_STATES;
    }
    float *out = take(n_out * sizeof *out), *lse = take(n_lse * sizeof *lse);
    float *want = take(n_states * sizeof *want), *got = take(n_states * sizeof *got);
    clear_results(&s, n_out, n_lse);
    ops->attend(NULL, &s.args, 1);
    ops->fold(NULL, &s.args, 0, what);
    memcpy(out, s.args.out, n_out * sizeof *out);
    memcpy(lse, s.args.lse, n_lse * sizeof *lse);
    copy_states(&s, want);
    for (int size = 1; size <= 4; size++) {
        struct sl_stream *stream;
        stream = test_stream_open(size);
        for (int repeat = 0; repeat < 3; repeat++) {
            clear_results(&s, n_out, n_lse);
            ops->attend_fold(stream, &s.args, what);
            assert_memory_equal(s.args.out, out, n_out * sizeof *out);
            assert_memory_equal(s.args.lse, lse, n_lse * sizeof *lse);
            copy_states(&s, got);
            assert_memory_equal(got, want, n_states * sizeof *want);
        }
        test_stream_close(&stream);
    }
    free(out);
    free(lse);
    free(want);
    free(got);
    setup_close(&s);
}

// The same bits as the two operations, whatever the team and the shape of blocks.
static void test_attend_fold_equals_attend_and_then_fold(void **state) {
    (void)state;
    PROCESSORS_ONLY();
    static const struct sl_fold folds[] = {
        {0, -1, -1, false}, {0, 1, -1, false}, {-1, -1, 0, false}, {2, 0, 1, false}, {1, -1, -1, true}};
    static const struct shape large[] = {
        // more than one split of slots; then so many slots that few vectors fit, or none
        {SL_KV_F16, SL_KV_F16, 3, 3, 64, 130, 3, 3, false, {4500, 4400, 200}, {0}, 0},
        {SL_KV_F16, SL_KV_F16, 5, 1, 64, 70, 3, 3, false, {14000}, {0}, 0},
        {SL_KV_F16, SL_KV_F16, 7, 1, 64, 70, 3, 3, false, {16000}, {0}, 3000},
        {SL_KV_F16, SL_KV_F16, 97, 1, 64, 70, 3, 3, false, {300}, {0}, 0},
        // heads so long that a block has fewer vectors than a kernel takes
        {SL_KV_F16, SL_KV_F16, 4, 1, 512, 100, 3, 3, false, {150}, {0}, 0},
    };
    for (const char *const *name = tested(); *name != NULL; name++) {
        if (tier(*name)->attend_fold == NULL) {
            continue;
        }
        uint64_t seed = 8;
        for (int trial = 0; trial < 16; trial++) {
            struct shape a = random_shape(&seed);
            a.m = a.m < 30 ? a.m + 100 : a.m; // so that there are blocks of enough vectors
            for (int h = 0; h < a.n_kv_heads; h++) {
                a.n_slots[h] += 100;
            }
            assert_attend_fold_equals_the_two(tier(*name), &a, &folds[trial % 4]);
        }
        for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
            assert_attend_fold_equals_the_two(tier(*name), &large[i], &folds[i % 4]);
        }
    }
}

// --- time ------------------------------------------------------------------------------------------------------------

enum op { ATTEND, FOLD_SUM, FOLD_ALL, BOTH_SUM, BOTH_ALL, WINDOW_LAST, WINDOW_64, N_OPS };

static void call_op(enum op op, const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *args,
                    float *sums) {
    static const struct sl_fold sums_only = {.sum = 0, .square = -1, .above = -1};
    switch (op) {
    case ATTEND:
        ops->attend(stream, args, 1);
        break;
    case FOLD_SUM:
        ops->fold(stream, args, 0, &sums_only);
        break;
    case FOLD_ALL:
        ops->fold(stream, args, 0, &everything);
        break;
    case BOTH_SUM:
    case BOTH_ALL:
        if (ops->attend_fold != NULL) {
            ops->attend_fold(stream, args, op == BOTH_SUM ? &sums_only : &everything);
        }
        break;
    default:
        ops->window_sums(stream, args,
                         op == WINDOW_LAST ? args->m - 1
                         : args->m < 64    ? 0
                                           : args->m - 64,
                         (struct sl_vectors){sums, args->heads.kv[0].n_slots});
        break;
    }
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// One line an operation: median and best of several runs, and the median beside attend's. The runs take turns.
static void time_shape(struct sl_stream *stream, const char *name, const struct shape *a) {
    enum { RUNS = 7 };
    static const char *const names[N_OPS] = {"attend",   "fold sum", "fold all", "both sum",
                                             "both all", "window 1", "window 64"};
    struct setup s;
    setup_open(&s, tier(name), a);
    float *sums = take((size_t)s.args.n_heads * a->n_slots[0] * sizeof *sums);
    int64_t times[N_OPS][RUNS];
    for (int i = 0; i < RUNS; i++) {
        for (int op = 0; op < N_OPS; op++) {
            int64_t begin = sl_now_ns();
            call_op((enum op)op, tier(name), stream, &s.args, sums);
            times[op][i] = sl_now_ns() - begin;
        }
    }
    for (int op = 0; op < N_OPS; op++) {
        qsort(times[op], RUNS, sizeof *times[op], by_time);
        double median = (double)times[op][RUNS / 2] * 1e-6, best = (double)times[op][0] * 1e-6;
        printf("%-10s %-10s %-5s %-4s n=%-6u d=%-4d m=%-4d median %9.3f ms  best %9.3f ms  best / attend %5.2f\n", name,
               names[op], sl_kv_format_name(a->n_packed[0] > 0 ? a->packed : a->work), a->slot_positions ? "rope" : "",
               a->n_slots[0], a->d, a->m, median, best, best / ((double)times[ATTEND][0] * 1e-6));
    }
    free(sums);
    setup_close(&s);
}

static void time_statistics(const char *only) {
    struct sl_stream *stream;
    stream = test_stream_open(0);
    printf("16 heads, 4 KV heads, team of %d\n", sl_stream_threads(stream));
    for (const char *const *name = tested(); *name != NULL; name++) {
        if (only != NULL && strcmp(*name, only) != 0) {
            continue;
        }
        bool slow = strcmp(*name, "reference") == 0;
        uint32_t n = slow ? 512 : 8192;
        for (int d = 64; d <= 128; d *= 2) {
            for (int rows = 0; rows < 2; rows++) {
                for (int rope = 0; rope < 2; rope++) {
                    struct shape a = {SL_KV_F16, SL_KV_F16,    4,   4, d, rows == 0 ? 1 : slow ? 32 : 512, 3, 3,
                                      rope == 1, {n, n, n, n}, {0}, 0};
                    time_shape(stream, *name, &a);
                }
            }
        }
    }
    test_stream_close(&stream);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_statistics(argc > 2 ? argv[2] : NULL); // of one tier
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold_equals_dense_statistics_in_any_combination_of_planes),
        cmocka_unit_test(test_fold_rows_2_4_6_give_mean_4_and_deviation_163299),
        cmocka_unit_test(test_fold_counts_nothing_for_a_row_that_sees_one_slot),
        cmocka_unit_test(test_fold_sums_add_up_to_the_number_of_rows),
        cmocka_unit_test(test_fold_of_a_block_equals_fold_of_its_rows),
        cmocka_unit_test(test_fold_of_equal_rows_has_no_deviation),
        cmocka_unit_test(test_window_sums_equal_dense_sums_of_every_query_head),
        cmocka_unit_test(test_window_sums_of_the_last_row_are_its_softmax),
        cmocka_unit_test(test_tiers_agree_with_the_reference),
        cmocka_unit_test(test_statistics_do_not_depend_on_the_team),
        cmocka_unit_test(test_attend_fold_equals_attend_and_then_fold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
