// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the sampler against its own formulas: limits that must equal greedy, distributions counted over fixed seeds,
 *          and parameters that must be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampling/sampler.h"

static const struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
static const struct sl_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};

static struct sl_sampler *sampler_of(int32_t n_vocab) {
    struct sl_sampler *sampler = NULL;
    assert_int_equal(sl_sampler_create(n_vocab, &sampler, NULL), SL_OK);
    return sampler;
}

static struct sl_token next(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                            int64_t step) {
    struct sl_token token;
    assert_int_equal(sl_sampler_next(sampler, sampling, logits, NULL, 0, step, &token), SL_OK);
    return token;
}

// Logits in [-scale, scale), the same in every run.
static void fill(float *logits, int32_t n, uint32_t seed, float scale) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * scale;
    }
}

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

// --- parameters ------------------------------------------------------------------------------------------------------
static void test_sampling_bounds(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(sl_sampling_check(&greedy, &err), SL_OK);
    assert_int_equal(sl_sampling_check(&plain, &err), SL_OK);
#define CHECK(field, value, expected)                                                                                  \
    do {                                                                                                               \
        struct sl_sampling changed = plain;                                                                            \
        changed.field = (value);                                                                                       \
        err.text[0] = '\0';                                                                                            \
        assert_int_equal(sl_sampling_check(&changed, &err), expected);                                                 \
        assert_true((expected) == SL_OK || strstr(err.text, #field));                                                  \
    } while (0)
    CHECK(temperature, 0, SL_OK);
    CHECK(temperature, FLT_MAX, SL_OK);
    CHECK(temperature, -0.1f, SL_ERR_INVALID);
    CHECK(temperature, NAN, SL_ERR_INVALID);
    CHECK(temperature, INFINITY, SL_ERR_INVALID);
    CHECK(top_k, 1, SL_OK);
    CHECK(top_k, INT32_MAX, SL_OK);
    CHECK(top_k, -1, SL_ERR_INVALID);
    CHECK(top_p, 1e-6f, SL_OK);
    CHECK(top_p, 0, SL_ERR_INVALID);
    CHECK(top_p, -0.5f, SL_ERR_INVALID);
    CHECK(top_p, 1.0001f, SL_ERR_INVALID);
    CHECK(top_p, NAN, SL_ERR_INVALID);
    CHECK(min_p, 1, SL_OK);
    CHECK(min_p, -0.1f, SL_ERR_INVALID);
    CHECK(min_p, 1.1f, SL_ERR_INVALID);
    CHECK(min_p, NAN, SL_ERR_INVALID);
    CHECK(frequency_penalty, -2, SL_OK);
    CHECK(frequency_penalty, 2.1f, SL_ERR_INVALID);
    CHECK(presence_penalty, 2, SL_OK);
    CHECK(presence_penalty, NAN, SL_ERR_INVALID);
    CHECK(repetition_penalty, 1.3f, SL_OK);
    CHECK(repetition_penalty, 0, SL_ERR_INVALID);
    CHECK(repetition_penalty, -1, SL_ERR_INVALID);
    CHECK(repetition_penalty, NAN, SL_ERR_INVALID);
    CHECK(repetition_penalty, INFINITY, SL_ERR_INVALID);
    CHECK(n_logprobs, SL_MAX_LOGPROBS, SL_OK);
    CHECK(n_logprobs, -1, SL_ERR_INVALID);
    CHECK(n_logprobs, SL_MAX_LOGPROBS + 1, SL_ERR_INVALID);
#undef CHECK
}

static void test_sampler_refuses_bad_arguments(void **state) {
    (void)state;
    struct sl_sampler *sampler = NULL;
    struct sl_token token = {.id = -7};
    float logits[4] = {0, 1, 2, 3};
    assert_int_equal(sl_sampler_create(0, &sampler, NULL), SL_ERR_INVALID);
    assert_null(sampler);
    sampler = sampler_of(4);
    struct sl_sampling bad = plain;
    bad.top_p = NAN;
    assert_int_equal(sl_sampler_next(sampler, &bad, logits, NULL, 0, 0, &token), SL_ERR_INVALID);
    struct sl_sampling penalized = plain;
    penalized.repetition_penalty = 2;
    const int32_t outside[] = {1, 4}, negative[] = {-1};
    assert_int_equal(sl_sampler_next(sampler, &penalized, logits, outside, 2, 0, &token), SL_ERR_RANGE);
    assert_int_equal(sl_sampler_next(sampler, &penalized, logits, negative, 1, 0, &token), SL_ERR_RANGE);
    assert_int_equal(token.id, -7);
    sl_sampler_destroy(&sampler);
    assert_null(sampler);
    sl_sampler_destroy(&sampler);
}

// --- greedy and what must equal it -----------------------------------------------------------------------------------
static void test_sampler_greedy_takes_lowest_id_of_ties(void **state) {
    (void)state;
    struct sl_sampler *sampler = sampler_of(5);
    assert_int_equal(next(sampler, &greedy, (float[]){1, 3, 2, 3, 3}, 0).id, 1);
    assert_int_equal(next(sampler, &greedy, (float[]){0, 0, 0, 0, 0}, 0).id, 0);
    assert_int_equal(next(sampler, &greedy, (float[]){-5, -4, -3, -2, -1}, 9).id, 4);
    sl_sampler_destroy(&sampler);
}

static void test_sampler_narrowest_choice_equals_greedy(void **state) {
    (void)state;
    enum { N = 3000 };
    static float logits[N];
    struct sl_sampler *sampler = sampler_of(N);
    for (uint32_t seed = 0; seed < 50; seed++) {
        struct sl_sampling top_k = plain, top_p = plain, cold = plain, both = plain;
        top_k.top_k = 1;
        top_p.top_p = 1e-6f;
        cold.temperature = 1e-30f;
        both.top_k = 40;
        both.top_p = 1e-6f;
        fill(logits, N, seed, 4);
        if (seed % 2) {
            logits[argmax(logits, N) / 2] = logits[argmax(logits, N)]; // a tie
        }
        int32_t best = next(sampler, &greedy, logits, 0).id;
        assert_int_equal(best, argmax(logits, N));
        assert_int_equal(next(sampler, &top_k, logits, seed).id, best);
        assert_int_equal(next(sampler, &top_p, logits, seed).id, best);
        assert_int_equal(next(sampler, &both, logits, seed).id, best);
        if (seed % 2 == 0) { // cold sampling still draws between equals
            assert_int_equal(next(sampler, &cold, logits, seed).id, best);
        }
    }
    sl_sampler_destroy(&sampler);
}

// --- randomness ------------------------------------------------------------------------------------------------------
static void test_sampler_is_a_function_of_seed_and_step(void **state) {
    (void)state;
    enum { N = 500, STEPS = 200 };
    float logits[N];
    int32_t first[STEPS];
    int n_same_seed = 0, n_same_step = 0;
    struct sl_sampler *one = sampler_of(N), *other = sampler_of(N);
    struct sl_sampling reseeded = plain;
    reseeded.seed++;
    fill(logits, N, 3, 1);
    for (int64_t step = 0; step < STEPS; step++) {
        first[step] = next(one, &plain, logits, step).id;
    }
    for (int64_t step = STEPS - 1; step >= 0; step--) { // another sampler, in another order
        assert_int_equal(next(other, &plain, logits, step).id, first[step]);
        n_same_seed += next(other, &reseeded, logits, step).id == first[step];
        n_same_step += step > 0 && first[step] == first[step - 1];
    }
    assert_true(n_same_seed < 10); // about 200/500 are expected by chance
    assert_true(n_same_step < 10);
    sl_sampler_destroy(&one);
    sl_sampler_destroy(&other);
}

// Pearson's statistic of n_draws draws against probabilities; ids of probability 0 must never be drawn.
static double chi_square(const struct sl_sampling *sampling, const float *logits, const double *probabilities,
                         int32_t n_vocab, int n_draws) {
    struct sl_sampler *sampler = sampler_of(n_vocab);
    int *counts = calloc((size_t)n_vocab, sizeof(*counts));
    double statistic = 0;
    assert_non_null(counts);
    for (int step = 0; step < n_draws; step++) {
        counts[next(sampler, sampling, logits, step).id]++;
    }
    for (int32_t i = 0; i < n_vocab; i++) {
        double expected = probabilities[i] * n_draws;
        if (probabilities[i] > 0) {
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
        } else {
            assert_int_equal(counts[i], 0);
        }
    }
    free(counts);
    sl_sampler_destroy(&sampler);
    return statistic;
}

static void test_sampler_draws_the_distribution(void **state) {
    (void)state;
    enum { DRAWS = 40000 };
    // exp(logit): 1 2 4 8 16 (sum 31), in an order that is not sorted
    const float logits[5] = {logf(4), logf(1), logf(16), logf(2), logf(8)};
    const struct {
        float temperature;
        int top_k;
        float top_p;
        double weights[5];
    } cases[] = {
        {1, 0, 1, {4, 1, 16, 2, 8}},       {1, 9, 1, {4, 1, 16, 2, 8}},
        {0.5f, 0, 1, {16, 1, 256, 4, 64}}, {2, 0, 1, {2, 1, 4, 1.41421356, 2.82842712}},
        {1, 3, 1, {4, 0, 16, 0, 8}},       {1, 0, 0.6f, {0, 0, 16, 0, 8}}, // 16/31 = 0.516, with 8 it is 0.774
        {1, 0, 0.5f, {0, 0, 16, 0, 0}},                                    // 0.516 is enough
        {1, 0, 0.78f, {4, 0, 16, 0, 8}},                                   // 0.774 is not
        {1, 0, 0.999f, {4, 1, 16, 2, 8}},                                  // 30/31 = 0.968
        {1, 3, 0.55f, {0, 0, 16, 0, 0}}, // of the three that top-k left, 16/28 = 0.571
        {1, 3, 0.6f, {0, 0, 16, 0, 8}},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        double probabilities[5], sum = 0;
        struct sl_sampling sampling = plain;
        sampling.temperature = cases[c].temperature;
        sampling.top_k = cases[c].top_k;
        sampling.top_p = cases[c].top_p;
        sampling.seed = 1000 + c;
        for (int i = 0; i < 5; i++) {
            sum += cases[c].weights[i];
        }
        for (int i = 0; i < 5; i++) {
            probabilities[i] = cases[c].weights[i] / sum;
        }
        double statistic = chi_square(&sampling, logits, probabilities, 5, DRAWS);
        if (statistic > 18.47) { // one in a thousand at four degrees of freedom
            fail_msg("case %zu: chi square is %g", c, statistic);
        }
    }
}

// 250 equal tokens: every bit of the random number counts, and running sums must not favour an end.
static void test_sampler_draws_evenly(void **state) {
    (void)state;
    enum { N = 250, DRAWS = 50000 };
    static float logits[N];
    static double probabilities[N];
    for (int i = 0; i < N; i++) {
        logits[i] = -3;
        probabilities[i] = 1.0 / N;
    }
    assert_true(chi_square(&plain, logits, probabilities, N, DRAWS) < 321.1); // one in a thousand at 249 degrees
}

// The nucleus, found by full sort, is what top-p may draw from, and top-p draws from all of it.
static int by_logit(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left < right) - (left > right);
}

static void test_sampler_top_p_keeps_the_smallest_nucleus(void **state) {
    (void)state;
    enum { N = 200 };
    float logits[N], sorted[N];
    struct sl_sampler *sampler = sampler_of(N);
    for (uint32_t seed = 1; seed <= 19; seed++) {
        struct sl_sampling sampling = plain;
        sampling.top_p = 0.05f * (float)(seed % 19 + 1);
        sampling.seed = seed;
        fill(logits, N, seed, 5);
        memcpy(sorted, logits, sizeof(sorted));
        qsort(sorted, N, sizeof(*sorted), by_logit);
        double sum = 0, reached = 0;
        for (int i = 0; i < N; i++) {
            sum += exp(sorted[i]);
        }
        int n_nucleus = 0;
        while (reached < sampling.top_p * sum) {
            reached += exp(sorted[n_nucleus++]);
        }
        float lowest = INFINITY;
        for (int64_t step = 0; step < 20 * N; step++) {
            float drawn = logits[next(sampler, &sampling, logits, step).id];
            lowest = drawn < lowest ? drawn : lowest;
        }
        assert_true(lowest >= sorted[n_nucleus - 1]);
        assert_true(lowest <= sorted[n_nucleus * 9 / 10]); // and it does reach down to the nucleus' tail
    }
    sl_sampler_destroy(&sampler);
}

// --- repetition penalty ----------------------------------------------------------------------------------------------
static void test_sampler_penalizes_each_id_once(void **state) {
    (void)state;
    struct sl_sampler *sampler = sampler_of(4);
    struct sl_sampling sampling = greedy;
    struct sl_token token;
    const float logits[4] = {4, 3, -1, -1.5f};
    const int32_t repeated[] = {0, 0, 0, 0};
    sampling.repetition_penalty = 1.25f; // once: 4 / 1.25 = 3.2 > 3; twice would be 2.56
    assert_int_equal(sl_sampler_next(sampler, &sampling, logits, repeated, 4, 0, &token), SL_OK);
    assert_int_equal(token.id, 0);
    sampling.repetition_penalty = 1.5f; // 2.67 < 3
    assert_int_equal(sl_sampler_next(sampler, &sampling, logits, repeated, 1, 0, &token), SL_OK);
    assert_int_equal(token.id, 1);
    assert_int_equal(next(sampler, &sampling, logits, 0).id, 0); // marks of the call before do not linger
    const float negative[4] = {-1, -1.4f, -9, -9};
    assert_int_equal(sl_sampler_next(sampler, &sampling, negative, repeated, 1, 0, &token), SL_OK);
    assert_int_equal(token.id, 1); // -1 * 1.5 is below -1.4
    sl_sampler_destroy(&sampler);
}

// Frequency and presence count in the output alone, the last `step` tokens of the history.
static void test_sampler_penalizes_what_the_output_has(void **state) {
    (void)state;
    const float logits[4] = {3, 2.5f, 2, 0};
    const int32_t history[] = {0, 0, 0, 0, 1, 0}; // the prompt has id 0 three times;
    static const struct {
        float frequency, presence;
        int64_t step;
        int32_t id;
    } rows[] = {
        {0, 0, 3, 0},       {2, 0, 0, 0}, // nothing is written
        {0, 0.6f, 1, 1},                  // id 0 falls to 2.4
        {0, 0.6f, 2, 0},                  // and id 1 to 1.9
        {0, 0.4f, 3, 0},                  // once, although id 0 is there twice
        {0.4f, 0, 3, 0},                  // 2.2 and 2.1
        {0.6f, 0, 3, 2},                  // 1.8 and 1.9
        {0.2f, 0.8f, 3, 2},               // 1.8 and 1.5
        {-1, 0, 3, 0},      {0, -2, 6, 0},
    };
    struct sl_sampler *sampler = sampler_of(4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_sampling sampling = greedy;
        struct sl_token token;
        sampling.frequency_penalty = rows[i].frequency;
        sampling.presence_penalty = rows[i].presence;
        assert_int_equal(sl_sampler_next(sampler, &sampling, logits, history, 6, rows[i].step, &token), SL_OK);
        if (token.id != rows[i].id) {
            fail_msg("row %zu: token %d", i, token.id);
        }
    }
    sl_sampler_destroy(&sampler);
}

static void test_sampler_min_p_drops_unlikely_tokens(void **state) {
    (void)state;
    const float logits[4] = {0, logf(0.5f), logf(0.24f), logf(0.1f)};
    static const struct {
        float min_p, temperature;
        int n_kinds;
    } rows[] = {{0, 1, 4}, {0.09f, 1, 4}, {0.2f, 1, 3}, {0.3f, 1, 2}, {0.6f, 1, 1}, {1, 1, 1}, {0.3f, 3, 4}};
    struct sl_sampler *sampler = sampler_of(4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_sampling sampling = plain;
        bool seen[4] = {false};
        sampling.min_p = rows[i].min_p;
        sampling.temperature = rows[i].temperature;
        for (int64_t step = 0; step < 400; step++) {
            seen[next(sampler, &sampling, logits, step).id] = true;
        }
        for (int id = 0; id < 4; id++) {
            assert_int_equal(seen[id], id < rows[i].n_kinds);
        }
    }
    sl_sampler_destroy(&sampler);
}

static void test_sampler_logprob_ignores_penalty_and_temperature(void **state) {
    (void)state;
    struct sl_sampler *sampler = sampler_of(4);
    struct sl_sampling sampling = {.temperature = 3, .top_k = 1, .top_p = 0.5f, .repetition_penalty = 10};
    struct sl_token token;
    const float logits[4] = {logf(4), logf(3), logf(2), logf(1)};
    const int32_t history[] = {0};
    assert_int_equal(sl_sampler_next(sampler, &sampling, logits, history, 1, 0, &token), SL_OK);
    assert_int_equal(token.id, 1);
    assert_float_equal(token.logprob, log(0.3), 1e-6);
    sl_sampler_destroy(&sampler);
}

// --- logits that are not numbers -------------------------------------------------------------------------------------
static void test_sampler_takes_non_finite_logits_as_impossible(void **state) {
    (void)state;
    struct sl_sampler *sampler = sampler_of(6);
    struct sl_sampling sampling = plain;
    const float logits[6] = {NAN, 1, INFINITY, 2, -INFINITY, -NAN};
    bool seen[6] = {false};
    sampling.n_logprobs = 6;
    for (int64_t step = 0; step < 200; step++) {
        struct sl_token token = next(sampler, &sampling, logits, step);
        seen[token.id] = true;
        assert_int_equal(token.n_alternatives, 2);
        assert_int_equal(token.alternatives[0].id, 3);
        assert_int_equal(token.alternatives[1].id, 1);
    }
    assert_true(seen[1] && seen[3]);
    assert_false(seen[0] || seen[2] || seen[4] || seen[5]);
    assert_int_equal(next(sampler, &greedy, logits, 0).id, 3);
    const float none[6] = {NAN, NAN, INFINITY, -INFINITY, -INFINITY, NAN};
    struct sl_token token;
    assert_int_equal(sl_sampler_next(sampler, &sampling, none, NULL, 0, 0, &token), SL_ERR_INTERNAL);
    const float extreme[6] = {FLT_MAX, -FLT_MAX, -FLT_MAX, 0, -FLT_MAX, 1};
    token = next(sampler, &sampling, extreme, 0);
    assert_int_equal(token.id, 0);
    assert_float_equal(token.logprob, 0, 0);
    sl_sampler_destroy(&sampler);
}

// --- log probabilities -----------------------------------------------------------------------------------------------
static void test_sampler_alternatives_are_sorted_and_complete(void **state) {
    (void)state;
    enum { N = SL_MAX_LOGPROBS };
    float logits[N];
    struct sl_sampler *sampler = sampler_of(N);
    struct sl_sampling sampling = plain;
    sampling.n_logprobs = N;
    for (uint32_t seed = 0; seed < 100; seed++) {
        fill(logits, N, seed, 6);
        logits[seed % N] = logits[(seed + 7) % N];
        struct sl_token token = next(sampler, &sampling, logits, seed);
        double sum = 0;
        bool seen[N] = {false};
        assert_int_equal(token.n_alternatives, N);
        for (int i = 0; i < N; i++) {
            sum += exp(token.alternatives[i].logprob);
            assert_false(seen[token.alternatives[i].id]);
            seen[token.alternatives[i].id] = true;
            if (token.alternatives[i].id == token.id) {
                assert_true(token.alternatives[i].logprob == token.logprob);
            }
            if (i > 0) {
                assert_true(token.alternatives[i - 1].logprob >= token.alternatives[i].logprob);
            }
            if (i > 0 && logits[token.alternatives[i - 1].id] == logits[token.alternatives[i].id]) {
                assert_true(token.alternatives[i - 1].id < token.alternatives[i].id);
            }
        }
        assert_float_equal(sum, 1, 1e-5);
    }
    sl_sampler_destroy(&sampler);
}

static void test_sampler_alternatives_are_the_most_likely(void **state) {
    (void)state;
    enum { N = 5000 };
    static float logits[N];
    struct sl_sampler *sampler = sampler_of(N);
    struct sl_sampling sampling = plain;
    sampling.n_logprobs = 5;
    fill(logits, N, 11, 1);
    logits[4000] = 9, logits[17] = 8, logits[2500] = 8, logits[0] = 7, logits[4999] = 6;
    const int32_t expected[] = {4000, 17, 2500, 0, 4999};
    struct sl_token token = next(sampler, &sampling, logits, 0);
    assert_int_equal(token.n_alternatives, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(token.alternatives[i].id, expected[i]);
    }
    sampling.n_logprobs = 0;
    assert_int_equal(next(sampler, &sampling, logits, 0).n_alternatives, 0);
    sl_sampler_destroy(&sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling_bounds),
        cmocka_unit_test(test_sampler_refuses_bad_arguments),
        cmocka_unit_test(test_sampler_greedy_takes_lowest_id_of_ties),
        cmocka_unit_test(test_sampler_narrowest_choice_equals_greedy),
        cmocka_unit_test(test_sampler_is_a_function_of_seed_and_step),
        cmocka_unit_test(test_sampler_draws_the_distribution),
        cmocka_unit_test(test_sampler_draws_evenly),
        cmocka_unit_test(test_sampler_top_p_keeps_the_smallest_nucleus),
        cmocka_unit_test(test_sampler_penalizes_each_id_once),
        cmocka_unit_test(test_sampler_penalizes_what_the_output_has),
        cmocka_unit_test(test_sampler_min_p_drops_unlikely_tokens),
        cmocka_unit_test(test_sampler_logprob_ignores_penalty_and_temperature),
        cmocka_unit_test(test_sampler_takes_non_finite_logits_as_impossible),
        cmocka_unit_test(test_sampler_alternatives_are_sorted_and_complete),
        cmocka_unit_test(test_sampler_alternatives_are_the_most_likely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
