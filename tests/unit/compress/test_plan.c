// SPDX-License-Identifier: Apache-2.0
// Layouts, budgets and sizes that follow from recipe, model and prompt; worked out by hand here.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "base/arena.h"
#include "compress/compress.h"

static const struct sl_kv_geometry geometry = {.n_layers = 4, .n_kv_heads = 2, .head_dim = 64};

static struct sl_plan plan_for(const char *text, int64_t n_prompt) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
        sl_plan_make(&recipe, &geometry, n_prompt, &plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    return plan;
}

static size_t units(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

static void test_plan_full_keeps_everything(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("full", 1000);
    assert_int_equal(plan.budget_slots, 1000);
    assert_int_equal(plan.max_slots, 1000);
    assert_int_equal(plan.recent_slots, 0);
    for (int l = 0; l < 4; l++) {
        assert_int_equal(plan.work[l].format, SL_KV_F16);
        assert_false(plan.work[l].has_positions);
        assert_int_equal(plan.work[l].n_states, 0);
        assert_memory_equal(&plan.work[l], &plan.packed[l], sizeof plan.work[l]);
    }
    size_t page = 2 * 64 * 64 * 2; // K and V, 64 slots of 64 f16
    assert_int_equal(plan.capsule_bytes, 4 * 2 * 16 * page);
    assert_int_equal(plan.prefill_peak_bytes, 4 * 2 * 16 * page);
    assert_int_equal(sl_plan_decode_bytes(&plan, 0), 4 * 2 * 16 * page);
    assert_int_equal(sl_plan_decode_bytes(&plan, 24), 4 * 2 * 16 * page); // 1000 + 24 = 16 pages
    assert_int_equal(sl_plan_decode_bytes(&plan, 25), 4 * 2 * 17 * page);
}

static void test_plan_eviction_has_positions_and_states(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("h2o,budget=100,chunk=128,format=f32/2-:int4", 1000);
    assert_int_equal(plan.budget_slots, 100);
    assert_int_equal(plan.recent_slots, 50);
    assert_int_equal(plan.max_slots, 228);
    for (int l = 0; l < 4; l++) {
        assert_int_equal(plan.work[l].format, l < 2 ? SL_KV_F32 : SL_KV_F16);
        assert_int_equal(plan.packed[l].format, l < 2 ? SL_KV_F32 : SL_KV_INT4);
        assert_true(plan.work[l].has_positions && plan.packed[l].has_positions);
        assert_int_equal(plan.work[l].n_states, 1);
        assert_int_equal(plan.packed[l].n_states, l < 2 ? 1 : 0);
    }
    size_t f32 = 2 * 64 * 64 * 4 + 256 + 256, f16 = 2 * 64 * 64 * 2 + 256 + 256;
    size_t int4 = 64 * 32 + 64 * 4 + 64 * 32 + 64 * 4 + 256;
    assert_int_equal(plan.work[0].bytes, f32);
    assert_int_equal(plan.work[3].bytes, f16);
    assert_int_equal(plan.packed[3].bytes, int4);
    // 100 slots: one full page and a tail; quantized layers keep the tail in f16.
    assert_int_equal(plan.capsule_bytes, 2 * (2 * 2 * f32 + 2 * (int4 + f16)));
    // Two pages a head everywhere, and 228 slots (4 pages) in the layer at work: f32 is the largest.
    assert_int_equal(plan.prefill_peak_bytes, 2 * 2 * (2 * units(f32) + 2 * units(f16)) + 2 * 2 * units(f32));
    plan = plan_for("streamingllm,budget=100", 1000);
    assert_int_equal(plan.work[0].n_states, 0);
    assert_true(plan.work[0].has_positions);
    plan = plan_for("h2o,budget=100,when=end", 1000);
    assert_int_equal(plan.max_slots, 1000);
    assert_int_equal(plan.prefill_peak_bytes, 4 * 2 * 16 * units(f16));
}

static void test_plan_later_format_ranges_override(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("format=f16/-2:int4/1-1:int2", 64);
    assert_int_equal(plan.packed[0].format, SL_KV_INT4);
    assert_int_equal(plan.packed[1].format, SL_KV_INT2);
    assert_int_equal(plan.packed[2].format, SL_KV_INT4);
    assert_int_equal(plan.packed[3].format, SL_KV_F16);
    // One round of packing: a packed page per head beside the page that it replaces.
    assert_int_equal(plan.prefill_peak_bytes, 4 * 2 * units(plan.work[0].bytes) + 2 * units(plan.packed[0].bytes));
}

static void test_plan_ratio_is_of_the_prompt(void **state) {
    (void)state;
    assert_int_equal(plan_for("h2o,budget=0.2", 1004).budget_slots, 200);
    assert_int_equal(plan_for("h2o,budget=0.2", 1004).recent_slots, 100);
    assert_int_equal(plan_for("h2o,budget=0.2", 3).budget_slots, 1); // 0.6, and recent:0.5 protects none of 1
    assert_int_equal(plan_for("streamingllm,budget=0.01", 300).budget_slots, 5); // one above four sinks
    assert_int_equal(plan_for("streamingllm,budget=0.01", 3).budget_slots, 3);   // not above the prompt
    // 0.01 * 400 = 4; the least b with b > 4 + floor(0.75 b) is 17: 17 > 4 + 12
    assert_int_equal(plan_for("h2o,scope=sinks:4+recent:0.75,budget=0.01", 400).budget_slots, 17);
    assert_int_equal(plan_for("h2o,scope=sinks:4+recent:100,budget=0.01", 400).budget_slots, 105);
    assert_int_equal(plan_for("h2o,scope=sinks:4+recent:0.9999999999999999,budget=0.01", 400).budget_slots, 400);
    assert_int_equal(plan_for("streamingllm", 100).budget_slots, 100); // 1024 is more than there is
    assert_int_equal(plan_for("streamingllm", 100).max_slots, 100);
}

static void test_plan_refuses_what_does_not_fit(void **state) {
    (void)state;
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err;
    assert_int_equal(sl_recipe_parse("format=f16/2-4:int4", &recipe, &err), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "format names layer 4, but the model has layers 0 to 3"));
    assert_int_equal(sl_recipe_parse("format=f16/4-:int4", &recipe, &err), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);

    assert_int_equal(sl_recipe_parse("format=int4", &recipe, &err), SL_OK);
    struct sl_kv_geometry odd = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 80};
    assert_int_equal(sl_plan_make(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "format=int4 cannot hold head_dim 80"));
    odd.head_dim = 12;
    assert_int_equal(sl_plan_make(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    odd = (struct sl_kv_geometry){.n_layers = SL_MAX_LAYERS + 1, .n_kv_heads = 1, .head_dim = 64};
    assert_int_equal(sl_plan_make(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    odd = (struct sl_kv_geometry){.n_layers = 1, .n_kv_heads = 0, .head_dim = 64};
    assert_int_equal(sl_plan_make(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 0, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(sl_plan_make(&recipe, &geometry, (1 << 24) + 1, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 1 << 24, &plan, &err), SL_OK);

    // Recipes that were put together without the grammar are checked as well.
    recipe.budget.slots = 8;
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    recipe.score = SL_SCORE_AAS, recipe.when = SL_WHEN_CHUNK, recipe.sinks = 8;
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "8 sinks + 0 recent = 8 slots"));
    recipe.sinks = 7;
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_OK);
    recipe.chunk_tokens = 100;
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_full_keeps_everything),
        cmocka_unit_test(test_plan_eviction_has_positions_and_states),
        cmocka_unit_test(test_plan_later_format_ranges_override),
        cmocka_unit_test(test_plan_ratio_is_of_the_prompt),
        cmocka_unit_test(test_plan_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
