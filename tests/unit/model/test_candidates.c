// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a token that is chosen from the best of a row is the one that is chosen from the row, whatever the row and the sampling; and
 *          what must be decided by candidates, is.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/sampling/sampler.h"
#include "engine/tensor/cpu/tiers.h"

enum { N = 3000, MAX_HISTORY = 400 };

static uint64_t next_random(uint64_t *seed) {
    return sl_mix(*seed += SL_GOLDEN);
}

static float unit(uint64_t *seed) { // [0, 1)
    return (float)(next_random(seed) >> 40) * 0x1p-24f;
}

// --- what is given -----------------------------------------------------------------------------------------------------

enum kind { SPREAD, PEAKED, TIES, SPECIAL, FLAT, FEW, N_KINDS };

static float logit_of(enum kind kind, uint64_t *seed) {
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f, 2.0f, -3.0f, 2.0f};
    switch (kind) {
    case SPREAD:
        return 8 * unit(seed) - 4;
    case PEAKED: // as of a model: exponentially many of ever less
        return -2 + 2.5f * -logf(unit(seed) + 1e-9f);
    case TIES:
        return (float)(next_random(seed) % 7) - 3;
    case SPECIAL:
        return next_random(seed) % 3 == 0 ? special[next_random(seed) % 10] : 6 * unit(seed) - 3;
    case FLAT:
        return 0.5f;
    default: // hardly any is finite
        return next_random(seed) % 200 == 0 ? 3 * unit(seed) : -INFINITY;
    }
}

#define ONE_OF(seed, ...)                                                                                              \
    ((const double[]){__VA_ARGS__})[next_random(seed) % (sizeof((const double[]){__VA_ARGS__}) / sizeof(double))]

static struct sl_sampling sampling_of(uint64_t *seed) {
    return (struct sl_sampling){
        .temperature = (float)ONE_OF(seed, 0, 1e-30, 0.1, 0.7, 1, 1, 1.5, 5, 100),
        .top_k = (int)ONE_OF(seed, 0, 0, 0, 1, 2, 40, 900, 1024, 1025, 5000),
        .top_p = (float)ONE_OF(seed, 1e-6, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.99999, 1),
        .repetition_penalty = (float)ONE_OF(seed, 1, 1, 1.0001, 1.1, 1.3, 2, 10, 0.5),
        .frequency_penalty = ONE_OF(seed, 0, 0, 0.3f, 1.5f, -0.5f),
        .presence_penalty = ONE_OF(seed, 0, 0, 0.7f),
        .min_p = ONE_OF(seed, 0, 0, 0.02f, 0.5f, 1),
        .seed = next_random(seed),
        .n_logprobs = (int)ONE_OF(seed, 0, 1, 5, 20),
    };
}

// Half of them any ids, half those of high logits.
static int64_t history_of(const float *logits, int32_t *history, uint64_t *seed) {
    int64_t n = (int64_t)(next_random(seed) % 4) * (int64_t)(next_random(seed) % 100);
    for (int64_t i = 0; i < n; i++) {
        history[i] = (int32_t)(next_random(seed) % N);
        for (int tries = 0; i % 2 == 0 && tries < 20; tries++) {
            int32_t other = (int32_t)(next_random(seed) % N);
            history[i] = logits[other] > logits[history[i]] ? other : history[i];
        }
    }
    return n;
}

// --- what must come of it ----------------------------------------------------------------------------------------------

// Log probabilities are floats: of sums in another order the last bit may differ.
static void assert_close(float got, float want) {
    if (!(fabsf(got - want) <= 2.4e-7f * (1 + fabsf(want)))) {
        fail_msg("a log probability is %.9g, not %.9g", (double)got, (double)want);
    }
}

static void assert_same(const struct sl_token *got, const struct sl_token *want) {
    assert_int_equal(got->id, want->id);
    assert_close(got->logprob, want->logprob);
    assert_int_equal(got->n_alternatives, want->n_alternatives);
    for (int i = 0; i < want->n_alternatives; i++) {
        assert_int_equal(got->alternatives[i].id, want->alternatives[i].id);
        assert_close(got->alternatives[i].logprob, want->alternatives[i].logprob);
    }
}

static const struct sl_ops *reference(void) {
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select("reference", &ops, NULL), SL_OK);
    return ops;
}

static struct sl_sampler *sampler_of(int32_t n_vocab) {
    struct sl_sampler *sampler = NULL;
    assert_int_equal(sl_sampler_create(n_vocab, &sampler, NULL), SL_OK);
    return sampler;
}

static void test_candidates_choose_as_the_row_does(void **state) {
    (void)state;
    enum { TRIALS = 6000 };
    float logits[N];
    int32_t history[MAX_HISTORY];
    struct sl_sampler *sampler = sampler_of(N);
    struct sl_picked *picked = malloc(sizeof *picked);
    assert_non_null(picked);
    int n_chosen = 0, n_again = 0, n_fewer = 0;
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        uint64_t seed = trial;
        for (int i = 0; i < N; i++) {
            logits[i] = logit_of((enum kind)(trial % N_KINDS), &seed);
        }
        struct sl_sampling sampling = sampling_of(&seed);
        int64_t n_history = history_of(logits, history, &seed);
        struct sl_pick asked;
        struct sl_token got, want;
        if (!sl_sampler_asks(&sampling, n_history, &asked)) {
            continue;
        }
        bool fewer = trial % 3 == 0; // than it needs: what it says of these is right, too
        asked.most = fewer ? 1 + (int32_t)(next_random(&seed) % (uint64_t)asked.most) : asked.most;
        reference()->pick(NULL, logits, N, &asked, 1, picked);
        double other_order = 1 + 1e-12 * (2 * (double)unit(&seed) - 1);
        picked->lse *= other_order;
        picked->rest *= other_order;
        enum sl_status status =
            sl_sampler_next_of(sampler, &sampling, picked, history, n_history, (int64_t)trial, &got);
        n_again += status == SL_AGAIN;
        if (status != SL_AGAIN) {
            assert_int_equal(sl_sampler_next(sampler, &sampling, logits, history, n_history, (int64_t)trial, &want),
                             status);
            n_chosen++;
            n_fewer += fewer;
            assert_same(&got, &want);
        }
    }
    assert_true(n_chosen > TRIALS / 3 && n_again > TRIALS / 20 && n_fewer > TRIALS / 20);
    free(picked);
    sl_sampler_destroy(&sampler);
}

// Status of a choice from what `sampling` asks for.
static enum sl_status choose(const struct sl_sampling *sampling, const float *logits, const int32_t *history,
                             int64_t n_history) {
    struct sl_sampler *sampler = sampler_of(N);
    struct sl_picked *picked = malloc(sizeof *picked);
    struct sl_pick asked;
    struct sl_token token;
    assert_non_null(picked);
    assert_true(sl_sampler_asks(sampling, n_history, &asked));
    reference()->pick(NULL, logits, N, &asked, 1, picked);
    enum sl_status status = sl_sampler_next_of(sampler, sampling, picked, history, n_history, 3, &token);
    free(picked);
    sl_sampler_destroy(&sampler);
    return status;
}

static void test_candidates_decide_where_they_can(void **state) {
    (void)state;
    float logits[N];
    int32_t history[MAX_HISTORY];
    for (uint64_t seed = 1; seed < 40; seed++) {
        uint64_t random = seed;
        for (int i = 0; i < N; i++) {
            logits[i] = logit_of((enum kind)(seed % SPECIAL), &random);
        }
        for (int i = 0; i < MAX_HISTORY; i++) {
            history[i] = (int32_t)(next_random(&random) % N);
        }
        struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1.5f, .n_logprobs = 20};
        struct sl_sampling top_k = {.temperature = 1, .top_k = 600, .top_p = 0.7f, .repetition_penalty = 1.1f};
        struct sl_sampling widest = {.temperature = 2, .top_k = SL_MAX_CANDIDATES, .top_p = 1, .repetition_penalty = 1};
        assert_int_equal(choose(&greedy, logits, history, MAX_HISTORY), SL_OK);
        assert_int_equal(choose(&top_k, logits, history, MAX_HISTORY), SL_OK);
        assert_int_equal(choose(&widest, logits, NULL, 0), SL_OK);
        struct sl_sampling top_p = {.temperature = 0.6f, .top_p = 0.8f, .repetition_penalty = 1};
        if (seed % SPECIAL == PEAKED) { // of ties, and where nothing stands out, the nucleus is too large
            assert_int_equal(choose(&top_p, logits, NULL, 0), SL_OK);
        }
        top_p.temperature = 100;
        assert_int_equal(choose(&top_p, logits, NULL, 0), SL_AGAIN);
    }
}

static void test_candidates_are_not_asked_where_they_cannot(void **state) {
    (void)state;
    struct sl_pick asked;
    struct sl_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}, other = plain;
    assert_false(sl_sampler_asks(&plain, 0, &asked));
    other.top_k = SL_MAX_CANDIDATES + 1;
    assert_false(sl_sampler_asks(&other, 0, &asked));
    other.top_k = 5;
    assert_true(sl_sampler_asks(&other, 100, &asked));
    assert_int_equal(asked.most, 5);
    assert_true(asked.temperature == 0);
    other.repetition_penalty = 1.5f;
    assert_true(sl_sampler_asks(&other, 100, &asked));
    assert_int_equal(asked.most, 105);
    assert_true(sl_sampler_asks(&other, INT64_MAX / 2, &asked));
    assert_int_equal(asked.most, SL_MAX_CANDIDATES);
    other.repetition_penalty = 1;
    other.presence_penalty = 0.5f;
    assert_true(sl_sampler_asks(&other, 100, &asked));
    assert_int_equal(asked.most, 105);
    other.frequency_penalty = -0.1f;
    assert_false(sl_sampler_asks(&other, 100, &asked));
    other.frequency_penalty = 0;
    other.repetition_penalty = 0.99f;
    assert_false(sl_sampler_asks(&other, 100, &asked));
    other = plain;
    other.temperature = 0;
    assert_true(sl_sampler_asks(&other, 100, &asked));
    assert_int_equal(asked.most, 1);
    other.n_logprobs = 20;
    assert_true(sl_sampler_asks(&other, 100, &asked));
    assert_int_equal(asked.most, 20);
    other = plain;
    other.top_p = 0.5f;
    other.temperature = 0.7f;
    assert_true(sl_sampler_asks(&other, 0, &asked));
    assert_int_equal(asked.most, SL_MAX_CANDIDATES);
    assert_true(asked.temperature == 0.7f);
}

static void test_candidates_fail_as_the_row_does(void **state) {
    (void)state;
    float none[N], some[N] = {0};
    const int32_t outside[] = {1, N};
    for (int i = 0; i < N; i++) {
        none[i] = i % 2 ? NAN : INFINITY;
    }
    struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1}, penalized = greedy, bad = greedy;
    penalized.repetition_penalty = 2;
    assert_int_equal(choose(&greedy, none, NULL, 0), SL_ERR_INTERNAL);
    assert_int_equal(choose(&penalized, some, outside, 2), SL_ERR_RANGE);
    bad.top_p = NAN;
    assert_int_equal(choose(&bad, some, NULL, 0), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_choose_as_the_row_does),
        cmocka_unit_test(test_candidates_decide_where_they_can),
        cmocka_unit_test(test_candidates_are_not_asked_where_they_cannot),
        cmocka_unit_test(test_candidates_fail_as_the_row_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
