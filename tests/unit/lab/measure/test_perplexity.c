// SPDX-License-Identifier: Apache-2.0
// Purpose: lab/measure/perplexity.h: what streams through a cache that never fills is the plain likelihood, what is
// evicted is what prefill and decode evict, and the budget holds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/job_recipe.h"
#include "lab/measure/attention_profile.h"
#include "lab/measure/fidelity.h"
#include "lab/measure/perplexity.h"
#include "tests/unit/lab/model_fixture.h"

#define N_TOKENS 512

static int set_up(void **state) {
    return model_fixture_open(state, N_TOKENS + 1);
}

// Measures the first n tokens and returns the mean.
static double measure_first(struct model_fixture *f, int64_t n, const char *text, int chunk, double *nll,
                            struct sl_perplexity_result *result) {
    double sum = 0;
    struct sl_perplexity_config config = {.model = &f->m, .tokens = f->tokens, .n_tokens = n, .chunk = chunk};
    struct sl_recipe recipe;
    struct sl_error err = {0};
    assert_int_equal(sl_job_recipe(text, f->m.runtime.config, &recipe, &err), SL_OK);
    if (sl_perplexity_measure(&config, &recipe, nll, result, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(nll[i]) && nll[i] >= 0);
        sum += nll[i];
    }
    return sum / (double)n;
}

// nll_out[N_TOKENS] may be NULL.
static double measure(struct model_fixture *f, const char *text, int chunk, double *nll_out,
                      struct sl_perplexity_result *result) {
    static double own[N_TOKENS];
    return measure_first(f, N_TOKENS, text, chunk, nll_out ? nll_out : own, result);
}

// The text in one forward pass, without any of the code under test.
static void read_at_once(struct model_fixture *f, double *nll) {
    int64_t n_vocab = f->m.runtime.config->n_vocab;
    float *logits = malloc((size_t)(N_TOKENS * n_vocab) * sizeof *logits);
    struct sl_session *session;
    assert_non_null(logits);
    assert_int_equal(sl_eval_model_session(&f->m, SL_POSITION_ORIGINAL, N_TOKENS, &session, NULL), SL_OK);
    struct sl_input segment = {.session = session, .tokens = f->tokens, .n_tokens = N_TOKENS, .all_logits = logits};
    assert_int_equal(sl_engine_forward(f->m.runtime.engine, &segment, 1, NULL), SL_OK);
    for (int i = 0; i < N_TOKENS; i++) {
        const float *row = logits + i * n_vocab;
        double sum = 0;
        for (int64_t v = 0; v < n_vocab; v++) {
            sum += exp((double)row[v]);
        }
        nll[i] = log(sum) - (double)row[f->tokens[i + 1]];
    }
    sl_session_destroy(&session);
    free(logits);
}

static void expect_same(const double *a, const double *b, int n, double tolerance, const char *what) {
    for (int i = 0; i < n; i++) {
        if (!(fabs(a[i] - b[i]) <= tolerance)) {
            fail_msg("%s, token %d: %.9g and %.9g", what, i, a[i], b[i]);
        }
    }
}

static void test_perplexity_of_a_cache_that_never_fills_is_the_plain_one(void **state) {
    struct model_fixture *f = *state;
    static double plain[N_TOKENS], streamed[N_TOKENS];
    struct sl_perplexity_result r;
    read_at_once(f, plain);
    static const struct { int chunk, n; } ways[] = {{1, 100}, {7, N_TOKENS}, {32, N_TOKENS}, {N_TOKENS, N_TOKENS}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        measure_first(f, ways[i].n, "full", ways[i].chunk, streamed, &r);
        expect_same(streamed, plain, ways[i].n, 1e-6, "full");
        assert_true(r.slots == ways[i].n && r.most_slots == ways[i].n);
    }
    static const char *const large[] = {"h2o,budget=512", "tova,budget=5000", "roco,budget=600",
                                        "h2o,budget=600,layers=uniform,when=end+step,evicted=merge"};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        measure(f, large[i], 32, streamed, &r);
        expect_same(streamed, plain, N_TOKENS, 1e-6, large[i]);
        assert_true(r.slots == N_TOKENS);
    }
    measure(f, "streamingllm,budget=5000", 32, streamed, &r);
    expect_same(streamed, plain, N_TOKENS, 1e-2, "positions=slot"); // keys are rotated at use, not when stored
}

static void test_perplexity_keeps_to_the_budget(void **state) {
    struct model_fixture *f = *state;
    static double plain[N_TOKENS], streamed[N_TOKENS];
    struct sl_perplexity_result r;
    measure(f, "full", 32, plain, &r);
    static const char *const recipes[] = {"h2o,budget=100", "streamingllm,budget=100,positions=original",
                                          "snapkv,budget=100,when=chunk",
                                          "h2o,budget=100,layers=uniform,when=end+step,evicted=merge"};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        measure(f, recipes[i], 32, streamed, &r);
        assert_true(r.slots == 100);
        assert_int_equal(r.most_slots, 132);
        expect_same(streamed, plain, 128, 1e-6, recipes[i]); // the first eviction is after token 128
        double apart = 0;
        for (int t = 128; t < N_TOKENS; t++) {
            apart += fabs(streamed[t] - plain[t]);
        }
        assert_true(apart > 1);
    }
    // A tail belongs to the end of a prompt, and a ratio is of the tokens that are predicted.
    measure(f, "h2o,budget=0.25,scope=recent:0.5+tail:64", 32, NULL, &r);
    assert_true(r.slots == 128);
    assert_int_equal(r.most_slots, 160);
}

// Compares the tokens after n_read with those of fidelity, which reads them after a prompt that prefill compressed and
// shipped.
static void compare_with_fidelity(struct model_fixture *f, const char *text, int64_t n_read, int64_t n_new, int chunk) {
    struct sl_fidelity_config config = {.model = &f->m, .tokens = f->tokens, .n_read = n_read, .n_new = n_new};
    struct sl_fidelity *fidelity;
    struct sl_fidelity_result expected;
    struct sl_perplexity_result r;
    struct sl_recipe recipe;
    static double nll[N_TOKENS];
    double sum = 0;
    assert_int_equal(sl_fidelity_create(&config, &fidelity, NULL), SL_OK);
    assert_int_equal(sl_job_recipe(text, f->m.runtime.config, &recipe, NULL), SL_OK);
    assert_int_equal(sl_fidelity_measure(fidelity, &recipe, &expected, NULL), SL_OK);
    measure_first(f, n_read + n_new, text, chunk, nll, &r);
    for (int64_t t = n_read; t < n_read + n_new; t++) {
        sum += nll[t];
    }
    if (fabs(sum / (double)n_new - expected.nll) > 1e-6) {
        fail_msg("%s: %.9g a token, by fidelity %.9g", text, sum / (double)n_new, expected.nll);
    }
    if (fabs(expected.nll - sl_fidelity_full_nll(fidelity)) < 1e-5) {
        fail_msg("%s: %.9g a token, and so does the full cache: nothing is compared", text, expected.nll);
    }
    sl_fidelity_destroy(&fidelity);
}

static void test_perplexity_evicts_as_prefill_and_decode_do(void **state) {
    struct model_fixture *f = *state;
    compare_with_fidelity(f, "h2o,budget=50,chunk=64", 320, 64, 64);
    compare_with_fidelity(f, "tova+caote,budget=50,chunk=64", 320, 64, 64);
    compare_with_fidelity(f, "streamingllm,budget=20,chunk=64", 320, 64, 64);
    // A prompt as long as the budget loses nothing; then one step a token.
    compare_with_fidelity(f, "h2o,budget=50,when=end+step,evicted=merge", 50, 100, 1);
}

static void test_perplexity_pays_for_what_is_forgotten(void **state) {
    struct model_fixture *f = *state;
    struct sl_perplexity_result r;
    double full = measure(f, "full", 32, NULL, &r), sinks = measure(f, "streamingllm,budget=16", 32, NULL, &r);
    double window = measure(f, "score=recency,budget=16,when=chunk,positions=slot", 32, NULL, &r);
    assert_true(sinks > full && window > full);
    // That four sinks are worth four newer slots is a claim about models that have sinks.
    struct sl_attention_profile p;
    double most = 0;
    assert_int_equal(
        sl_attention_profile_init(&p, f->m.runtime.config->n_layers, f->m.runtime.config->n_kv_heads, NULL), SL_OK);
    assert_int_equal(sl_attention_profile_add(&p, &f->m, f->tokens, N_TOKENS, NULL, NULL), SL_OK);
    for (int l = 0; l < p.n_layers; l++) {
        most = fmax(most, sl_attention_of_layer(&p, l, SL_ATTENTION_FIRST_4));
    }
    sl_attention_profile_cleanup(&p);
    if (most > 0.2) {
        assert_true(sinks < window);
    } else {
        print_message("no layer has sinks (at most %.3f of its attention): with them %.4f, without %.4f nats a token\n",
                      most, sinks, window);
    }
}

static void test_perplexity_refuses_by_name_what_does_not_stream(void **state) {
    struct model_fixture *f = *state;
    static const struct {
        const char *recipe, *says;
    } wrong[] = {
        {"tailorkv", "place=offload"},
        {"full,format=int4", "format=int4"},
        {"full,format=f16/1-:int8", "format=int8"},
        {"snapkv,budget=100", "when=end"},
        {"adakv,budget=100", "when=end"},
        {"d2o,budget=100", "layers=d2o"},
        {"snapkv,budget=100,when=chunk,window=20,scope=recent:20", "window=20"},
    };
    struct sl_perplexity_config config = {.model = &f->m, .tokens = f->tokens, .n_tokens = N_TOKENS, .chunk = 16};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sl_recipe recipe;
        struct sl_perplexity_result r;
        struct sl_error err = {0};
        double nll = -1;
        assert_int_equal(sl_job_recipe(wrong[i].recipe, f->m.runtime.config, &recipe, &err), SL_OK);
        assert_int_equal(sl_perplexity_measure(&config, &recipe, &nll, &r, &err), SL_ERR_INVALID);
        if (strstr(err.text, wrong[i].says) == NULL) {
            fail_msg("%s: %s", wrong[i].recipe, err.text);
        }
        assert_true(nll == -1); // before any work
    }
}

static void test_a_model_is_not_opened_after_a_signal(void **state) {
    (void)state;
    struct sl_signals signals;
    struct sl_error err = {0};
    struct sl_eval_model model;
    const struct sl_eval_model_config config = {
        .dir = "models/demo", .max_rows = 16, .cache_tokens = 64, .signals = &signals};
    assert_int_equal(sl_signals_init(&signals, &err), SL_OK);
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(sl_eval_model_open(&config, &model, &err), SL_ERR_CANCELLED);
    sl_signals_cleanup(&signals);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_perplexity_of_a_cache_that_never_fills_is_the_plain_one),
        cmocka_unit_test(test_perplexity_keeps_to_the_budget),
        cmocka_unit_test(test_perplexity_evicts_as_prefill_and_decode_do),
        cmocka_unit_test(test_perplexity_pays_for_what_is_forgotten),
        cmocka_unit_test(test_perplexity_refuses_by_name_what_does_not_stream),
        cmocka_unit_test(test_a_model_is_not_opened_after_a_signal),
    };
    return cmocka_run_group_tests(tests, set_up, model_fixture_close);
}
