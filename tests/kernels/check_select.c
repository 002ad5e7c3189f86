// SPDX-License-Identifier: Apache-2.0
// Purpose: holds select of every tier to sorting by the total order of engine/tensor/ops.h, and times it (--time [TIER]).
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

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
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f, 1.0f, -1.0f};
    for (const char *const *name = tested(); *name != NULL; name++) {
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
            tier(*name)->host.select(scores, n, b, keep);
            assert_memory_equal(keep, order, n_keep * sizeof *keep);
            assert_int_equal(keep[n_keep], 0xdeadbeef);
        }
    }
}

// Shapes of long lists: a tier may predict them wrongly, but the result must be right.
enum shape { RANDOM, RISING, FALLING, EQUAL, FEW_VALUES, MOSTLY_NAN, MOSTLY_LEAST, PERIODIC, BURST, N_SHAPES };

static float score_of(enum shape shape, uint32_t j, uint32_t n, uint64_t *seed) {
    switch (shape) {
    case RANDOM:
        return random_float(seed);
    case RISING:
        return (float)j;
    case FALLING:
        return -(float)j;
    case EQUAL:
        return 1.5f;
    case FEW_VALUES:
        return (float)(next_random(seed) % 3);
    case MOSTLY_NAN:
        return next_random(seed) % 100 == 0 ? random_float(seed) : NAN;
    case MOSTLY_LEAST:
        return next_random(seed) % 100 == 0 ? random_float(seed) : next_random(seed) % 2 == 0 ? -INFINITY : -0.0f;
    case PERIODIC:
        return (float)(j % 64) + 0.01f * random_float(seed);
    default:
        return random_float(seed) + (j > n / 2 && j < n / 2 + n / 32 ? 10.0f : 0.0f);
    }
}

static void check_long(const struct sl_ops *ops, const float *scores, uint32_t n, uint32_t b, const uint32_t *order,
                       uint32_t *want, uint32_t *keep) {
    memcpy(want, order, b * sizeof *want);
    qsort(want, b, sizeof *want, by_index);
    keep[b] = 0xdeadbeef;
    ops->host.select(scores, n, b, keep);
    assert_memory_equal(keep, want, b * sizeof *keep);
    assert_int_equal(keep[b], 0xdeadbeef);
}

static void test_select_of_many_equals_sorting(void **state) {
    PROCESSORS_ONLY();
    (void)state;
    static const uint32_t counts[] = {8191, 8192, 20000, 70001, 131072},
                          wanted[] = {0, 1, 5, 128, 1000, 4096, 8192, 9000};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint32_t n = counts[i], *order = take(n * sizeof *order), *want = take(n * sizeof *want);
        uint32_t *keep = take((n + 1) * sizeof *keep);
        float *scores = take(n * sizeof *scores);
        for (int shape = 0; shape < N_SHAPES; shape++) {
            uint64_t seed = 17 + (uint64_t)shape;
            for (uint32_t j = 0; j < n; j++) {
                scores[j] = score_of((enum shape)shape, j, n, &seed);
                order[j] = j;
            }
            sort_scores = scores;
            qsort(order, n, sizeof *order, by_score);
            for (const char *const *name = tested(); *name != NULL; name++) {
                for (size_t w = 0; w < sizeof wanted / sizeof wanted[0] && wanted[w] <= n; w++) {
                    check_long(tier(*name), scores, n, wanted[w], order, want, keep);
                }
            }
        }
        free(order);
        free(want);
        free(keep);
        free(scores);
    }
}

// --- heads and ties --------------------------------------------------------------------------------------------------

static const float *sort_ties;
static bool sort_newest;

// Score, then ties, then slot; NaN lowest in both.
static int by_tie(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const float *of[] = {sort_scores, sort_ties};
    for (int k = 0; k < 2; k++) {
        float x = of[k] != NULL ? of[k][i] : 0, y = of[k] != NULL ? of[k][j] : 0;
        if (isnan(x) != isnan(y)) {
            return isnan(x) ? 1 : -1;
        }
        if (!isnan(x) && x != y) {
            return x < y ? 1 : -1;
        }
    }
    return sort_newest ? by_index(b, a) : by_index(a, b);
}

static void test_select_of_heads_settles_ties(void **state) {
    (void)state;
    enum { HEADS = 3, STRIDE = 5008 };
    struct sl_stream *stream;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 9;
        for (int trial = 0; trial < (is_emulated(*name) ? 40 : 600); trial++) {
            static float scores[HEADS][STRIDE], ties[HEADS][STRIDE];
            static uint32_t keep[HEADS][STRIDE], order[STRIDE];
            uint32_t kept[HEADS], most = trial % 100 == 0 ? 5000 : 200;
            struct sl_kv kv[HEADS];
            int rule = trial % 3; // none, newest, ties
            for (int h = 0; h < HEADS; h++) {
                uint32_t n = (uint32_t)(next_random(&seed) % most);
                kv[h] = (struct sl_kv){.n_slots = n};
                kept[h] = (uint32_t)(next_random(&seed) % (n + 2));
                for (uint32_t j = 0; j < n; j++) {
                    bool odd = next_random(&seed) % 20 == 0;
                    scores[h][j] = odd ? (float[]){NAN, INFINITY, -INFINITY, -0.0f}[j % 4]
                                       : (float)(next_random(&seed) % (trial % 2 ? 3 : 50));
                    ties[h][j] = odd ? NAN : (float)(next_random(&seed) % 7) - 3;
                }
            }
            const struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
            const struct sl_vectors none = {NULL, 0}, of_ties = {ties[0], STRIDE};
            const struct sl_counts counts =
                trial % 2 ? (struct sl_counts){.host = kept} : (struct sl_counts){NULL, kept};
            tier(*name)->select(trial % 4 < 2 ? stream : NULL, &heads, (struct sl_vectors){scores[0], STRIDE},
                                rule == 2 ? of_ties : none, rule == 1, counts, (struct sl_lists){keep[0], STRIDE});
            for (int h = 0; h < HEADS; h++) {
                uint32_t n = kv[h].n_slots, b = kept[h] < n ? kept[h] : n;
                for (uint32_t j = 0; j < n; j++) {
                    order[j] = j;
                }
                sort_scores = scores[h], sort_ties = rule == 2 ? ties[h] : NULL, sort_newest = rule == 1;
                qsort(order, n, sizeof *order, by_tie);
                qsort(order, b, sizeof *order, by_index);
                assert_memory_equal(keep[h], order, b * sizeof *order);
            }
        }
    }
    test_stream_close(&stream);
}

// --- time ------------------------------------------------------------------------------------------------------------

// The least of some, beside a scan of 8 channels of as many slots in f16, and of what 8 signs a slot can amount to.
static void time_tier(const char *name) {
    enum { N = 131072, D = 8, REPEATS = 21 };
    static const uint32_t wanted[] = {128, 1000};
    static const char *const shapes[] = {"random", "rising", "falling", "equal", "few values"};
    struct sl_key_index_layout layout;
    assert_int_equal(sl_key_index_layout_init(&layout, SL_KV_F16, D, N), SL_OK);
    char *index = take(layout.bytes);
    float *q = random_floats(D, 1), *scores = take(N * sizeof *scores), *out = take(N * sizeof *out);
    uint32_t *keep = take(N * sizeof *keep);
    memset(index, 0x11, layout.bytes);
    for (int shape = RANDOM; shape <= FEW_VALUES; shape++) {
        uint64_t seed = 3;
        for (uint32_t j = 0; j < N; j++) {
            scores[j] = score_of((enum shape)shape, j, N, &seed);
        }
        int64_t best[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
        for (int r = 0; r < REPEATS; r++) {
            int64_t at = sl_now_ns(), ns[3];
            tier(name)->host.scan(&(struct sl_scan_piece){layout, index, 0, N, 0}, q,
                                  (const int[]){0, 1, 2, 3, 4, 5, 6, 7}, D, out);
            ns[2] = sl_now_ns() - at;
            for (int w = 0; w < 2; w++) {
                at = sl_now_ns();
                tier(name)->host.select(scores, N, wanted[w], keep);
                ns[w] = sl_now_ns() - at;
            }
            for (int i = 0; i < 3; i++) {
                best[i] = ns[i] < best[i] ? ns[i] : best[i];
            }
        }
        printf("%-10s select of 128k, %-10s: %u: %7.1f us, %u: %7.1f us; a scan of 8 channels in f16: %.1f us\n", name,
               shapes[shape], wanted[0], (double)best[0] * 1e-3, wanted[1], (double)best[1] * 1e-3,
               (double)best[2] * 1e-3);
    }
    free(index);
    free(q);
    free(scores);
    free(out);
    free(keep);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        for (const char *const *name = tested(); *name != NULL; name++) {
            if (argc < 3 || strcmp(*name, argv[2]) == 0) {
                time_tier(*name);
            }
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select_equals_sorting),
        cmocka_unit_test(test_select_of_many_equals_sorting),
        cmocka_unit_test(test_select_of_heads_settles_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
