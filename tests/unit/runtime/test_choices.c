// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tokens that a pass chooses on a device with memory of its own are those of the rows of logits, of which few come to the
 *          host; more of them than are projected at once, and of every way to choose.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/runtime/runtime.h"

enum { ROWS = 67 };

// Expected: 1 by candidates, 0 by the row, -1 whatever the logits say.
static const struct {
    struct sl_sampling sampling;
    int by_candidates;
} ways[] = {
    {{.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = 20}, 1},
    {{.temperature = 0, .top_p = 1, .repetition_penalty = 1.5f}, 1},
    {{.temperature = 1, .top_k = 30, .top_p = 0.9f, .repetition_penalty = 1.2f}, 1},
    {{.temperature = 1, .top_p = 1, .repetition_penalty = 1}, 0},
    {{.temperature = 0.8f, .top_p = 0.5f, .repetition_penalty = 1}, -1},
    {{.temperature = 1, .top_k = 30, .top_p = 1, .repetition_penalty = 0.8f}, 0},
    {{.temperature = 50, .top_p = 0.95f, .repetition_penalty = 1}, 0}, // asked for, but more than candidates reach it
};
enum { WAYS = sizeof ways / sizeof ways[0] };

// One pass of a token each, in sessions of their own.
static void pass(struct sl_runtime *runtime, struct sl_choice *choices, float *logits, int every) {
    static int32_t tokens[ROWS];
    struct sl_input inputs[ROWS] = {{0}};
    struct sl_kv_geometry geometry = sl_model_geometry(runtime->config);
    for (int s = 0; s < ROWS; s++) {
        tokens[s] = 7 + 13 * s;
        inputs[s] = (struct sl_input){.tokens = &tokens[s], .n_tokens = 1, .choice = choices ? &choices[s] : NULL};
        inputs[s].logits = s % every == 0 ? logits + (int64_t)s * runtime->config->n_vocab : NULL;
        assert_int_equal(sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_ORIGINAL, 64, runtime->arena,
                                                 &inputs[s].session, NULL),
                         SL_OK);
    }
    assert_int_equal(sl_engine_forward(runtime->engine, inputs, ROWS, NULL), SL_OK);
    for (int s = 0; s < ROWS; s++) {
        sl_session_destroy(&inputs[s].session);
    }
}

static void test_choices_are_those_of_the_rows(void **state) {
    (void)state;
    struct sl_runtime runtime;
    struct sl_runtime_config config = {
        .model_dir = "models/demo", .device = "emulated", .threads = 2, .max_rows = ROWS};
    assert_int_equal(sl_runtime_open(&config, &runtime, NULL), SL_OK);
    assert_int_equal(sl_runtime_open_arena(&runtime, (size_t)128 << 20, NULL), SL_OK);
    int64_t n_vocab = runtime.config->n_vocab;
    assert_true(n_vocab > SL_MAX_CANDIDATES);
    float *all = calloc((size_t)(ROWS * n_vocab), sizeof *all), *some = calloc((size_t)(ROWS * n_vocab), sizeof *some);
    assert_true(all != NULL && some != NULL);
    struct sl_choice choices[ROWS];
    const int32_t history[] = {5, 900, 5, 20};
    struct sl_sampler *samplers[ROWS];
    for (int s = 0; s < ROWS; s++) {
        assert_int_equal(sl_sampler_create((int32_t)n_vocab, &samplers[s], NULL), SL_OK);
        choices[s] = (struct sl_choice){.sampler = samplers[s],
                                        .sampling = &ways[s % WAYS].sampling,
                                        .history = history,
                                        .n_history = 4,
                                        .step = s,
                                        .status = SL_AGAIN};
    }
    pass(&runtime, NULL, all, 1);
    pass(&runtime, choices, some, 5);
    for (int s = 0; s < ROWS; s++) {
        struct sl_token want;
        assert_int_equal(sl_sampler_next(samplers[s], choices[s].sampling, all + s * n_vocab, history, 4, s, &want),
                         SL_OK);
        assert_int_equal(choices[s].status, SL_OK);
        assert_int_equal(choices[s].token.id, want.id);
        assert_true(choices[s].token.logprob - want.logprob < 2e-6f && want.logprob - choices[s].token.logprob < 2e-6f);
        assert_int_equal(choices[s].token.n_alternatives, want.n_alternatives);
        if (ways[s % WAYS].by_candidates >= 0) {
            assert_int_equal(choices[s].by_candidates, ways[s % WAYS].by_candidates);
        }
        if (s % 5 == 0) {
            assert_memory_equal(some + s * n_vocab, all + s * n_vocab, (size_t)n_vocab * sizeof *all);
        }
        sl_sampler_destroy(&samplers[s]);
    }
    free(all);
    free(some);
    sl_runtime_close(&runtime);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_those_of_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
