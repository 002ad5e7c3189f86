// SPDX-License-Identifier: Apache-2.0
// Purpose: requests about a job, written and read back; and the meaning of absent fields.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "engine/job/job_request.h"

static void test_sampling_survives_its_message(void **state) {
    (void)state;
    const struct sl_sampling all = {.temperature = 0.5f,
                                    .top_k = 7,
                                    .top_p = 0.25f,
                                    .repetition_penalty = 1.5f,
                                    .min_p = 0.125f,
                                    .frequency_penalty = -0.5f,
                                    .presence_penalty = 1.75f,
                                    .seed = UINT64_C(1) << 63,
                                    .n_logprobs = 3};
    const Sluice__V1__Sampling message = sl_job_sampling_message(&all);
    const struct sl_sampling read = sl_job_sampling(&message, NULL);
    assert_true(read.temperature == all.temperature && read.top_p == all.top_p);
    assert_true(read.repetition_penalty == all.repetition_penalty && read.seed == all.seed);
    assert_true(read.min_p == all.min_p && read.frequency_penalty == all.frequency_penalty);
    assert_true(read.presence_penalty == all.presence_penalty);
    assert_int_equal(read.top_k, all.top_k);
    assert_int_equal(read.n_logprobs, all.n_logprobs);
}

static void test_seed_is_drawn_where_nobody_names_one(void **state) {
    (void)state;
    Sluice__V1__Sampling message = SLUICE__V1__SAMPLING__INIT;
    uint64_t a, b;
    const uint64_t known = 9;
    assert_int_equal(sl_job_choose_seed(NULL, NULL, &a, NULL), SL_OK);
    assert_int_equal(sl_job_choose_seed(&message, NULL, &b, NULL), SL_OK);
    assert_true(a != b && (a | b) < UINT64_C(1) << 53);
    assert_int_equal(sl_job_choose_seed(&message, &known, &a, NULL), SL_OK);
    assert_int_equal(a, 9);
    assert_false(sl_job_names_seed(NULL) || sl_job_names_seed(&message));
    const struct sl_sampling zero = {.seed = 0};
    message = sl_job_sampling_message(&zero); // which says all
    assert_true(sl_job_names_seed(&message));
    assert_int_equal(sl_job_choose_seed(&message, &known, &a, NULL), SL_OK);
    assert_int_equal(a, 0);
}

static void test_absent_sampling_is_greedy(void **state) {
    (void)state;
    const Sluice__V1__Sampling empty = SLUICE__V1__SAMPLING__INIT;
    const Sluice__V1__Sampling *const messages[] = {NULL, &empty};
    const struct sl_model_config silent = {.n_vocab = 10};
    for (int i = 0; i < 4; i++) {
        const struct sl_sampling read = sl_job_sampling(messages[i / 2], i % 2 == 0 ? NULL : &silent);
        assert_true(read.temperature == 0 && read.top_p == 1 && read.repetition_penalty == 1);
        assert_int_equal(sl_sampling_check(&read, NULL), SL_OK);
    }
}

// A field at a time: what the request says, else what the model says, else what we do.
static void test_absent_sampling_is_the_models(void **state) {
    (void)state;
    const struct sl_model_config model = {.sampling = {.has_temperature = true,
                                                       .temperature = 0.75f,
                                                       .top_k = 20,
                                                       .top_p = 0.5f,
                                                       .repetition_penalty = 1.25f,
                                                       .min_p = 0.25f}};
    struct sl_sampling read = sl_job_sampling(NULL, &model);
    assert_true(read.temperature == 0.75f && read.top_k == 20 && read.top_p == 0.5f);
    assert_true(read.repetition_penalty == 1.25f && read.min_p == 0.25f);
    const Sluice__V1__Sampling told = sl_job_model_sampling(&model);
    read = sl_job_sampling(&told, NULL);
    assert_true(read.temperature == 0.75f && read.top_k == 20 && read.top_p == 0.5f);
    assert_true(read.repetition_penalty == 1.25f && read.min_p == 0.25f);
    const struct sl_sampling zeros = {.top_p = 1, .repetition_penalty = 1};
    const Sluice__V1__Sampling said = sl_job_sampling_message(&zeros); // an explicit zero is not absent
    read = sl_job_sampling(&said, &model);
    assert_true(read.temperature == 0 && read.top_k == 0 && read.top_p == 1 && read.repetition_penalty == 1);
    assert_true(read.min_p == 0);

    Sluice__V1__Sampling usual = SLUICE__V1__SAMPLING__INIT;
    const struct sl_model_config silent = {.n_vocab = 10}, greedy = {.sampling = {.has_temperature = true}};
    usual.usual_temperature = 1;
    assert_true(sl_job_sampling(&usual, &silent).temperature == 1);
    assert_true(sl_job_sampling(&usual, &model).temperature == 0.75f);
    assert_true(sl_job_sampling(&usual, &greedy).temperature == 0);
    const Sluice__V1__Sampling nothing = sl_job_model_sampling(&silent);
    assert_true(sl_job_sampling(&nothing, &model).temperature == 0.75f);
}

static void test_ids_are_of_the_vocabulary(void **state) {
    (void)state;
    const struct sl_model_config model = {.n_vocab = 10};
    int32_t ids[] = {0, 9, 5};
    Sluice__V1__TokenIds message = SLUICE__V1__TOKEN_IDS__INIT;
    message.ids = ids;
    message.n_ids = 3;
    struct sl_error err = {0};
    assert_int_equal(sl_job_check_ids(&model, "prompt", &message, &err), SL_OK);
    assert_int_equal(sl_job_check_ids(&model, "resumed", NULL, &err), SL_OK);
    ids[1] = 10;
    assert_int_equal(sl_job_check_ids(&model, "prompt", &message, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "prompt: ids[1] is 10, must be 0 to 9");
    ids[1] = -1;
    assert_int_equal(sl_job_check_ids(&model, "prompt", &message, &err), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling_survives_its_message),
        cmocka_unit_test(test_seed_is_drawn_where_nobody_names_one),
        cmocka_unit_test(test_absent_sampling_is_greedy),
        cmocka_unit_test(test_absent_sampling_is_the_models),
        cmocka_unit_test(test_ids_are_of_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
