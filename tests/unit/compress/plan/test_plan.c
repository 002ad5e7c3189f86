// SPDX-License-Identifier: Apache-2.0
// Layouts, budgets and sizes that follow from recipe, model and prompt; worked out by hand here.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "engine/compress/plan/budget.h"
#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/capsule.h"
#include "engine/tensor/ops.h"

static const struct sl_kv_geometry geometry = {.n_layers = 4, .n_kv_heads = 2, .head_dim = 64};

static struct sl_plan make_plan(const char *text, int64_t n_prompt, bool local) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
        sl_recipe_resolve(&recipe, NULL, geometry.n_layers, &err) != SL_OK ||
        (local ? sl_plan_make_local : sl_plan_make)(&recipe, &geometry, n_prompt, 0, &plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    return plan;
}

static struct sl_plan plan_for(const char *text, int64_t n_prompt) {
    return make_plan(text, n_prompt, false);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
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
    struct sl_plan mixed = plan_for("format=f16/0-1:k4v2", 64);
    assert_int_equal(mixed.packed[0].k_format, SL_KV_INT4);
    assert_int_equal(mixed.packed[0].v_format, SL_KV_INT2);
    assert_int_equal(mixed.work[0].format, SL_KV_F16);
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
    // Steps go on evicting: they need a choice however short the prompt was.
    assert_int_equal(plan_for("streamingllm,budget=0.01,when=chunk+step", 3).budget_slots, 5);
    assert_int_equal(plan_for("roco,budget=0.2,when=chunk+step", 8).budget_slots,
                     plan_for("roco,budget=0.2,when=chunk+step", 30).budget_slots);
    assert_int_equal(plan_for("streamingllm,scope=sinks:4+tail:50,budget=0.01,when=chunk+step", 3).budget_slots, 5);
    assert_int_equal(plan_for("streamingllm,scope=sinks:4+tail:50,budget=0.01", 3).budget_slots, 3);
    assert_int_equal(plan_for("streamingllm", 100).budget_slots, 100); // 1024 is more than there is
    assert_int_equal(plan_for("streamingllm", 100).max_slots, 100);
}

static void test_plan_says_what_a_state_depends_on(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t n_prompt, n_tokens;
        bool evicts, can_truncate;
    } cases[] = {
        {"full", 2000, 1024, false, true},
        {"snapkv,budget=0.2", 2000, 1536, false, true}, // evicts at the end alone
        {"snapkv,budget=0.2,when=chunk", 2000, 1536, true, false},
        {"tova,budget=0.5", 2000, 1000, false, true}, // as many as the budget has
        {"tova,budget=0.5", 2000, 1001, true, false},
        {"h2o,budget=0.5", 2000, 512, false, false}, // scores add up over rows
        {"h2o,budget=0.5,when=end", 2000, 1536, false, false},
        {"streamingllm,scope=sinks:4+tail:1900,budget=512", 1900, 1024, false, true}, // all of it is a tail
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_plan plan = plan_for(cases[i].text, cases[i].n_prompt);
        if (sl_plan_evicts_within(&plan, 0, cases[i].n_tokens) != cases[i].evicts ||
            sl_plan_can_truncate(&plan, cases[i].n_tokens) != cases[i].can_truncate) {
            fail_msg("%s: of the first %lld tokens", cases[i].text, (long long)cases[i].n_tokens);
        }
    }
    struct sl_plan exempt = plan_for("tova,budget=0.5,exempt=1", 2000);
    assert_true(sl_plan_evicts_within(&exempt, 0, 1001));
    assert_false(sl_plan_evicts_within(&exempt, 1, 1001));
    assert_false(sl_plan_can_truncate(&exempt, 1001));
}

// --- what attention decides --------------------------------------------------------------------------------------

static void assert_budgets(const char *text, int64_t n_prompt, const int64_t *expected, int64_t total) {
    struct sl_plan plan = plan_for(text, n_prompt);
    for (int l = 0; l < 4; l++) {
        if (plan.layer_budget[l] != expected[l]) {
            fail_msg("%s: layer %d gets %lld, expected %lld", text, l, (long long)plan.layer_budget[l],
                     (long long)expected[l]);
        }
    }
    assert_int_equal(plan.total_budget, total);
}

static void test_plan_divides_over_layers(void **state) {
    (void)state;
    assert_budgets("full", 1000, (int64_t[]){1000, 1000, 1000, 1000}, 0);
    assert_budgets("h2o,budget=100", 1000, (int64_t[]){100, 100, 100, 100}, 400);
    assert_budgets("h2o,budget=100,exempt=0+last", 1000, (int64_t[]){1000, 100, 100, 1000}, 200);
    // 2b - b/20 = 390 down to 10, but one above the window of 32: 367 down to 33
    assert_budgets("pyramidkv,budget=200", 1000, (int64_t[]){367, 256, 144, 33}, 800);
    assert_budgets("pyramidkv,budget=1000", 4000, (int64_t[]){1950, 1317, 683, 50}, 4000);
    assert_budgets("pyramidkv,budget=1000", 1200, (int64_t[]){1200, 1067, 933, 800}, 4000); // no more than there is
    assert_budgets("pyramidkv,budget=1000", 500, (int64_t[]){500, 500, 500, 500}, 2000);
    // floor(.2 * 1004 * 4) = 803 in all
    struct sl_plan plan = plan_for("d2o", 1004);
    assert_int_equal(plan.total_budget, 803);
    assert_int_equal(plan.budget_slots, 200);
    assert_int_equal(plan.least_slots, 6); // 6 > 4 + floor(1.5)
    assert_budgets("d2o", 1004, (int64_t[]){785, 785, 785, 785}, 803);
    assert_budgets("d2o,exempt=0", 1004, (int64_t[]){1004, 590, 590, 590}, 602);
    assert_budgets("d2o,budget=0.9", 1000, (int64_t[]){1000, 1000, 1000, 1000}, 3600);
    assert_budgets("d2o,budget=0.001", 100, (int64_t[]){6, 6, 6, 6}, 24);
    // Steps fill what the prompt has left of a budget in slots; of a ratio there is nothing left,
    // but for what leaves a choice: 6 > 4 + floor(1.5).
    assert_budgets("h2o,budget=600,when=chunk+step", 100, (int64_t[]){600, 600, 600, 600}, 2400);
    assert_budgets("h2o,budget=600", 100, (int64_t[]){100, 100, 100, 100}, 400);
    assert_budgets("h2o,budget=0.5,when=chunk+step", 100, (int64_t[]){50, 50, 50, 50}, 200);
    assert_budgets("d2o,budget=0.5", 3, (int64_t[]){6, 6, 6, 6}, 24);
    assert_budgets("d2o,budget=0.5,when=end", 3, (int64_t[]){3, 3, 3, 3}, 12);
}

static void test_plan_tail_is_on_top(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("h2o,scope=recent:0.5+tail:100,budget=200,chunk=64", 1000);
    assert_int_equal(plan.tail_slots, 100);
    assert_int_equal(plan.budget_slots, 200);
    assert_int_equal(sl_plan_body_tokens(&plan), 900);
    assert_int_equal(plan.max_slots, 300); // the tail, which is larger than a chunk
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 0), 300);
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 7), 307);
    assert_int_equal(plan.capsule_bytes, 4 * 2 * 5 * plan.work[0].bytes);
    plan = plan_for("h2o,scope=tail:100,budget=200,chunk=128", 1000);
    assert_int_equal(plan.max_slots, 328);
    plan = plan_for("h2o,scope=tail:100,budget=950", 1000); // the body is shorter than the budget
    assert_int_equal(plan.budget_slots, 900);
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 0), 1000);
    for (int64_t n = 99; n <= 100; n++) { // nothing but tail: nothing is evicted
        plan = plan_for("h2o,scope=tail:100,budget=20", n);
        assert_int_equal(sl_plan_body_tokens(&plan), n);
        assert_int_equal(plan.budget_slots, n);
        assert_int_equal(sl_plan_layer_slots(&plan, 3, 0), n);
    }
    plan = plan_for("h2o,scope=tail:100,budget=20", 101);
    assert_int_equal(sl_plan_body_tokens(&plan), 1);
    plan = plan_for("full", 50);
    assert_int_equal(sl_plan_body_tokens(&plan), 50);
}

static void test_plan_steps_hold_the_budget(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("h2o,budget=128,when=chunk+step,exempt=1", 1000);
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 0), 128);
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 500), 129); // and the token that is being read
    assert_int_equal(sl_plan_layer_slots(&plan, 1, 500), 1500);
    size_t capsule = units(plan.capsule_bytes), page = units(plan.work[0].bytes), exempt = units(plan.work[1].bytes);
    assert_int_equal(sl_plan_decode_bytes(&plan, 0), capsule);
    assert_int_equal(sl_plan_decode_bytes(&plan, 500), capsule + 3 * 2 * page + 2 * 8 * exempt);
    plan = plan_for("h2o,budget=128,when=chunk+step", 100); // it fills the budget first
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 20), 120);
    assert_int_equal(sl_plan_layer_slots(&plan, 0, 500), 129);
    plan = plan_for("d2o,budget=0.5", 1000);
    assert_int_equal(sl_plan_decode_bytes(&plan, 500), units(plan.capsule_bytes) + 4 * 2 * units(plan.work[0].bytes));
}

static void test_plan_layouts_follow_the_score(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n_states;
    } cases[] = {{"random", 0}, {"streamingllm", 0}, {"h2o", 1},    {"scissorhands", 1}, {"tova", 0},
                 {"roco", 2},   {"snapkv", 0},       {"locret", 1}, {"d2o", 1},          {"full", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_plan plan = plan_for(cases[i].text, 1000);
        assert_int_equal(plan.work[0].n_states, cases[i].n_states);
        assert_int_equal(plan.work[0].has_positions, sl_recipe_evicts(&plan.recipe));
    }
    struct sl_plan plan = plan_for("roco,exempt=1", 1000); // no slot of layer 1 can go missing
    assert_false(plan.work[1].has_positions);
    assert_int_equal(plan.work[1].n_states, 0);
    struct sl_recipe recipe;
    assert_int_equal(sl_recipe_parse("tailorkv", &recipe, NULL), SL_OK);
    assert_int_equal(sl_recipe_resolve(&recipe, NULL, 4, NULL), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 1000, 0, &plan, NULL), SL_OK);
    assert_int_equal(plan.packed[0].format, SL_KV_INT2);
    assert_int_equal(plan.packed[3].format, SL_KV_F16);
    assert_false(plan.work[3].has_positions);
}

// --- what is offloaded -------------------------------------------------------------------------------------------

#define OFFLOAD "place=offload/1+3,scope=sinks:8+recent:60,topk=100,keep=30"

static void test_plan_offloaded_layers_are_in_kvstores(void **state) {
    (void)state;
    struct sl_plan plan = plan_for(OFFLOAD ",chunk=128", 10000);
    size_t page = 2 * 64 * 64 * 2, pages = 157; // of 10000 slots
    assert_false(plan.keeps_offloaded);
    assert_true(sl_plan_is_offloaded(&plan, 1) && sl_plan_is_offloaded(&plan, 3));
    assert_false(sl_plan_is_offloaded(&plan, 0) || sl_plan_is_offloaded(&plan, 2));
    assert_int_equal(plan.capsule_bytes, 2 * 2 * pages * page);
    assert_int_equal(plan.max_slots, 10000);
    assert_int_equal(sl_plan_held_slots(&plan), 4096 + 2 * 512 + 128);
    // Two resident layers, 82 pages a head of the others, and two tiles of 64 pages a head of one layer.
    assert_int_equal(plan.prefill_peak_bytes, (2 * 2 * pages + 2 * 2 * 82 + 2 * 2 * 64) * page);
    // 68 resident slots, and 130 rows a head: two and three pages.
    assert_int_equal(sl_plan_resident_slots(&plan), 68);
    assert_int_equal(sl_plan_layer_slots(&plan, 1, 0), 68);
    assert_int_equal(sl_plan_layer_slots(&plan, 1, 61), 129);
    assert_int_equal(sl_plan_row_places(&plan), 130);
    assert_int_equal(sl_plan_hot_cache_bytes(&plan), 2 * 2 * 3 * page);
    assert_int_equal(sl_plan_decode_bytes(&plan, 0), plan.capsule_bytes + 2 * 2 * (2 + 3) * page);
    // 10061 and 129 slots: a page more of each layer's heads
    assert_int_equal(sl_plan_decode_bytes(&plan, 61), plan.capsule_bytes + (2 * 2 * 1 + 2 * 2 * (3 + 3)) * page);
}

static void test_plan_of_a_short_prompt_holds_no_more_than_it(void **state) {
    (void)state;
    struct sl_plan plan = plan_for(OFFLOAD, 50);
    size_t page = 2 * 64 * 64 * 2;
    assert_int_equal(sl_plan_held_slots(&plan), 50);
    assert_int_equal(sl_plan_resident_slots(&plan), 50);
    assert_int_equal(sl_plan_row_places(&plan), 50);
    assert_int_equal(plan.capsule_bytes, 2 * 2 * page);
    assert_int_equal(plan.prefill_peak_bytes, 4 * 2 * page); // nothing is read back
    assert_int_equal(sl_plan_decode_bytes(&plan, 0), plan.capsule_bytes + 2 * 2 * (1 + 1) * page);
    plan = plan_for(OFFLOAD, SL_ATTEND_SPLIT); // one split: nothing is read back either
    assert_int_equal(plan.prefill_peak_bytes, 4 * 2 * 64 * page);
    plan = plan_for(OFFLOAD, SL_ATTEND_SPLIT + 1);
    assert_int_equal(plan.prefill_peak_bytes, (4 * 2 * 65 + 2 * 2 * 64) * page);
    plan = plan_for("full", 50);
    assert_true(sl_plan_held_slots(&plan) == 0 && sl_plan_resident_slots(&plan) == 0);
    assert_true(sl_plan_row_places(&plan) == 0 && sl_plan_hot_cache_bytes(&plan) == 0);
}

static void test_plan_of_one_process_keeps_offloaded_layers(void **state) {
    (void)state;
    struct sl_plan plan = make_plan(OFFLOAD, 10000, true), full = plan_for("full", 10000);
    assert_true(plan.keeps_offloaded);
    assert_false(sl_plan_is_offloaded(&plan, 1));
    assert_int_equal(plan.capsule_bytes, full.capsule_bytes);
    assert_int_equal(plan.prefill_peak_bytes, full.prefill_peak_bytes);
    assert_int_equal(sl_plan_layer_slots(&plan, 1, 5), 10005);
    assert_int_equal(sl_plan_hot_cache_bytes(&plan), 2 * 2 * (3 + 2) * 2 * 64 * 64 * 2);
    // Key indexes: 19 of 512 slots, one of 256, one of 16 that has room for 64.
    size_t part = 64 * 4,
           scan = 19 * units(part + 64 * 512 * 2) + units(part + 64 * 256 * 2) + units(part + 64 * 64 * 2);
    assert_int_equal(sl_plan_decode_bytes(&plan, 100),
                     sl_plan_decode_bytes(&full, 100) + sl_plan_hot_cache_bytes(&plan) + 2 * 2 * scan);
    plan = make_plan("h2o", 1000, true), full = plan_for("h2o", 1000); // nothing else differs
    assert_int_equal(plan.prefill_peak_bytes, full.prefill_peak_bytes);
    assert_int_equal(sl_plan_decode_bytes(&plan, 9), sl_plan_decode_bytes(&full, 9));
}

static void test_plan_remote_kv_has_pages_and_key_indexes(void **state) {
    (void)state;
    size_t f16 = 2 * 64 * 64 * 2, int8 = 64 * 64 + 64 * 4 + 64 * 64 + 64 * 4, part = 64 * 4;
    // 1100 tokens: two segments of 512, one of 64, one of 12. A copy of a segment has a part with absmax, in int8 and int1
    // another with scales, and channels that begin at multiples of 64 bytes.
    struct sl_plan plan = plan_for(OFFLOAD, 1100);
    assert_int_equal(sl_plan_remote_kv_bytes(&plan),
                     2 * 2 * (18 * f16 + 2 * units(part + 64 * 512 * 2) + 2 * units(part + 64 * 64 * 2)));
    plan = plan_for(OFFLOAD ",scan=int8", 1100);
    assert_int_equal(sl_plan_remote_kv_bytes(&plan),
                     2 * 2 * (18 * f16 + 2 * units(2 * part + 64 * 512) + 2 * units(2 * part + 64 * 64)));
    plan = plan_for(OFFLOAD ",scan=int1", 1100);
    assert_int_equal(sl_plan_remote_kv_bytes(&plan), 2 * 2 * (18 * f16 + 4 * units(2 * part + 64 * 64)));
    plan = plan_for(OFFLOAD ",format=int8,scan=int1", 1100); // the last page is not full; 1024 slots are under way
    assert_int_equal(sl_plan_remote_kv_bytes(&plan),
                     2 * 2 * (17 * units(int8) + f16 + 4 * units(2 * part + 64 * 64) + 16 * f16));
    plan = plan_for(OFFLOAD ",replicas=2,chunk=64", 100);
    assert_int_equal(sl_plan_remote_kv_bytes(&plan), 2 * 2 * (2 * f16 + 2 * units(part + 64 * 64 * 2)));
    plan = plan_for("full", 1000);
    assert_int_equal(sl_plan_remote_kv_bytes(&plan), 0);
}

// Rows are packed where they are kept: in the session of one process, by the stores of a cluster.
static void test_plan_packs_offloaded_rows_where_they_stay(void **state) {
    (void)state;
    struct sl_plan plan = plan_for("place=offload/2-,format=f16/1-:int8,scan=int1", 1000);
    assert_int_equal(plan.packed[1].format, SL_KV_INT8);
    assert_int_equal(plan.packed[2].format, SL_KV_F16);
    assert_int_equal(sl_plan_row_format(&plan), SL_KV_INT8);
    assert_int_equal(sl_plan_scan_format(&plan), SL_KV_INT1);
    plan = make_plan("place=offload/2-,format=f16/1-:int8,scan=int8", 1000, true);
    assert_int_equal(plan.work[2].format, SL_KV_F16);
    assert_int_equal(plan.packed[2].format, SL_KV_INT8);
    assert_int_equal(sl_plan_scan_format(&plan), SL_KV_INT8);
    plan = plan_for("place=offload/2-,format=f32/2-:bf16", 1000);
    assert_int_equal(sl_plan_row_format(&plan), SL_KV_BF16);
    assert_int_equal(sl_plan_scan_format(&plan), SL_KV_BF16);
    struct sl_kv_geometry odd = {.n_layers = 4, .n_kv_heads = 1, .head_dim = 80}; // which no store could pack either
    struct sl_error err;
    assert_int_equal(sl_plan_make(&plan.recipe, &odd, 100, 0, &plan, &err), SL_OK);
    plan.recipe.format = SL_KV_F16, plan.recipe.ranges[0].format = SL_KV_INT8;
    assert_int_equal(sl_plan_make(&plan.recipe, &odd, 100, 0, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "format=int8 cannot hold head_dim 80"));
}

/*
 * The worst case of prefill: steps of any size up to a chunk, two segments unacknowledged when the next is read, splits released once they
 * are acknowledged. And of decode: sinks, recent and new slots, and hot caches.
 */
static void test_plan_bounds_what_sessions_hold(void **state) {
    (void)state;
    srand(4);
    for (int round = 0; round < 40; round++) {
        char text[160];
        int chunk = 64 * (1 + rand() % (round % 4 == 0 ? 128 : 16));
        int64_t n_prompt = 1 + rand() % 30000, n_read = 0, held = 0;
        snprintf(text, sizeof text, "place=offload/1-,scope=sinks:%d+recent:%d,topk=%d,keep=%d,chunk=%d",
                 1 + rand() % 90, 1 + rand() % 90, 1 + rand() % 300, rand() % 300, chunk);
        struct sl_plan plan = plan_for(text, n_prompt);
        size_t bytes = plan.prefill_peak_bytes, n_heads = 2;
        void *memory = aligned_alloc(SL_ARENA_UNIT, bytes);
        struct sl_arena *arena;
        struct sl_session *session;
        assert_non_null(memory);
        assert_int_equal(sl_arena_create(memory, bytes, &arena, NULL), SL_OK);
        assert_int_equal(sl_plan_create_session(&plan, 0, arena, &session, NULL), SL_OK);
        size_t tile_bytes = n_heads * (SL_ATTEND_SPLIT / SL_PAGE_SLOTS) * plan.work[1].bytes;
        void *tiles[2] = {NULL, NULL};
        while (n_read < n_prompt) {
            int64_t step = 1 + rand() % chunk;
            step = step < n_prompt - n_read ? step : n_prompt - n_read;
            int64_t acknowledged = (n_read / SL_KV_SEGMENT_TOKENS - SL_KV_SEGMENTS_QUEUED) * SL_KV_SEGMENT_TOKENS;
            int64_t target = acknowledged > 0 ? acknowledged / SL_ATTEND_SPLIT * SL_ATTEND_SPLIT : 0;
            for (int l = 0; l < geometry.n_layers; l++) {
                for (int h = 0; h < geometry.n_kv_heads && sl_plan_is_offloaded(&plan, l); h++) {
                    sl_session_drop_pages(session, l, h, (uint32_t)((target - held) / SL_PAGE_SLOTS));
                }
                assert_int_equal(sl_session_reserve(session, l, (int)step), SL_OK);
                for (int h = 0; h < geometry.n_kv_heads; h++) {
                    uint32_t n_slots = session->layers[l].heads[h].n_slots + (uint32_t)step;
                    sl_session_set_slots(session, l, h, n_slots);
                    assert_true(!sl_plan_is_offloaded(&plan, l) || n_slots <= sl_plan_held_slots(&plan));
                }
            }
            held = target;
            for (int i = 0; i < 2 && held > 0 && tiles[i] == NULL; i++) {
                tiles[i] = sl_arena_alloc(arena, tile_bytes);
                assert_non_null(tiles[i]);
            }
            n_read += step;
            session->n_tokens = n_read;
        }
        assert_true(sl_capsule_body_bytes(session) <= plan.capsule_bytes);
        sl_arena_free(arena, tiles[0]), sl_arena_free(arena, tiles[1]);
        sl_session_destroy(&session);
        sl_arena_destroy(&arena);
        free(memory);

        int64_t n_new = 1 + rand() % 200;
        bytes = sl_plan_decode_bytes(&plan, n_new);
        memory = aligned_alloc(SL_ARENA_UNIT, bytes);
        assert_non_null(memory);
        assert_int_equal(sl_arena_create(memory, bytes, &arena, NULL), SL_OK);
        assert_int_equal(sl_plan_create_session(&plan, n_new, arena, &session, NULL), SL_OK);
        for (int l = 0; l < geometry.n_layers; l++) {
            int64_t slots = sl_plan_is_offloaded(&plan, l) ? sl_plan_resident_slots(&plan) : n_prompt;
            assert_int_equal(sl_session_reserve(session, l, (int)(slots + n_new)), SL_OK);
        }
        void *rows = sl_arena_alloc(arena, sl_plan_hot_cache_bytes(&plan));
        assert_non_null(rows);
        sl_arena_free(arena, rows);
        sl_session_destroy(&session);
        sl_arena_destroy(&arena);
        free(memory);
    }
}

// Any division that the recipe allows fits what the plan says.
static size_t bytes_of(const struct sl_plan *plan, int layer, int64_t slots) {
    return (size_t)(slots / 64) * plan->packed[layer].bytes + (slots % 64 != 0) * (size_t)plan->work[layer].bytes;
}

static void test_plan_capsule_bytes_bound_every_division(void **state) {
    (void)state;
    static const char *const formats[] = {"f16", "f32/1-2:int2", "int4", "int8/0-1:f32", "int1/3-:bf16"};
    srand(1);
    for (int round = 0; round < 20000; round++) {
        struct sl_kv_geometry g = {.n_layers = 4, .n_kv_heads = 1 + rand() % 4, .head_dim = 8 << rand() % 4};
        bool adaptive = rand() % 2, d2o = !adaptive || rand() % 2;
        char text[256];
        int tail = rand() % 2 ? rand() % 200 : 0, n_prompt = 1 + rand() % 600;
        snprintf(text, sizeof text, "score=aas,scope=recent:0.1%s%.0d,budget=%s%d,when=end%s%s%s,format=%s",
                 tail ? "+tail:" : "", tail, rand() % 2 ? "" : "0.", 5 + rand() % 90, adaptive ? ",heads=adaptive" : "",
                 d2o ? ",layers=d2o" : ",layers=pyramid", rand() % 3 ? "" : ",exempt=1", formats[rand() % 5]);
        struct sl_recipe recipe;
        struct sl_plan plan;
        struct sl_error err;
        if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
            sl_plan_make(&recipe, &g, n_prompt, 0, &plan, &err) != SL_OK) {
            fail_msg("%s: %s", text, err.text);
        }
        double weights[4];
        int64_t shares[4], body = sl_plan_body_tokens(&plan);
        int n = 0, first = sl_recipe_layer_evicts(&plan.recipe, 1) ? 1 : 0;
        for (int l = 0; l < 4; l++) {
            weights[l] = rand() % 3 ? (double)rand() : 0;
            n += sl_recipe_layer_evicts(&plan.recipe, l);
        }
        if (d2o) {
            sl_budget_divide(plan.total_budget, weights, n, plan.least_slots, plan.layer_budget[first], shares);
        }
        size_t bytes = 0;
        for (int l = 0, i = 0; l < 4; l++) {
            bool evicts = sl_recipe_layer_evicts(&plan.recipe, l);
            int64_t share = !evicts ? n_prompt : d2o ? shares[i++] : plan.layer_budget[l], left = share * g.n_kv_heads;
            for (int h = 0; h < g.n_kv_heads; h++) {
                int64_t slots = share, others = (g.n_kv_heads - 1 - h);
                if (adaptive && evicts && share < body) { // anything from a fifth to all that the others leave
                    int64_t least = larger(share / 5, left - others * body), most = left - others * (share / 5);
                    most = most < body ? most : body;
                    slots = others == 0 ? left : rand() % 2 ? most : least + rand() % (most - least + 1);
                }
                left -= slots;
                slots += evicts ? plan.tail_slots : 0;
                assert_true(slots <= sl_plan_layer_slots(&plan, l, 0));
                bytes += bytes_of(&plan, l, slots);
            }
        }
        if (bytes > plan.capsule_bytes) {
            fail_msg("%s, %d tokens: %zu bytes, the plan says %zu", text, n_prompt, bytes, plan.capsule_bytes);
        }
        if (plan.recipe.format == SL_KV_F16) { // where pages are alike: by a page per head at most
            assert_true(plan.capsule_bytes <= bytes + 4 * (size_t)g.n_kv_heads * plan.work[0].bytes);
        }
    }
}

// As jobs are planned: the recipe is resolved first.
static enum sl_status plan_recipe(const struct sl_recipe *recipe, const struct sl_kv_geometry *g, int64_t n_prompt,
                                  struct sl_plan *plan_out, struct sl_error *err) {
    struct sl_recipe resolved = *recipe;
    enum sl_status status = sl_recipe_resolve(&resolved, NULL, g->n_layers, err);
    return status == SL_OK ? sl_plan_make(&resolved, g, n_prompt, 0, plan_out, err) : status;
}

static void test_plan_refuses_what_does_not_fit(void **state) {
    (void)state;
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err;
    assert_int_equal(sl_recipe_parse("format=f16/2-4:int4", &recipe, &err), SL_OK);
    assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "format names layer 4, but the model has layers 0 to 3"));
    assert_int_equal(sl_recipe_parse("format=f16/4-:int4", &recipe, &err), SL_OK);
    assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);

    assert_int_equal(sl_recipe_parse("format=int4", &recipe, &err), SL_OK);
    struct sl_kv_geometry odd = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 80};
    assert_int_equal(plan_recipe(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "format=int4 cannot hold head_dim 80"));
    odd.head_dim = 12;
    assert_int_equal(plan_recipe(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    odd = (struct sl_kv_geometry){.n_layers = SL_MAX_LAYERS + 1, .n_kv_heads = 1, .head_dim = 64};
    assert_int_equal(plan_recipe(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    odd = (struct sl_kv_geometry){.n_layers = 1, .n_kv_heads = 0, .head_dim = 64};
    assert_int_equal(plan_recipe(&recipe, &odd, 100, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(plan_recipe(&recipe, &geometry, 0, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(plan_recipe(&recipe, &geometry, (1 << 24) + 1, &plan, &err), SL_ERR_INVALID);
    assert_int_equal(plan_recipe(&recipe, &geometry, 1 << 24, &plan, &err), SL_OK);

    static const struct {
        const char *text, *says;
    } cases[] = {
        {"h2o,exempt=4", "exempt names layer 4, but the model has layers 0 to 3"},
        {"h2o,exempt=0-2+last", "exempt names all 4 layers of the model"},
        {"place=offload/2-5", "place names layer 5, but the model has layers 0 to 3"},
        {"place=offload/4-", "place names layer 4"},
        {"place=offload/1-,channels=65", "channels=65, but keys of this model have 64; use channels=64 or fewer"},
        {"h2o,when=chunk+step,exempt=last,format=f16/2-:int2", "layer 2 is int2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(sl_recipe_parse(cases[i].text, &recipe, &err), SL_OK);
        assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
        if (strstr(err.text, cases[i].says) == NULL) {
            fail_msg("%s: said \"%s\", expected \"%s\"", cases[i].text, err.text, cases[i].says);
        }
    }
    assert_int_equal(sl_recipe_parse("tailorkv", &recipe, &err), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 100, 0, &plan, &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_recipe_parse("format=int4", &recipe, &err), SL_OK);

    // A recipe that was put together without the grammar is checked, too: whether its axes fit each other.
    recipe.budget.slots = 8;
    assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    recipe.score = SL_SCORE_AAS, recipe.when = SL_WHEN_CHUNK, recipe.sinks = 8;
    assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "8 sinks + 0 recent = 8 slots"));
    recipe.sinks = 7;
    assert_int_equal(plan_recipe(&recipe, &geometry, 100, &plan, &err), SL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_full_keeps_everything),
        cmocka_unit_test(test_plan_eviction_has_positions_and_states),
        cmocka_unit_test(test_plan_later_format_ranges_override),
        cmocka_unit_test(test_plan_ratio_is_of_the_prompt),
        cmocka_unit_test(test_plan_says_what_a_state_depends_on),
        cmocka_unit_test(test_plan_divides_over_layers),
        cmocka_unit_test(test_plan_tail_is_on_top),
        cmocka_unit_test(test_plan_steps_hold_the_budget),
        cmocka_unit_test(test_plan_layouts_follow_the_score),
        cmocka_unit_test(test_plan_offloaded_layers_are_in_kvstores),
        cmocka_unit_test(test_plan_of_a_short_prompt_holds_no_more_than_it),
        cmocka_unit_test(test_plan_of_one_process_keeps_offloaded_layers),
        cmocka_unit_test(test_plan_remote_kv_has_pages_and_key_indexes),
        cmocka_unit_test(test_plan_packs_offloaded_rows_where_they_stay),
        cmocka_unit_test(test_plan_bounds_what_sessions_hold),
        cmocka_unit_test(test_plan_capsule_bytes_bound_every_division),
        cmocka_unit_test(test_plan_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
