// SPDX-License-Identifier: Apache-2.0
// Purpose: lab/measure/profile_file.h: which layers are dense, and the file that is written to the model's folder.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/measure/profile_file.h"

// One text, two KV heads whose mean is the layer's score.
static struct sl_attention_profile make(const double *scores, int n_layers) {
    struct sl_attention_profile p;
    assert_int_equal(sl_attention_profile_init(&p, n_layers, 2, NULL), SL_OK);
    p.n_texts = 1;
    for (int l = 0; l < n_layers; l++) {
        double *heads = p.values + (ptrdiff_t)l * 2 * SL_N_ATTENTION_STATISTICS;
        heads[SL_ATTENTION_DENSE] = scores[l] - 0.0625;
        heads[SL_N_ATTENTION_STATISTICS + SL_ATTENTION_DENSE] = scores[l] + 0.0625;
        heads[SL_ATTENTION_FIRST_4] = 0.25 * l;
    }
    return p;
}

static void test_profile_layer_0_is_always_dense(void **state) {
    (void)state;
    struct sl_attention_profile p = make((const double[]){0.0625, 0.25, 0.375, 0.125}, 4);
    struct sl_layers dense;
    sl_profile_choose(&p, 0.25, &dense);
    assert_true(sl_layers_has(&dense, 0));  // nothing predicts its query
    assert_false(sl_layers_has(&dense, 1)); // not above
    assert_true(sl_layers_has(&dense, 2));
    assert_false(sl_layers_has(&dense, 3));
    sl_attention_profile_cleanup(&p);
}

static const json_t *at(const json_t *profile, const char *name, size_t layer, size_t head) {
    return json_array_get(json_array_get(json_object_get(json_object_get(profile, "attention"), name), layer), head);
}

static void test_profile_is_written_whole(void **state) {
    (void)state;
    char dir[] = "/tmp/sluice-profile-XXXXXX", path[4096];
    assert_non_null(mkdtemp(dir));
    struct sl_attention_profile p = make((const double[]){0.75, 0.125, 0.5}, 3);
    struct sl_layers dense;
    struct sl_error err = {0};
    sl_profile_choose(&p, 0.25, &dense);
    json_t *json = sl_profile_json(&p, 0.25, &dense);
    assert_int_equal(sl_profile_path(dir, path, 8, &err), SL_ERR_INVALID);
    assert_int_equal(sl_profile_path(dir, path, sizeof path, &err), SL_OK);
    for (int again = 0; again < 2; again++) { // the second one replaces the first
        assert_int_equal(sl_profile_write(path, json, &err), SL_OK);
    }
    json_t *profile = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(profile);
    assert_int_equal(json_integer_value(json_object_get(profile, "version")), 1);
    assert_true(json_real_value(json_object_get(profile, "threshold")) == 0.25);
    assert_int_equal(json_array_size(json_object_get(profile, "dense_preference")), 3);
    assert_true(json_real_value(json_array_get(json_object_get(profile, "dense_preference"), 2)) == 0.5);
    const json_t *layers = json_object_get(profile, "dense_layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_int_equal(json_integer_value(json_array_get(layers, 1)), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(profile, "attention"), "texts")), 1);
    assert_true(json_real_value(at(profile, "dense_preference", 2, 1)) == 0.5625);
    assert_true(json_real_value(at(profile, "first_4", 2, 0)) == 0.5);
    assert_true(json_real_value(at(profile, "first_4", 2, 1)) == 0);
    for (int s = 0; s < SL_N_ATTENTION_STATISTICS; s++) {
        assert_true(json_is_real(at(profile, sl_attention_names[s], 2, 1)));
        assert_null(at(profile, sl_attention_names[s], 3, 0));
    }
    json_decref(profile);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); // nothing else was left in it
    assert_int_equal(sl_profile_write(path, json, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, dir));
    json_decref(json);
    sl_attention_profile_cleanup(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_layer_0_is_always_dense),
        cmocka_unit_test(test_profile_is_written_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
