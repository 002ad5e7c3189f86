// SPDX-License-Identifier: Apache-2.0
// Purpose: lab/measure/attention_profile.h on rows whose statistics are known, and by brute force on a model.
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

#include "lab/measure/attention_profile.h"

#define MODEL    "models/demo"
#define N_TOKENS 200
#define N        SL_N_ATTENTION_STATISTICS

static void expect(const float *row, uint32_t n, uint32_t k, const double *wanted, const char *what) {
    float sorted[1000];
    double found[N];
    sl_attention_of_row(row, n, k, sorted, found);
    for (int s = 0; s < N; s++) {
        if (!(fabs(found[s] - wanted[s]) < 1e-5 * (1 + wanted[s]))) {
            fail_msg("%s: %s is %g, not %g", what, sl_attention_names[s], found[s], wanted[s]);
        }
    }
}

// In the order of enum sl_attention_statistic: dense, first 1, 4, 64, last 64, slots 90, 95, 99, effective.
static void test_attention_of_rows_that_are_known(void **state) {
    (void)state;
    float row[1000];
    for (int j = 0; j < 1000; j++) {
        row[j] = 0.001f;
    }
    expect(row, 1000, 50, (double[N]){0.95, 0.001, 0.004, 0.064, 0.064, 0.90, 0.95, 0.99, 1000}, "uniform");
    expect(row, 100, 5, (double[N]){0.95, 0.01, 0.04, 0.64, 0.64, 0.90, 0.95, 0.99, 100}, "uniform, sum of 0.1");
    expect(row, 3, 5, (double[N]){0, 1 / 3.0, 1, 1, 1, 1, 1, 1, 3}, "fewer slots than k");
    expect(row, 1, 0, (double[N]){1, 1, 1, 1, 1, 1, 1, 1, 1}, "one slot");
    memset(row, 0, sizeof row);
    row[37] = 1;
    expect(row, 1000, 50, (double[N]){0, 0, 0, 1, 0, 0.001, 0.001, 0.001, 1}, "one-hot");
    expect(row, 100, 5, (double[N]){0, 0, 0, 1, 1, 0.01, 0.01, 0.01, 1}, "one-hot where first and last overlap");
    row[37] = 0;
    // Two blocks: the first 4 slots hold 0.8, and 100 in the middle 0.002 each.
    for (int j = 0; j < 4; j++) {
        row[j] = 0.2f;
    }
    for (int j = 500; j < 600; j++) {
        row[j] = 0.002f;
    }
    double effective = exp(-0.8 * log(0.2) - 0.2 * log(0.002));
    expect(row, 1000, 50, (double[N]){54 * 0.002, 0.2, 0.8, 0.8, 0, 0.054, 0.079, 0.099, effective}, "two blocks");
    // The same one below the other: where slots are matters to first and last alone.
    for (int j = 0; j < 4; j++) {
        row[996 + j] = row[j];
        row[j] = 0;
    }
    expect(row, 1000, 50, (double[N]){54 * 0.002, 0, 0, 0, 0.8, 0.054, 0.079, 0.099, effective}, "sinks at the end");
}

// --- by brute force ------------------------------------------------------------------------------------------------

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

struct brute {
    const struct sl_eval_model *m;
    double dense[SL_MAX_LAYERS], effective[SL_MAX_LAYERS], first_4[SL_MAX_LAYERS][SL_MAX_HEADS];
};

// All rows of the prompt in one call; only the last 32 count.
static enum sl_status add_layer(void *arg, int segment, int layer, const struct sl_attend *a) {
    (void)segment;
    struct brute *b = arg;
    int d = a->head_dim, group = a->n_heads / a->heads.n, k = (int)(0.05 * N_TOKENS);
    static float keys[N_TOKENS * 256];
    for (int head = 0; head < a->n_heads; head++) {
        b->m->runtime.ops->read_rows(&a->heads.kv[head / group], 0, N_TOKENS, keys, NULL);
        for (int r = N_TOKENS - SL_ATTENTION_QUERIES; r < N_TOKENS; r++) {
            const float *q = a->q + (int64_t)r * sl_attend_q_stride(a) + head * d;
            double p[N_TOKENS], sum = 0, top = 0, entropy = 0;
            for (int j = 0; j <= r; j++) {
                double dot = 0;
                for (int c = 0; c < d; c++) {
                    dot += (double)q[c] * keys[j * d + c];
                }
                p[j] = exp(dot * a->scale);
                sum += p[j];
            }
            for (int j = 0; j <= r; j++) {
                entropy -= p[j] / sum * log(p[j] / sum);
            }
            b->effective[layer] += exp(entropy) / (SL_ATTENTION_QUERIES * a->n_heads);
            b->first_4[layer][head / group] += (p[0] + p[1] + p[2] + p[3]) / sum / (SL_ATTENTION_QUERIES * group);
            qsort(p, (size_t)r + 1, sizeof *p, descending);
            for (int j = 0; j < k; j++) {
                top += p[j];
            }
            b->dense[layer] += (1 - top / sum) / (SL_ATTENTION_QUERIES * a->n_heads);
        }
    }
    return SL_OK;
}

static void expect_layer(const struct sl_attention_profile *p, int layer, enum sl_attention_statistic statistic,
                         double wanted) {
    double found = sl_attention_of_layer(p, layer, statistic);
    if (fabs(found - wanted) > 1e-4 * (1 + wanted)) {
        fail_msg("layer %d: %s is %g, by brute force %g", layer, sl_attention_names[statistic], found, wanted);
    }
}

static void test_attention_of_a_model_agrees_with_brute_force(void **state) {
    (void)state;
    struct sl_eval_model m;
    struct sl_eval_model_config config = {
        .dir = MODEL, .threads = 2, .max_rows = 512, .cache_tokens = 1024, .tokenizer = true};
    int32_t *tokens;
    int64_t n_tokens;
    struct sl_error err = {0};
    // The fastest tier may round queries and keys to bf16, to 2^-9, where here f64 is held against it to 1e-4: the
    // measure is what is tested, on the tier that is exact.
    setenv("SLUICE_TIER", "reference", 1);
    assert_int_equal(sl_eval_model_open(&config, &m, &err), SL_OK);
    unsetenv("SLUICE_TIER");
    assert_int_equal(sl_eval_model_read(&m, NULL, &tokens, &n_tokens, &err), SL_OK);
    assert_true(n_tokens >= N_TOKENS);
    struct sl_attention_profile p;
    assert_int_equal(sl_attention_profile_init(&p, m.runtime.config->n_layers, m.runtime.config->n_kv_heads, &err),
                     SL_OK);
    assert_int_equal(sl_attention_profile_add(&p, &m, tokens, N_TOKENS, NULL, &err), SL_OK);

    static struct brute brute;
    brute.m = &m;
    struct sl_session *session;
    assert_int_equal(sl_eval_model_session(&m, SL_POSITION_ORIGINAL, N_TOKENS, &session, &err), SL_OK);
    struct sl_input segment = {.session = session, .tokens = tokens, .n_tokens = N_TOKENS};
    struct watch hook = {.fn = add_layer, .arg = &brute};
    assert_int_equal(watch_forward(m.runtime.engine, &segment, 1, &hook, &err), SL_OK);
    for (int l = 0; l < m.runtime.config->n_layers; l++) {
        expect_layer(&p, l, SL_ATTENTION_DENSE, brute.dense[l]);
        expect_layer(&p, l, SL_ATTENTION_EFFECTIVE, brute.effective[l]);
        for (int h = 0; h < m.runtime.config->n_kv_heads; h++) {
            double found = sl_attention_of_head(&p, l, h, SL_ATTENTION_FIRST_4);
            assert_true(fabs(found - brute.first_4[l][h]) < 1e-4);
        }
    }
    // The papers' premise that models/demo was made to have: a first layer that spreads over most of what it sees.
    assert_true(sl_attention_of_layer(&p, 0, SL_ATTENTION_DENSE) > 0.2);

    // The mean over texts; a refused text does not change it.
    double before = sl_attention_of_layer(&p, 0, SL_ATTENTION_DENSE);
    assert_int_equal(sl_attention_profile_add(&p, &m, tokens, SL_ATTENTION_MIN_TOKENS - 1, NULL, &err), SL_ERR_INVALID);
    assert_true(p.n_texts == 1 && sl_attention_of_layer(&p, 0, SL_ATTENTION_DENSE) == before);
    assert_int_equal(sl_attention_profile_add(&p, &m, tokens, N_TOKENS, NULL, &err), SL_OK);
    assert_true(p.n_texts == 2 && sl_attention_of_layer(&p, 0, SL_ATTENTION_DENSE) == before);
    sl_attention_profile_cleanup(&p);
    sl_session_destroy(&session);
    free(tokens);
    sl_eval_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_of_rows_that_are_known),
        cmocka_unit_test(test_attention_of_a_model_agrees_with_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
