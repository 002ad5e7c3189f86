// SPDX-License-Identifier: Apache-2.0
// Sessions from elsewhere that do not match their recipe are refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/compress/plan/plan.h"
#include "engine/job/job_recipe.h"

#define ARENA_BYTES ((size_t)4 << 20)

static const struct sl_kv_geometry geometry = {2, 2, 64};

static void make_plan(const char *text, struct sl_plan *plan) {
    struct sl_recipe recipe;
    assert_int_equal(sl_recipe_parse(text, &recipe, NULL), SL_OK);
    assert_int_equal(sl_recipe_resolve(&recipe, NULL, geometry.n_layers, NULL), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 500, 0, plan, NULL), SL_OK);
}

// Returns whether a session made for one recipe is accepted for another.
static enum sl_status check(const char *made_for, const char *taken_for) {
    void *memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    struct sl_arena *arena;
    struct sl_session *session;
    struct sl_plan plan;
    assert_int_equal(sl_arena_create(memory, ARENA_BYTES, &arena, NULL), SL_OK);
    make_plan(made_for, &plan);
    assert_int_equal(sl_plan_create_session(&plan, 0, arena, &session, NULL), SL_OK);
    make_plan(taken_for, &plan);
    enum sl_status status = sl_job_check_session(&plan, session, NULL);
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
    free(memory);
    return status;
}

static void test_job_session_of_its_own_recipe_passes(void **state) {
    (void)state;
    static const char *const recipes[] = {"full", "h2o,budget=100", "d2o", "full,format=int4", "streamingllm"};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        assert_int_equal(check(recipes[i], recipes[i]), SL_OK);
    }
}

// A step would write its scores past the end of pages that have no room for them.
static void test_job_session_without_the_scores_is_refused(void **state) {
    (void)state;
    assert_int_equal(check("full", "d2o"), SL_ERR_PEER_CORRUPT);
    assert_int_equal(check("tova", "roco"), SL_ERR_PEER_CORRUPT);
}

static void test_job_session_of_another_format_is_refused(void **state) {
    (void)state;
    assert_int_equal(check("full", "full,format=int4"), SL_ERR_PEER_CORRUPT);
    assert_int_equal(check("full", "full,format=f16/1-:int4"), SL_ERR_PEER_CORRUPT);
    assert_int_equal(check("full", "full,format=bf16"), SL_ERR_PEER_CORRUPT);
}

// Decode would fetch remote KV that does not exist, or ignore remote KV that does.
static void test_job_session_of_other_offloaded_layers_is_refused(void **state) {
    (void)state;
    assert_int_equal(check("place=offload/1", "place=offload/1,topk=7"), SL_OK);
    assert_int_equal(check("full", "place=offload/1"), SL_ERR_PEER_CORRUPT);
    assert_int_equal(check("place=offload/1", "full"), SL_ERR_PEER_CORRUPT);
}

static void test_job_session_of_other_positions_is_refused(void **state) {
    (void)state;
    assert_int_equal(check("h2o,budget=100", "h2o,budget=100,positions=slot"), SL_ERR_PEER_CORRUPT);
}

static void test_job_session_of_another_length_of_context_is_refused(void **state) {
    (void)state;
    void *memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    struct sl_arena *arena;
    struct sl_session *session;
    struct sl_plan plan;
    assert_int_equal(sl_arena_create(memory, ARENA_BYTES, &arena, NULL), SL_OK);
    make_plan("full", &plan);
    plan.rope_set = 1;
    assert_int_equal(sl_plan_create_session(&plan, 0, arena, &session, NULL), SL_OK);
    assert_int_equal(sl_job_check_session(&plan, session, NULL), SL_OK);
    plan.rope_set = 0;
    assert_int_equal(sl_job_check_session(&plan, session, NULL), SL_ERR_PEER_CORRUPT);
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
    free(memory);
}

// Windows are ranges of original positions, and layers that have one cannot be searched.
static void test_job_recipe_fits_the_windows_of_the_model(void **state) {
#define OFFLOAD "place=offload/1,scope=sinks:4+recent:8,topk=16,channels=4"
    (void)state;
    struct sl_model_config model;
    struct sl_recipe recipe;
    struct sl_error err = {0};
    assert_int_equal(sl_model_config_load("tests/golden/families/qwen2_window", &model, &err), SL_OK); // of layer 1
    assert_int_equal(sl_job_recipe("h2o,budget=100", &model, &recipe, &err), SL_OK);
    assert_int_equal(sl_job_recipe("h2o,budget=100,positions=slot", &model, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "positions=original"));
    assert_int_equal(sl_job_recipe(OFFLOAD, &model, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "layer 1"));
    model.window_layers[0] = 1; // of layer 0 instead
    assert_int_equal(sl_job_recipe(OFFLOAD, &model, &recipe, &err), SL_OK);
}

static void test_job_default_recipe_is_one_that_the_model_can_keep(void **state) {
    (void)state;
    struct sl_model_config model;
    struct sl_error err;
    assert_int_equal(sl_model_config_load("models/demo", &model, &err), SL_OK);
    assert_string_equal(sl_job_default_recipe(&model), "full,format=int8");
    struct sl_page_layout layout;
    model.head_dim = 80;
    assert_int_not_equal(sl_page_layout_init(&layout, SL_KV_INT8, model.head_dim, 0, false), SL_OK);
    assert_string_equal(sl_job_default_recipe(&model), "full");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_session_of_its_own_recipe_passes),
        cmocka_unit_test(test_job_session_without_the_scores_is_refused),
        cmocka_unit_test(test_job_session_of_another_format_is_refused),
        cmocka_unit_test(test_job_session_of_other_offloaded_layers_is_refused),
        cmocka_unit_test(test_job_session_of_other_positions_is_refused),
        cmocka_unit_test(test_job_session_of_another_length_of_context_is_refused),
        cmocka_unit_test(test_job_recipe_fits_the_windows_of_the_model),
        cmocka_unit_test(test_job_default_recipe_is_one_that_the_model_can_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
