// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds what eviction computes from the cached rows (nearest, merge, gather without one slot) to its formulas, in
 *          every tier, and times it and value_change (--time). See check_value_change.c for that.
 *
 * Design: the expected values are f64 over read_rows(), so that they hold for every page format; where the papers' own
 *         numbers are known (two dimensions), they are in the first channels of keys that are zero elsewhere.
 */
#include "tests/kernels/evict_fixture.h"
#include "tests/stream.h"

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

static struct sl_nearest one_nearest(const uint32_t *evicted, const uint32_t *into, const float *cosines) {
    return (struct sl_nearest){one_list(evicted), one_list(into), one_vector(cosines)};
}

// Slots that are not in kept[], with the nearest of those and the cosine.
static void find_nearest(const struct sl_ops *ops, const struct sl_kv *kv, const uint32_t *kept, uint32_t n_kept,
                         uint32_t *evicted, uint32_t *into, float *cosines) {
    const struct sl_kv_heads heads = one_head(kv);
    ops->nearest(NULL, &heads, one_list(kept), (struct sl_counts){.host = &n_kept},
                 one_nearest(evicted, into, cosines));
}

// The CPU's ops read packed pages, too, which no caller needs.
static size_t formats_of_nearest(const char *name) {
    return is_device(name) ? 3 : N_FORMATS;
}

static void test_nearest_equals_brute_force(void **state) {
    (void)state;
    static const struct {
        int d;
        uint32_t n, every; // slot j is kept if j % every == 0
    } shapes[] = {{8, 3, 2}, {40, 150, 7}, {64, 400, 3}, {128, 333, 20}, {72, 193, 192}};
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t f = 0; f < formats_of_nearest(*name); f++) {
            for (size_t s = 0; s < 5; s++) {
                struct cache c;
                int d = sl_kv_format_is_quantized(formats[f]) && shapes[s].d == 72 ? 24 : shapes[s].d;
                uint32_t n = shapes[s].n, kept[400], evicted[400], n_kept = 0, n_evicted = 0, got[400], listed[400];
                float got_cosine[400];
                open_head(&c, tier(*name), formats[f], d, n, n / 64);
                float *k = take(n * (size_t)d * sizeof *k);
                tier("reference")->read_rows(c.kv, 0, n, k, NULL);
                for (uint32_t j = 0; j < n; j++) {
                    *(j % shapes[s].every == 0 ? &kept[n_kept++] : &evicted[n_evicted++]) = j;
                }
                find_nearest(tier(*name), c.kv, kept, n_kept, listed, got, got_cosine);
                assert_memory_equal(listed, evicted, n_evicted * sizeof *evicted);
                for (uint32_t e = 0; e < n_evicted; e++) {
                    const float *key = k + evicted[e] * (size_t)d;
                    double best = -2;
                    for (uint32_t i = 0; i < n_kept; i++) {
                        best = fmax(best, cosine(key, k + kept[i] * (size_t)d, d));
                    }
                    assert_int_equal(got[e] % shapes[s].every, 0);
                    assert_close(cosine(key, k + got[e] * (size_t)d, d), best, within(*name, 1e-6));
                    assert_close((double)got_cosine[e], best, within(*name, 2e-6));
                }
                free(k);
                cache_free(&c);
            }
        }
    }
}

// The nearest slot does not depend on which others are evicted: the same kept slots, with fewer and fewer slots after them.
static void test_nearest_does_not_depend_on_who_else_is_evicted(void **state) {
    (void)state;
    enum { N = 300, KEPT = 70 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t f = 0; f < formats_of_nearest(*name); f++) {
            struct cache c;
            uint32_t kept[KEPT], evicted[N], all[N], some[N];
            float of_all[N], of_some[N];
            open_head(&c, tier(*name), formats[f], 64, N, 1);
            for (uint32_t j = 0; j < KEPT; j++) {
                kept[j] = j;
            }
            find_nearest(tier(*name), c.kv, kept, KEPT, evicted, all, of_all);
            for (uint32_t n = 1; n < N - KEPT; n += n < 20 ? 1 : 37) {
                c.kv[0].n_slots = KEPT + n;
                find_nearest(tier(*name), c.kv, kept, KEPT, evicted, some, of_some);
                assert_memory_equal(some, all, n * sizeof *all);
                assert_memory_equal(of_some, of_all, n * sizeof *of_all);
            }
            cache_free(&c);
        }
    }
}

// x in the format of the head's pages, which holds it.
static void set_key(struct cache *c, uint32_t slot, int i, float x) {
    size_t at = (size_t)(slot % 64) * (size_t)c->d + (size_t)i;
    char *k = (char *)c->pages[0][slot / 64] + c->work.k;
    if (c->work.format == SL_KV_F32) {
        ((float *)k)[at] = x;
    } else {
        ((uint16_t *)k)[at] = c->work.format == SL_KV_BF16 ? sl_f32_to_bf16(x) : sl_f32_to_f16(x);
    }
}

static void check_equals(const char *name, enum sl_kv_format format, int d) {
    enum { N = 200, E = 9, SOME = 12 };
    struct cache c;
    uint32_t evicted[E], kept[N - E], got[E];
    float cosines[E], *k = take(N * (size_t)d * sizeof *k);
    open_head(&c, tier(name), format, d, N, 0);
    tier("reference")->read_rows(c.kv, 0, N, k, NULL);
    for (uint32_t j = 0; j < N; j++) {
        *(j < E ? &evicted[j] : &kept[j - E]) = j;
        for (int i = 0; i < d && j >= E + SOME; i++) { // twelve keys and, doubled or not, their copies
            float factor = (j - E) / SOME % 2 == 0 ? 1.0f : 2.0f;
            set_key(&c, j, i, factor * k[(size_t)(E + (j - E) % SOME) * (size_t)d + (size_t)i]);
        }
    }
    for (int i = 0; i < d; i++) {
        set_key(&c, 3, i, 0.0f);
    }
    find_nearest(tier(name), c.kv, kept, N - E, evicted, got, cosines);
    for (int e = 0; e < E; e++) {
        assert_true(got[e] >= E && got[e] < E + SOME);
    }
    assert_int_equal(got[3], E);
    assert_true(cosines[3] == 0.0f);
    // A zero key among keys that all point away is the nearest.
    for (uint32_t j = E; j < N; j++) {
        for (int i = 0; i < d; i++) {
            set_key(&c, j, i, i > 0 || j == 77 || j == 99 ? 0.0f : -1.0f);
        }
    }
    for (int i = 0; i < d; i++) {
        set_key(&c, 0, i, i == 0 ? 5.0f : 0.0f);
    }
    find_nearest(tier(name), c.kv, kept, N - E, evicted, got, cosines);
    assert_int_equal(got[0], 77);
    assert_true(cosines[0] == 0.0f);
    // So is a key that holds a NaN; an evicted one has cosine 0.
    set_key(&c, 77, 3, NAN);
    set_key(&c, 3, 3, NAN);
    find_nearest(tier(name), c.kv, kept, N - E, evicted, got, cosines);
    assert_int_equal(got[0], 77);
    assert_true(cosines[0] == 0.0f && cosines[3] == 0.0f);
    free(k);
    cache_free(&c);
}

static void test_nearest_takes_the_first_of_equals_and_zero_for_zero_keys(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        check_equals(*name, SL_KV_F32, 48);
        check_equals(*name, SL_KV_F16, 64);
        check_equals(*name, SL_KV_BF16, 96);
    }
}

// --- merge -----------------------------------------------------------------------------------------------------------

// All n of from[] into into[], whatever the cosines: a threshold below them, which stays.
static void merge_all(const struct sl_ops *ops, const struct sl_kv *kv, const uint32_t *from, const uint32_t *into,
                      const float *cosines, uint32_t n) {
    const struct sl_kv_heads heads = one_head(kv);
    uint32_t kept = kv->n_slots - n, n_merged = 0;
    float threshold = -100;
    ops->merge(NULL, &heads, (struct sl_counts){.host = &kept}, one_nearest(from, into, cosines),
               (struct sl_merge_threshold){0, &threshold, &n_merged});
    assert_int_equal(n_merged, n);
    assert_true(threshold == -100);
}

static void test_merge_gives_the_golden_vector(void **state) {
    (void)state;
    static const uint32_t kept[] = {0};
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        uint32_t evicted[2], into[2];
        float cosines[2];
        open_head(&c, tier(*name), SL_KV_F32, 8, 3, 0);
        for (uint32_t j = 0; j < 3; j++) {
            set_row(&c, k_of(&c, j), j == 0 ? 1.0f : j == 1 ? .8f : .6f, j == 0 ? 0.0f : j == 1 ? .6f : .8f);
            memcpy(v_of(&c, j), k_of(&c, j), 8 * sizeof(float));
        }
        find_nearest(tier(*name), c.kv, kept, 1, evicted, into, cosines);
        assert_true(fabsf(cosines[0] - .8f) < 1e-6f && fabsf(cosines[1] - .6f) < 1e-6f);
        merge_all(tier(*name), c.kv, evicted, into, cosines, 2);
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
    for (const char *const *name = tested(); *name != NULL; name++) {
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
            merge_all(tier(*name), c.kv, from, into, cosines, M);
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
    for (const char *const *name = tested(); *name != NULL; name++) {
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
        merge_all(tier(*name), c.kv, from, into, cosines, N / 2);
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
    for (const char *const *name = tested(); *name != NULL; name++) {
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
        merge_all(tier(*name), c.kv, from, into, cosines, N - 1);
        assert_true(k_of(&c, 100)[5] == 1.0f && v_of(&c, 100)[2] == 1.0f);
        assert_close((double)k_of(&c, 100)[6], weight / (exp(1.0) + weight), 1e-6);
        free(cosines);
        cache_free(&c);
    }
}

// One head by itself: what is at least `threshold`, as `cosines` say. Returns how many.
static uint32_t merge_alone(const struct sl_ops *ops, const struct sl_kv *kv, const uint32_t *keep, uint32_t kept,
                            const float *cosines, float threshold) {
    uint32_t from[2000], into[2000], n = 0;
    float of[2000];
    find_nearest(ops, kv, keep, kept, from, into, of);
    assert_memory_equal(of, cosines, (kv->n_slots - kept) * sizeof *of);
    for (uint32_t i = 0; i < kv->n_slots - kept; i++) {
        if (of[i] >= threshold) {
            from[n] = from[i], into[n] = into[i], of[n++] = of[i];
        }
    }
    merge_all(ops, kv, from, into, of, n);
    return n;
}

// Three heads, one of which keeps nothing: cosines of the other two make the mean, and those that reach the threshold go.
static void test_merge_of_heads_by_their_common_threshold(void **state) {
    (void)state;
    enum { HEADS = 3, D = 16, STRIDE = 2048 };
    const float beta = 0.7f;
    struct sl_stream *stream;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        const uint32_t n_all = is_emulated(*name) ? 600 : 2000;
        for (int first = 0; first < 2; first++) {
            static uint32_t keep[HEADS][STRIDE], evicted[HEADS][STRIDE], into[HEADS][STRIDE];
            static float cosines[HEADS][STRIDE], kept_cosines[HEADS][STRIDE];
            uint32_t kept[HEADS] = {0}, n_slots[HEADS] = {n_all, n_all, n_all}, none[HEADS] = {0}, n_merged = 99;
            struct cache c, same;
            cache_fill(&c, ops, SL_KV_F32, SL_KV_F32, HEADS, D, 0, n_slots, none);
            cache_fill(&same, ops, SL_KV_F32, SL_KV_F32, HEADS, D, 0, n_slots, none);
            for (uint32_t j = 0; j < n_all; j++) {
                if (j % 5 == 0) {
                    keep[0][kept[0]++] = j;
                }
                if (j % 2 == 0) {
                    keep[2][kept[2]++] = j;
                }
            }
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            const struct sl_counts counts = first ? (struct sl_counts){.host = kept} : (struct sl_counts){NULL, kept};
            const struct sl_lists lists = {keep[0], STRIDE};
            const struct sl_nearest found = {{evicted[0], STRIDE}, {into[0], STRIDE}, {cosines[0], STRIDE}};
            k_of(&c, 1)[3] = NAN;
            k_of(&same, 1)[3] = NAN;
            ops->nearest(stream, &heads, lists, counts, found);
            assert_true(cosines[0][0] >= -1 && cosines[0][0] <= 1);
            memcpy(kept_cosines, cosines, sizeof cosines);
            double sum = 0, n = 0;
            for (uint32_t i = 0; i < n_all - kept[0]; i++, n++) {
                sum += (double)cosines[0][i];
            }
            for (uint32_t i = 0; i < n_all - kept[2]; i++, n++) {
                sum += (double)cosines[2][i];
            }
            float mean = (float)(sum / n), threshold = first ? 0 : 0.9f;
            float want = first ? mean : (1 - beta) * 0.9f + beta * mean;
            ops->merge(stream, &heads, counts, found, (struct sl_merge_threshold){beta, &threshold, &n_merged});
            assert_true(threshold == want);
            uint32_t n_above = 0;
            for (int h = 0; h < HEADS; h += 2) { // and each head is merged as if it were alone
                n_above += merge_alone(ops, &same.kv[h], keep[h], kept[h], kept_cosines[h], want);
            }
            assert_int_equal(n_merged, n_above);
            assert_true(n_above > 100 && n_above < n_all);
            for (int h = 0; h < HEADS; h++) {
                for (uint32_t p = 0; p < sl_pages_for(n_all); p++) {
                    assert_memory_equal(c.pages[h][p], same.pages[h][p], c.work.positions);
                }
            }
            cache_free(&c);
            cache_free(&same);
        }
        // When no slot is evicted, similarity is undefined, and the threshold stays as it is.
        struct sl_kv kv = {.n_slots = 10};
        const struct sl_kv_heads heads = one_head(&kv);
        float threshold = 0.25f;
        uint32_t all = 10, n_merged = 99;
        ops->merge(NULL, &heads, (struct sl_counts){.host = &all}, one_nearest(NULL, NULL, NULL),
                   (struct sl_merge_threshold){beta, &threshold, &n_merged});
        assert_true(threshold == 0.25f && n_merged == 0);
    }
    test_stream_close(&stream);
}

// --- gather ---------------------------------------------------------------------------------------------------------

// A decode step keeps all slots but one: slots before it do not move, all slots after it move by one.
static void test_gather_without_one_slot_equals_a_copy(void **state) {
    (void)state;
    enum { D = 24, N = 321 };
    static const uint32_t gone[] = {0, 1, 62, 63, 64, 65, 127, 128, 200, 319, 320, N};
    for (const char *const *name = tested(); *name != NULL; name++) {
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
            gather_slots(ops, c.kv, keep, n_keep);
            c.kv[0].n_slots = n_keep;
            ops->read_rows(c.kv, 0, n_keep, k2, v2);
            ops->read_positions(c.kv, positions);
            read_plane(ops, c.kv, 0, scores);
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
    int64_t ns[5][3];
    bool packed = sl_kv_format_is_quantized(format);
    open_head(&c, ops, format, d, N, N / 64);
    const struct sl_kv_heads heads = one_head(c.kv);
    const struct sl_counts n_kept = {.host = (const uint32_t[]){KEPT}};
    for (uint32_t j = 0; j < N; j++) {
        *(j % 5 == 0 ? &kept[j / 5] : &evicted[j - j / 5 - 1]) = j;
    }
    for (int i = 0; i < 3; i++) {
        int64_t at = sl_now_ns();
        ops->value_change(NULL, &heads, 1, one_vector(weights), false, one_vector(out));
        ns[0][i] = sl_now_ns() - at, at = sl_now_ns();
        ops->nearest(NULL, &heads, one_list(kept), n_kept, one_nearest(evicted, into, out));
        ns[1][i] = sl_now_ns() - at, at = sl_now_ns();
        if (!packed) {
            merge_all(ops, c.kv, evicted, into, out, N - KEPT);
        }
        ns[2][i] = sl_now_ns() - at;
        for (uint32_t j = 0; j + 1 < N; j++) {
            into[j] = j < N / 2 ? j : j + 1;
        }
        at = sl_now_ns();
        if (!packed) {
            gather_slots(ops, c.kv, into, N - 1);
        }
        ns[3][i] = sl_now_ns() - at, at = sl_now_ns();
        ops->write_state(NULL, &heads, 0, packed ? N % 64 : N, weights);
        ns[4][i] = sl_now_ns() - at;
    }
    print_time(name, "value_change", format, N, d, ns[0], 5.0 * N * d);
    print_time(name, "nearest 6000", format, KEPT, d, ns[1], 2.0 * (N - KEPT) * KEPT * d);
    if (!packed) {
        print_time(name, "merge 6000", format, KEPT, d, ns[2], 6.0 * (N - KEPT) * d);
        print_time(name, "gather but one", format, N, d, ns[3], 0);
    }
    print_time(name, "write_state", format, N, d, ns[4], 0);
    free(kept);
    free(evicted);
    free(into);
    free(weights);
    free(out);
    cache_free(&c);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        for (const char *const *name = tested(); *name != NULL; name++) {
            time_tier(*name, SL_KV_F16, 64);
            time_tier(*name, SL_KV_F16, 128);
            time_tier(*name, SL_KV_INT4, 128);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_equals_brute_force),
        cmocka_unit_test(test_nearest_does_not_depend_on_who_else_is_evicted),
        cmocka_unit_test(test_nearest_takes_the_first_of_equals_and_zero_for_zero_keys),
        cmocka_unit_test(test_merge_gives_the_golden_vector),
        cmocka_unit_test(test_merge_equals_its_formula),
        cmocka_unit_test(test_merge_with_equal_vectors_changes_nothing),
        cmocka_unit_test(test_merge_weights_sum_to_one),
        cmocka_unit_test(test_merge_of_heads_by_their_common_threshold),
        cmocka_unit_test(test_gather_without_one_slot_equals_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
