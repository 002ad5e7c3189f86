// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds what eviction computes from the cached rows (nearest, merge, write_state, gather without one slot) to its
 *          formulas, in every tier, and times it and value_change (--time). See check_value_change.c for that.
 *
 * Design: the expected values are f64 over read_rows(), so that they hold for every page format; where the papers' own
 *         numbers are known (two dimensions), they stand in the first channels of keys that are zero elsewhere.
 */
#include "tests/kernels/evict_fixture.h"

// --- nearest ---------------------------------------------------------------------------------------------------------

static double cosine(const float *a, const float *b, int d) {
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < d; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0.0;
}

static void test_nearest_equals_brute_force(void **state) {
    (void)state;
    static const struct {
        int d;
        uint32_t n, every; // slot j is kept if j % every == 0
    } shapes[] = {{8, 3, 2}, {40, 150, 7}, {64, 400, 3}, {128, 333, 20}, {72, 193, 192}};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t f = 0; f < N_FORMATS; f++) {
            for (size_t s = 0; s < 5; s++) {
                struct cache c;
                int d = sl_kv_format_is_quantized(formats[f]) && shapes[s].d == 72 ? 24 : shapes[s].d;
                uint32_t n = shapes[s].n, kept[400], evicted[400], n_kept = 0, n_evicted = 0, got[400], alone;
                float got_cosine[400], cosine_alone;
                open_head(&c, tier(*name), formats[f], d, n, n / 64);
                float *k = take(n * (size_t)d * sizeof *k);
                tier("reference")->read_rows(c.kv, 0, n, k, NULL);
                for (uint32_t j = 0; j < n; j++) {
                    *(j % shapes[s].every == 0 ? &kept[n_kept++] : &evicted[n_evicted++]) = j;
                }
                tier(*name)->nearest(c.kv, evicted, n_evicted, kept, n_kept, got, got_cosine);
                for (uint32_t e = 0; e < n_evicted; e++) {
                    const float *key = k + evicted[e] * (size_t)d;
                    double best = -2;
                    for (uint32_t i = 0; i < n_kept; i++) {
                        best = fmax(best, cosine(key, k + kept[i] * (size_t)d, d));
                    }
                    assert_int_equal(got[e] % shapes[s].every, 0);
                    assert_close(cosine(key, k + got[e] * (size_t)d, d), best, 1e-6);
                    assert_close((double)got_cosine[e], best, 2e-6);
                    // and it does not depend on who else is evicted
                    tier(*name)->nearest(c.kv, evicted + e, 1, kept, n_kept, &alone, &cosine_alone);
                    assert_int_equal(alone, got[e]);
                    assert_true(cosine_alone == got_cosine[e]);
                }
                free(k);
                cache_free(&c);
            }
        }
    }
}

static void test_nearest_takes_the_first_of_equals_and_zero_for_zero_keys(void **state) {
    (void)state;
    enum { N = 200, D = 48, E = 9 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        struct cache c;
        uint32_t evicted[E], kept[N - E], got[E];
        float cosines[E];
        open_head(&c, tier(*name), SL_KV_F32, D, N, 0);
        for (uint32_t j = 0; j < N; j++) {
            *(j < E ? &evicted[j] : &kept[j - E]) = j;
        }
        for (uint32_t j = E; j < N; j++) { // twelve keys and, doubled, their copies
            for (int i = 0; i < D && j >= E + 12; i++) {
                k_of(&c, j)[i] = 2.0f * k_of(&c, j - 12)[i];
            }
        }
        set_row(&c, k_of(&c, 3), 0, 0);
        tier(*name)->nearest(c.kv, evicted, E, kept, N - E, got, cosines);
        for (int e = 0; e < E; e++) {
            assert_true(got[e] >= E && got[e] < E + 12);
        }
        assert_int_equal(got[3], E);
        assert_true(cosines[3] == 0.0f);
        // A zero key among keys that all point away is the nearest.
        for (uint32_t j = E; j < N; j++) {
            set_row(&c, k_of(&c, j), j == 77 || j == 99 ? 0.0f : -1.0f, 0.0f);
        }
        set_row(&c, k_of(&c, 0), 5, 0);
        tier(*name)->nearest(c.kv, evicted, 1, kept, N - E, got, cosines);
        assert_int_equal(got[0], 77);
        assert_true(cosines[0] == 0.0f);
        cache_free(&c);
    }
}

// --- merge -----------------------------------------------------------------------------------------------------------

static void test_merge_gives_the_golden_vector(void **state) {
    (void)state;
    static const uint32_t evicted[] = {1, 2}, kept[] = {0};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        struct cache c;
        uint32_t into[2];
        float cosines[2];
        open_head(&c, tier(*name), SL_KV_F32, 8, 3, 0);
        for (uint32_t j = 0; j < 3; j++) {
            set_row(&c, k_of(&c, j), j == 0 ? 1.0f : j == 1 ? .8f : .6f, j == 0 ? 0.0f : j == 1 ? .6f : .8f);
            memcpy(v_of(&c, j), k_of(&c, j), 8 * sizeof(float));
        }
        tier(*name)->nearest(c.kv, evicted, 2, kept, 1, into, cosines);
        assert_true(fabsf(cosines[0] - .8f) < 1e-6f && fabsf(cosines[1] - .6f) < 1e-6f);
        tier(*name)->merge(c.kv, evicted, into, cosines, 2);
        assert_true(fabsf(k_of(&c, 0)[0] - .82649f) < 1e-5f && fabsf(k_of(&c, 0)[1] - .41281f) < 1e-5f);
        assert_true(fabsf(v_of(&c, 0)[0] - .82649f) < 1e-5f && fabsf(v_of(&c, 0)[1] - .41281f) < 1e-5f);
        cache_free(&c);
    }
}

// Against the formula in f64; rows that nothing is merged into keep their bits, and so do rows merged with their equals.
static void test_merge_equals_its_formula(void **state) {
    (void)state;
    enum { N = 300, D = 40, M = 180 };
    static const double precision[] = {1e-6, 0x1p-10, 0x1p-7}; // f32, f16, bf16
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t f = 0; f < 3; f++) {
            struct cache c;
            uint64_t seed = 53;
            uint32_t from[M], into[M];
            open_head(&c, tier(*name), formats[f], D, N, 0);
            float *cosines = random_floats(M, 59), *x[2], *y[2];
            for (uint32_t i = 0; i < M; i++) { // slots 3i are kept; into[] is in no order and repeats
                from[i] = 3 * (i / 2) + 1 + i % 2;
                into[i] = 3 * (uint32_t)(next_random(&seed) % 60);
                cosines[i] /= 2.0f;
            }
            for (int part = 0; part < 2; part++) {
                x[part] = take(N * D * sizeof(float));
                y[part] = take(N * D * sizeof(float));
            }
            tier("reference")->read_rows(c.kv, 0, N, x[0], x[1]);
            tier(*name)->merge(c.kv, from, into, cosines, M);
            tier("reference")->read_rows(c.kv, 0, N, y[0], y[1]);
            for (int part = 0; part < 2; part++) {
                for (uint32_t j = 0; j < N; j++) {
                    for (uint32_t e = j * D; e < (j + 1) * D; e++) {
                        double sum = exp(1.0) * (double)x[part][e], weight = exp(1.0);
                        float least = x[part][e], most = least;
                        bool touched = false;
                        for (uint32_t i = 0; i < M; i++) {
                            if (into[i] == j) {
                                float other = x[part][from[i] * D + e % D];
                                touched = true;
                                sum += exp((double)cosines[i]) * (double)other;
                                weight += exp((double)cosines[i]);
                                least = fminf(least, other);
                                most = fmaxf(most, other);
                            }
                        }
                        if (!touched) {
                            assert_true(y[part][e] == x[part][e]);
                        } else {
                            assert_close((double)y[part][e], sum / weight, precision[f]);
                            double slack = precision[f] * 2.0; // of the rounding
                            assert_true((double)y[part][e] >= (double)least - slack);
                            assert_true((double)y[part][e] <= (double)most + slack);
                        }
                    }
                }
                free(x[part]);
                free(y[part]);
            }
            free(cosines);
            cache_free(&c);
        }
    }
}

static void test_merge_with_equal_vectors_changes_nothing(void **state) {
    (void)state;
    enum { N = 90, D = 16 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        struct cache c;
        uint32_t from[N / 2], into[N / 2];
        float *cosines = random_floats(N / 2, 61);
        open_head(&c, tier(*name), SL_KV_F32, D, N, 0);
        for (uint32_t i = 0; i < N / 2; i++) {
            from[i] = i;
            into[i] = N / 2 + i % 7;
            memcpy(k_of(&c, i), k_of(&c, into[i]), D * sizeof(float));
            memcpy(v_of(&c, i), v_of(&c, into[i]), D * sizeof(float));
        }
        float *before = take(2 * c.work.bytes);
        memcpy(before, c.pages[0][0], c.work.bytes);
        memcpy((char *)before + c.work.bytes, c.pages[0][1], c.work.bytes);
        tier(*name)->merge(c.kv, from, into, cosines, N / 2);
        assert_memory_equal(before, c.pages[0][0], c.work.bytes);
        assert_memory_equal((char *)before + c.work.bytes, c.pages[0][1], c.work.bytes);
        free(before);
        free(cosines);
        cache_free(&c);
    }
}

// A channel that is 1 in all rows stays 1: the weights sum to 1, however many are merged.
static void test_merge_weights_sum_to_one(void **state) {
    (void)state;
    enum { N = 120, D = 8 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        struct cache c;
        uint32_t from[N - 1], into[N - 1];
        float *cosines = random_floats(N - 1, 67);
        open_head(&c, tier(*name), SL_KV_F32, D, N, 0);
        for (uint32_t j = 0; j < N; j++) {
            k_of(&c, j)[5] = v_of(&c, j)[2] = 1.0f;
            k_of(&c, j)[6] = j == 100 ? 0.0f : 1.0f;
            if (j != 100) {
                from[j - (j > 100)] = j;
                into[j - (j > 100)] = 100;
            }
        }
        double weight = 0;
        for (int i = 0; i < N - 1; i++) {
            weight += exp((double)cosines[i]);
        }
        tier(*name)->merge(c.kv, from, into, cosines, N - 1);
        assert_true(k_of(&c, 100)[5] == 1.0f && v_of(&c, 100)[2] == 1.0f);
        assert_close((double)k_of(&c, 100)[6], weight / (exp(1.0) + weight), 1e-6);
        free(cosines);
        cache_free(&c);
    }
}

// --- state, gather ---------------------------------------------------------------------------------------------------

static void test_write_state_writes_its_range_only(void **state) {
    (void)state;
    enum { N = 200 };
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        struct cache c;
        uint32_t n = N, packed = 1;
        float values[N], got[2][N];
        cache_fill(&c, tier(*name), SL_KV_F16, SL_KV_INT4, 1, 16, 2, &n, &packed);
        for (int j = 0; j < N; j++) {
            values[j] = (float)(j + 1);
        }
        tier(*name)->write_state(c.kv, 1, 70, 195, values);
        tier(*name)->write_state(c.kv, 0, 100, 100, values);
        tier(*name)->write_state(c.kv, 0, 64, 65, values);
        tier(*name)->read_state(c.kv, 0, got[0]);
        tier(*name)->read_state(c.kv, 1, got[1]);
        for (int j = 0; j < N; j++) {
            assert_true(got[1][j] == (j >= 70 && j < 195 ? (float)(j - 69) : 0.0f));
            assert_true(got[0][j] == (j == 64 ? 1.0f : 0.0f));
        }
        cache_free(&c);
    }
}

// A decode step keeps all slots but one: before it nothing moves, behind it everything moves by one.
static void test_gather_without_one_slot_equals_a_copy(void **state) {
    (void)state;
    enum { D = 24, N = 321 };
    static const uint32_t gone[] = {0, 1, 62, 63, 64, 65, 127, 128, 200, 319, 320, N};
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (size_t g = 0; g < sizeof gone / sizeof gone[0]; g++) {
            struct cache c;
            uint32_t keep[N], n_keep = 0;
            float k[N * D], v[N * D], k2[N * D], v2[N * D], scores[N];
            int64_t positions[N];
            open_head(&c, ops, SL_KV_F16, D, N, 0);
            for (uint32_t j = 0; j < N; j++) {
                sl_page_state(&c.work, c.pages[0][j / 64], 0)[j % 64] = (float)j;
                keep[n_keep] = j;
                n_keep += j != gone[g];
            }
            ops->read_rows(c.kv, 0, N, k, v);
            ops->gather(c.kv, keep, n_keep);
            c.kv[0].n_slots = n_keep;
            ops->read_rows(c.kv, 0, n_keep, k2, v2);
            ops->read_positions(c.kv, positions);
            ops->read_state(c.kv, 0, scores);
            for (uint32_t i = 0; i < n_keep; i++) {
                assert_memory_equal(k2 + i * D, k + keep[i] * D, D * sizeof *k);
                assert_memory_equal(v2 + i * D, v + keep[i] * D, D * sizeof *v);
                assert_true(positions[i] == position_of(keep[i]) && scores[i] == (float)keep[i]);
            }
            cache_free(&c);
        }
    }
}

// --- time ------------------------------------------------------------------------------------------------------------

static void print_time(const char *name, const char *op, enum sl_kv_format format, uint32_t n, int d, const int64_t *ns,
                       double flops) {
    int64_t best = ns[0];
    for (int i = 1; i < 3; i++) {
        best = ns[i] < best ? ns[i] : best;
    }
    printf("%-10s %-16s %-5s n=%-6u d=%-4d best %9.3f ms %7.1f GFLOP/s\n", name, op, sl_kv_format_name(format), n, d,
           (double)best * 1e-6, flops / (double)best);
}

static void time_tier(const char *name, enum sl_kv_format format, int d) {
    enum { N = 7500, KEPT = 1500 };
    const struct sl_ops *ops = tier(name);
    struct cache c;
    uint32_t *kept = take(N * sizeof *kept), *evicted = take(N * sizeof *evicted), *into = take(N * sizeof *into);
    float *weights = random_weights(N, 71), *out = take(N * sizeof *out);
    int64_t ns[6][3];
    bool packed = sl_kv_format_is_quantized(format);
    open_head(&c, ops, format, d, N, N / 64);
    for (uint32_t j = 0; j < N; j++) {
        *(j % 5 == 0 ? &kept[j / 5] : &evicted[j - j / 5 - 1]) = j;
    }
    for (int i = 0; i < 3; i++) {
        int64_t at = sl_now_ns();
        ops->value_change(c.kv, weights, false, out);
        ns[0][i] = sl_now_ns() - at, at = sl_now_ns();
        ops->nearest(c.kv, evicted, 1, kept, KEPT, into, out);
        ns[1][i] = sl_now_ns() - at, at = sl_now_ns();
        ops->nearest(c.kv, evicted, N - KEPT, kept, KEPT, into, out);
        ns[2][i] = sl_now_ns() - at, at = sl_now_ns();
        if (!packed) {
            ops->merge(c.kv, evicted, into, out, N - KEPT);
        }
        ns[3][i] = sl_now_ns() - at;
        for (uint32_t j = 0; j + 1 < N; j++) {
            into[j] = j < N / 2 ? j : j + 1;
        }
        at = sl_now_ns();
        if (!packed) {
            ops->gather(c.kv, into, N - 1);
        }
        ns[4][i] = sl_now_ns() - at, at = sl_now_ns();
        ops->write_state(c.kv, 0, packed ? N / 64 * 64 : 0, N, weights);
        ns[5][i] = sl_now_ns() - at;
    }
    print_time(name, "value_change", format, N, d, ns[0], 5.0 * N * d);
    print_time(name, "nearest 1", format, KEPT, d, ns[1], 4.0 * KEPT * d);
    print_time(name, "nearest 6000", format, KEPT, d, ns[2], 2.0 * (N - KEPT) * KEPT * d);
    if (!packed) {
        print_time(name, "merge 6000", format, KEPT, d, ns[3], 6.0 * (N - KEPT) * d);
        print_time(name, "gather but one", format, N, d, ns[4], 0);
    }
    print_time(name, "write_state", format, N, d, ns[5], 0);
    free(kept);
    free(evicted);
    free(into);
    free(weights);
    free(out);
    cache_free(&c);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
            time_tier(*name, SL_KV_F16, 64);
            time_tier(*name, SL_KV_F16, 128);
            time_tier(*name, SL_KV_INT4, 128);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_equals_brute_force),
        cmocka_unit_test(test_nearest_takes_the_first_of_equals_and_zero_for_zero_keys),
        cmocka_unit_test(test_merge_gives_the_golden_vector),
        cmocka_unit_test(test_merge_equals_its_formula),
        cmocka_unit_test(test_merge_with_equal_vectors_changes_nothing),
        cmocka_unit_test(test_merge_weights_sum_to_one),
        cmocka_unit_test(test_write_state_writes_its_range_only),
        cmocka_unit_test(test_gather_without_one_slot_equals_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
