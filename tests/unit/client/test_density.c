// SPDX-License-Identifier: Apache-2.0
// Purpose: client/density.h: TailorKV's score on rows whose score is known, by brute force on a model, and the profile.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/density.h"

#define MODEL    "models/demo"
#define N_TOKENS 200

static const struct sl_ops *ops(void) {
    const struct sl_ops *table;
    assert_int_equal(sl_ops_select(NULL, &table, NULL), SL_OK);
    return table;
}

static void test_density_of_rows_that_are_known(void **state) {
    (void)state;
    float row[100];
    uint32_t keep[5];
    for (int j = 0; j < 100; j++) {
        row[j] = 0.01f;
    }
    assert_true(fabs(sl_density_of_row(ops(), row, 100, 5, keep) - 0.95) < 1e-6); // uniform
    memset(row, 0, sizeof row);
    row[37] = 1;
    assert_true(sl_density_of_row(ops(), row, 100, 5, keep) == 0); // one-hot
    for (int j = 0; j < 10; j++) {
        row[10 * j] = 0.1f;
    }
    row[37] = 0;
    assert_true(fabs(sl_density_of_row(ops(), row, 100, 5, keep) - 0.5) < 1e-6); // ten equal ones
    assert_true(sl_density_of_row(ops(), row, 3, 5, keep) == 0);                 // fewer slots than k
}

// --- by brute force ------------------------------------------------------------------------------------------------

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

struct brute {
    const struct sl_eval_model *m;
    double scores[SL_MAX_LAYERS];
};

// All rows of the prompt in one call; only the last 32 count.
static enum sl_status add_layer(void *arg, int segment, int layer, const struct sl_attend *a) {
    (void)segment;
    struct brute *b = arg;
    int d = a->head_dim, group = a->n_heads / a->n_kv_heads, k = (int)(0.05 * N_TOKENS);
    static float keys[N_TOKENS * 256];
    for (int head = 0; head < a->n_heads; head++) {
        b->m->ops->read_rows(&a->kv[head / group], 0, N_TOKENS, keys, NULL);
        for (int r = N_TOKENS - SL_DENSITY_QUERIES; r < N_TOKENS; r++) {
            const float *q = a->q + (int64_t)r * sl_attend_q_stride(a) + head * d;
            double p[N_TOKENS], sum = 0, top = 0;
            for (int j = 0; j <= r; j++) {
                double dot = 0;
                for (int c = 0; c < d; c++) {
                    dot += (double)q[c] * keys[j * d + c];
                }
                p[j] = exp(dot * a->scale);
                sum += p[j];
            }
            qsort(p, (size_t)r + 1, sizeof *p, descending);
            for (int j = 0; j < k; j++) {
                top += p[j];
            }
            b->scores[layer] += (1 - top / sum) / (SL_DENSITY_QUERIES * a->n_heads);
        }
    }
    return SL_OK;
}

static void test_density_of_a_model_agrees_with_brute_force(void **state) {
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
    double scores[SL_MAX_LAYERS];
    assert_int_equal(sl_density_measure(&m, tokens, N_TOKENS, NULL, scores, &err), SL_OK);

    struct brute brute = {.m = &m};
    struct sl_session *session;
    assert_int_equal(sl_eval_model_session(&m, SL_POSITION_ORIGINAL, N_TOKENS, &session, &err), SL_OK);
    struct sl_segment segment = {.session = session, .tokens = tokens, .n_tokens = N_TOKENS};
    struct sl_layer_hook hook = {.fn = add_layer, .arg = &brute};
    assert_int_equal(sl_engine_forward(m.engine, &segment, 1, &hook, &err), SL_OK);
    for (int l = 0; l < m.config->n_layers; l++) {
        if (fabs(scores[l] - brute.scores[l]) > 1e-4) {
            fail_msg("layer %d: %g, by brute force %g", l, scores[l], brute.scores[l]);
        }
    }
    assert_true(scores[0] > 0.5); // as models/demo/README.md says of it
    assert_int_equal(sl_density_measure(&m, tokens, SL_DENSITY_MIN_TOKENS - 1, NULL, scores, &err), SL_ERR_INVALID);
    sl_session_destroy(&session);
    free(tokens);
    sl_eval_model_close(&m);
}

// --- the profile ---------------------------------------------------------------------------------------------------

static void test_density_layer_0_is_always_dense(void **state) {
    (void)state;
    const double scores[] = {0.01, 0.2, 0.21, 0.1};
    struct sl_layers dense;
    sl_density_choose(scores, 4, 0.2, &dense);
    assert_true(sl_layers_has(&dense, 0));  // nothing predicts its query
    assert_false(sl_layers_has(&dense, 1)); // not above
    assert_true(sl_layers_has(&dense, 2));
    assert_false(sl_layers_has(&dense, 3));
}

static void test_density_profile_is_written_whole(void **state) {
    (void)state;
    char dir[] = "/tmp/sluice-density-XXXXXX", path[4096];
    assert_non_null(mkdtemp(dir));
    const double scores[] = {0.75, 0.125, 0.5};
    struct sl_layers dense;
    struct sl_error err = {0};
    sl_density_choose(scores, 3, 0.25, &dense);
    for (int again = 0; again < 2; again++) { // the second one replaces the first
        assert_int_equal(sl_density_write(dir, scores, 3, 0.25, &dense, path, sizeof path, &err), SL_OK);
    }
    json_t *profile = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(profile);
    assert_int_equal(json_integer_value(json_object_get(profile, "version")), 1);
    assert_true(json_real_value(json_object_get(profile, "threshold")) == 0.25);
    assert_int_equal(json_array_size(json_object_get(profile, "dense_preference")), 3);
    const json_t *layers = json_object_get(profile, "dense_layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_int_equal(json_integer_value(json_array_get(layers, 1)), 2);
    json_decref(profile);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); // nothing else was left in it
    assert_int_equal(sl_density_write(dir, scores, 3, 0.25, &dense, path, sizeof path, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, dir));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_density_of_rows_that_are_known),
        cmocka_unit_test(test_density_of_a_model_agrees_with_brute_force),
        cmocka_unit_test(test_density_layer_0_is_always_dense),
        cmocka_unit_test(test_density_profile_is_written_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
