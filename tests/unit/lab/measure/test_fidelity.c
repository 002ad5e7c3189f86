// SPDX-License-Identifier: Apache-2.0
// Purpose: lab/measure/fidelity.h: what it reports is what its header says, by arithmetic of its own over the full cache.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/model/watch.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/job_recipe.h"
#include "lab/measure/fidelity.h"
#include "tests/unit/lab/model_fixture.h"

#define N_READ 300
#define KEPT   100 // slots that the recipe under test keeps: the newest

static int set_up(void **state) {
    return model_fixture_open(state, N_READ + 100);
}

static struct sl_fidelity *create(struct model_fixture *f, int64_t n_new) {
    struct sl_fidelity_config config = {.model = &f->m, .tokens = f->tokens, .n_read = N_READ, .n_new = n_new};
    struct sl_fidelity *fidelity;
    assert_int_equal(sl_fidelity_create(&config, &fidelity, NULL), SL_OK);
    return fidelity;
}

static void measure(struct model_fixture *f, struct sl_fidelity *fidelity, const char *text,
                    struct sl_fidelity_result *result) {
    struct sl_recipe recipe;
    struct sl_error err = {0};
    assert_int_equal(sl_job_recipe(text, f->m.runtime.config, &recipe, &err), SL_OK);
    if (sl_fidelity_measure(fidelity, &recipe, result, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
}

static void test_fidelity_finds_no_difference_in_the_full_cache(void **state) {
    struct model_fixture *f = *state;
    struct sl_fidelity *fidelity = create(f, 70);
    struct sl_fidelity_result r;
    measure(f, fidelity, "full", &r);
    for (int l = 0; l < f->m.runtime.config->n_layers; l++) {
        assert_true(r.error[l] == 0);
        assert_true(r.overlap[l] == 1);
    }
    assert_true(r.nll == sl_fidelity_full_nll(fidelity)); // bit by bit, though it went through a capsule
    assert_true(r.slots == N_READ);
    // A budget that is never reached changes nothing either, whatever is counted on the way.
    measure(f, fidelity, "h2o,budget=1000", &r);
    assert_true(r.error_mean == 0 && r.overlap_mean == 1 && r.nll == sl_fidelity_full_nll(fidelity));
    sl_fidelity_destroy(&fidelity);
}

static void test_fidelity_of_slot_positions_compares_the_same_queries(void **state) {
    struct model_fixture *f = *state;
    struct sl_fidelity *fidelity = create(f, 40);
    struct sl_fidelity_result r;
    measure(f, fidelity, "streamingllm,budget=1000", &r);
    assert_true(r.error_mean == 0); // beside a full cache of the same mode
    assert_true(fabs(r.nll - sl_fidelity_full_nll(fidelity)) < 1e-3);
    measure(f, fidelity, "streamingllm,budget=100", &r);
    assert_true(r.error_mean > 0.01 && r.error_mean < 1);
    sl_fidelity_destroy(&fidelity);
}

// More channels find more of what attention looks for; coarser copies of the keys find less.
static void test_fidelity_tells_what_a_search_misses(void **state) {
    struct model_fixture *f = *state;
    struct sl_fidelity *fidelity = create(f, 40);
    static const char *const searches[] = {"channels=64", "channels=8", "channels=8,scan=int1"};
    struct sl_fidelity_result r;
    double before = 1;
    measure(f, fidelity, "full", &r);
    assert_true(r.recall_mean == -1 && r.recall[1] == -1);
    for (int i = 0; i < 3; i++) {
        char text[160];
        snprintf(text, sizeof text, "full,place=offload/1-,ahead=0,scope=sinks:4+recent:16,topk=16,%s", searches[i]);
        measure(f, fidelity, text, &r);
        assert_true(r.recall[0] == -1); // resident
        for (int l = 1; l < f->m.runtime.config->n_layers; l++) {
            assert_true(r.recall[l] > 16.0 / N_READ && r.recall[l] <= 1); // better than chance
        }
        assert_true(r.recall_mean < before);
        before = r.recall_mean;
    }
    sl_fidelity_destroy(&fidelity);
}

// Fails while the continuation is read beside the full cache, if it is armed.
static enum sl_status fail_behind_the_prompt(void *arg, int64_t done, int64_t total) {
    (void)total;
    return *(bool *)arg && done > N_READ ? SL_ERR_PRECONDITION : SL_OK;
}

static void test_fidelity_after_a_failure_is_that_of_a_fresh_start(void **state) {
    struct model_fixture *f = *state;
    bool armed = false;
    struct sl_fidelity_config config = {.model = &f->m,
                                        .tokens = f->tokens,
                                        .n_read = N_READ,
                                        .n_new = 40,
                                        .progress_fn = fail_behind_the_prompt,
                                        .arg = &armed};
    struct sl_fidelity *fidelity;
    struct sl_fidelity_result before, after;
    struct sl_recipe recipe;
    struct sl_error err;
    assert_int_equal(sl_fidelity_create(&config, &fidelity, NULL), SL_OK);
    measure(f, fidelity, "h2o,budget=100", &before);
    assert_int_equal(sl_job_recipe("h2o,budget=100", f->m.runtime.config, &recipe, NULL), SL_OK);
    armed = true;
    assert_int_equal(sl_fidelity_measure(fidelity, &recipe, &after, &err), SL_ERR_PRECONDITION);
    armed = false;
    measure(f, fidelity, "h2o,budget=100", &after);
    assert_true(before.error_mean == after.error_mean && before.nll == after.nll);
    sl_fidelity_destroy(&fidelity);
}

// --- by hand -----------------------------------------------------------------------------------------------------

struct by_hand {
    const struct sl_eval_model *m;
    double error[SL_MAX_LAYERS], overlap[SL_MAX_LAYERS];
};

// out[d] = softmax over slots [begin, n) of scale * q . K, times V; also the probabilities over all when begin is 0
static void attend(const float *q, const float *k, const float *v, int begin, int n, int d, float scale, double *out,
                   double *probabilities) {
    double *p = calloc((size_t)n, sizeof *p), max = -INFINITY, sum = 0;
    for (int j = begin; j < n; j++) {
        for (int c = 0; c < d; c++) {
            p[j] += (double)q[c] * k[j * d + c] * scale;
        }
        max = p[j] > max ? p[j] : max;
    }
    for (int j = begin; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    memset(out, 0, (size_t)d * sizeof *out);
    for (int j = begin; j < n; j++) {
        for (int c = 0; c < d; c++) {
            out[c] += p[j] / sum * v[j * d + c];
        }
        if (probabilities) {
            probabilities[j] += p[j] / sum;
        }
    }
    free(p);
}

// Returns how many of the KEPT largest of p[N_READ] are among the newest KEPT; overwrites p.
static int newest_among_top(double *p) {
    int both = 0;
    for (int i = 0; i < KEPT; i++) {
        int best = 0;
        for (int j = 1; j < N_READ; j++) {
            best = p[j] > p[best] ? j : best;
        }
        both += best >= N_READ - KEPT;
        p[best] = -1;
    }
    return both;
}

static enum sl_status compare_layer(void *arg, int segment, int layer, const struct sl_attend *a) {
    (void)segment;
    struct by_hand *b = arg;
    int d = a->head_dim, n = N_READ + 1, group = a->n_heads / a->heads.n;
    float *k = malloc((size_t)(n * d) * sizeof *k), *v = malloc((size_t)(n * d) * sizeof *v);
    double full[256], part[256], difference = 0, reference = 0;
    for (int h = 0; h < a->heads.n; h++) {
        double paid[N_READ + 1] = {0};
        b->m->runtime.ops->read_rows(&a->heads.kv[h], 0, (uint32_t)n, k, v);
        for (int g = 0; g < group; g++) {
            const float *q = a->q + (h * group + g) * d;
            attend(q, k, v, 0, n, d, a->scale, full, paid);
            attend(q, k, v, N_READ - KEPT, n, d, a->scale, part, NULL);
            for (int c = 0; c < d; c++) {
                difference += (part[c] - full[c]) * (part[c] - full[c]);
                reference += full[c] * full[c];
            }
        }
        int both = newest_among_top(paid);
        b->overlap[layer] += (double)both / (2 * KEPT - both) / a->heads.n;
    }
    b->error[layer] = sqrt(difference / reference);
    free(k);
    free(v);
    return SL_OK;
}

static void test_fidelity_agrees_with_arithmetic_by_hand(void **state) {
    struct model_fixture *f = *state;
    struct sl_fidelity *fidelity = create(f, 1);
    struct sl_fidelity_result r;
    measure(f, fidelity, "score=recency,budget=100,when=end", &r);
    assert_true(r.slots == KEPT);

    struct sl_session *session;
    assert_int_equal(sl_eval_model_session(&f->m, SL_POSITION_ORIGINAL, N_READ + 1, &session, NULL), SL_OK);
    struct sl_input prompt = {.session = session, .tokens = f->tokens, .n_tokens = N_READ};
    assert_int_equal(sl_engine_forward(f->m.runtime.engine, &prompt, 1, NULL), SL_OK);
    static struct by_hand hand;
    hand = (struct by_hand){.m = &f->m};
    struct watch hook = {.fn = compare_layer, .arg = &hand};
    struct sl_input next = {.session = session, .tokens = f->tokens + N_READ, .n_tokens = 1};
    assert_int_equal(watch_forward(f->m.runtime.engine, &next, 1, &hook, NULL), SL_OK);
    sl_session_destroy(&session);

    double mean = 0;
    for (int l = 0; l < f->m.runtime.config->n_layers; l++) {
        if (fabs(r.error[l] - hand.error[l]) > 1e-4 || fabs(r.overlap[l] - hand.overlap[l]) > 0.02) {
            fail_msg("layer %d: error %g, by hand %g; overlap %g, by hand %g", l, r.error[l], hand.error[l],
                     r.overlap[l], hand.overlap[l]);
        }
        mean += r.error[l] / f->m.runtime.config->n_layers;
    }
    assert_true(fabs(r.error_mean - mean) < 1e-9);
    assert_true(r.error_mean > 0.01);
    sl_fidelity_destroy(&fidelity);
}

static void test_fidelity_refuses_what_does_not_fit_the_prompt(void **state) {
    struct model_fixture *f = *state;
    struct sl_fidelity *fidelity = create(f, 8);
    struct sl_recipe recipe;
    struct sl_fidelity_result r;
    struct sl_error err = {0};
    assert_int_equal(sl_recipe_parse("full,format=f16/90-95:int4", &recipe, &err), SL_OK);
    assert_int_equal(sl_fidelity_measure(fidelity, &recipe, &r, &err), SL_ERR_INVALID);
    assert_true(err.text[0] != '\0');
    sl_fidelity_destroy(&fidelity);
}

// --- arithmetic ----------------------------------------------------------------------------------------------------

static void test_fidelity_jaccard_counts_what_both_have(void **state) {
    (void)state;
    const uint32_t a[] = {1, 3, 5, 7}, b[] = {3, 4, 5, 6, 9};
    assert_true(sl_jaccard(a, 4, b, 5) == 2.0 / 7);
    assert_true(sl_jaccard(a, 4, a, 4) == 1);
    assert_true(sl_jaccard(a, 4, b, 0) == 0);
    assert_true(sl_jaccard(a, 0, b, 0) == 1);
}

static void test_fidelity_nll_is_minus_the_log_of_softmax(void **state) {
    (void)state;
    const float logits[] = {1000, 1000, 1000, 1000}, skewed[] = {0, (float)log(3)};
    assert_true(fabs(sl_negative_log_likelihood(logits, 4, 2) - log(4)) < 1e-12);
    assert_true(fabs(sl_negative_log_likelihood(skewed, 2, 1) - log(4.0 / 3)) < 1e-6);
    assert_true(fabs(sl_negative_log_likelihood(skewed, 2, 0) - log(4)) < 1e-6);
    const float even[] = {5, 5}; // p = (1/4, 3/4) against q = (1/2, 1/2), and the other way round
    assert_true(fabs(sl_kl_divergence(skewed, even, 2) - (log(0.5) / 4 + 0.75 * log(1.5))) < 1e-6);
    assert_true(fabs(sl_kl_divergence(even, skewed, 2) - (log(2.0) + log(2.0 / 3)) / 2) < 1e-6);
    assert_true(fabs(sl_kl_divergence(skewed, skewed, 2)) < 1e-12);
    assert_int_equal(sl_arg_max(skewed, 2), 1);
    assert_int_equal(sl_arg_max(even, 2), 0);
}

static void test_fidelity_relative_error_of_nothing_is_zero(void **state) {
    (void)state;
    assert_true(sl_relative_error(4, 16) == 0.5);
    assert_true(sl_relative_error(0, 0) == 0);
    assert_true(isinf(sl_relative_error(1, 0)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fidelity_tells_what_a_search_misses, set_up, model_fixture_close),
        cmocka_unit_test_setup_teardown(test_fidelity_finds_no_difference_in_the_full_cache, set_up,
                                        model_fixture_close),
        cmocka_unit_test_setup_teardown(test_fidelity_of_slot_positions_compares_the_same_queries, set_up,
                                        model_fixture_close),
        cmocka_unit_test_setup_teardown(test_fidelity_after_a_failure_is_that_of_a_fresh_start, set_up,
                                        model_fixture_close),
        cmocka_unit_test_setup_teardown(test_fidelity_agrees_with_arithmetic_by_hand, set_up, model_fixture_close),
        cmocka_unit_test_setup_teardown(test_fidelity_refuses_what_does_not_fit_the_prompt, set_up,
                                        model_fixture_close),
        cmocka_unit_test(test_fidelity_jaccard_counts_what_both_have),
        cmocka_unit_test(test_fidelity_nll_is_minus_the_log_of_softmax),
        cmocka_unit_test(test_fidelity_relative_error_of_nothing_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
