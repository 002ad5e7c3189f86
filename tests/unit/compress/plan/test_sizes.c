// SPDX-License-Identifier: Apache-2.0
/*
 * Sizes of long contexts: 32 layers of 8 KV heads of 128 channels, a million tokens and the longest prompt that a recipe
 * takes. Nothing of the cache is allocated: every number is what the functions say, held to products in 64 bits that are
 * worked out here.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "base/arena.h"
#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/capsule.h"

#define MILLION  ((int64_t)1 << 20)
#define N_LAYERS 32
#define N_HEADS  8
#define D        128

static const struct sl_kv_geometry geometry = {N_LAYERS, N_HEADS, D};

static struct sl_plan plan_for(const char *text, int64_t n_prompt) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
        sl_plan_make(&recipe, &geometry, n_prompt, 0, &plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    return plan;
}

static void test_sizes_of_the_full_cache(void **state) {
    static const int64_t lengths[] = {MILLION, SL_RECIPE_MAX_SLOTS};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct sl_plan plan = plan_for("full", lengths[i]);
        size_t tokens = (size_t)lengths[i] * N_LAYERS * N_HEADS;
        assert_true(plan.capsule_bytes == tokens * D * 2 * 2); // K and V in f16; whole pages
        assert_true(plan.prefill_peak_bytes == plan.capsule_bytes);
        // 64 tokens more are a page of every head
        assert_true(sl_plan_decode_bytes(&plan, 64) ==
                    plan.capsule_bytes + (size_t)64 * N_LAYERS * N_HEADS * D * 2 * 2);
        assert_int_equal(plan.max_slots, lengths[i]);

        plan = plan_for("full,format=int4", lengths[i]);
        // codes, and a scale and a zero in f16 for every channel of 64 keys and every 64 channels of a value
        assert_true(plan.capsule_bytes == tokens * D + tokens / 64 * (D + 2 * 64) * 4);
        assert_true(plan.prefill_peak_bytes > tokens * D * 2 * 2); // it is read in f16
    }
}

static void test_sizes_of_budgets(void **state) {
    static const char *const recipes[] = {"h2o,budget=0.25",   "snapkv,budget=0.25", "pyramidkv,budget=0.25",
                                          "adakv,budget=0.25", "d2o,budget=0.25",    "streamingllm,budget=262144"};
    static const int64_t lengths[] = {MILLION, SL_RECIPE_MAX_SLOTS};
    (void)state;
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        for (size_t n = 0; n < 2; n++) {
            struct sl_plan plan = plan_for(recipes[i], lengths[n]);
            double all = (double)lengths[n] * N_LAYERS * N_HEADS * D * 2 * 2;
            double share = plan.recipe.budget.slots > 0 ? 262144.0 / (double)lengths[n] : 0.25;
            double is = (double)plan.capsule_bytes / all; // with scores and positions, a partly filled page a head
            // layers that d2o and others exempt are kept whole
            if (is < share || is > share * 1.1 + 0.25) {
                fail_msg("%s, %lld tokens: a share of %g", recipes[i], (long long)lengths[n], is);
            }
            assert_true(plan.prefill_peak_bytes >= plan.capsule_bytes);
            assert_true(sl_plan_decode_bytes(&plan, MILLION) >= plan.capsule_bytes);
            int64_t sum = 0;
            for (int l = 0; l < N_LAYERS; l++) {
                assert_true(plan.layer_budget[l] > 0);
                sum += plan.layer_budget[l];
            }
            assert_true(sum > 0 && plan.total_budget > 0 && plan.total_budget <= sum);
        }
    }
}

// The page tables are real; what they would point to is not. A header tells what such a session would ship.
static void test_sizes_of_a_session_and_its_capsule(void **state) {
    static char memory[SL_ARENA_UNIT] __attribute__((aligned(SL_ARENA_UNIT)));
    struct sl_arena *arena;
    struct sl_session *session;
    struct sl_error err = {0};
    (void)state;
    struct sl_plan plan = plan_for("full", MILLION);
    assert_int_equal(sl_arena_create(memory, sizeof memory, &arena, &err), SL_OK);
    assert_int_equal(sl_plan_create_session(&plan, 4096, arena, &session, &err), SL_OK);
    session->n_tokens = MILLION;
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < N_HEADS; h++) {
            assert_int_equal(session->layers[l].heads[h].cap_pages, (MILLION + 4096) / SL_PAGE_SLOTS);
            session->layers[l].heads[h].n_slots = (uint32_t)MILLION;
        }
    }
    size_t layer_bytes = (size_t)MILLION * N_HEADS * D * 2 * 2;
    assert_true(sl_capsule_layer_bytes(session, N_LAYERS - 1) == layer_bytes);
    assert_true(sl_capsule_body_bytes(session) == N_LAYERS * layer_bytes);

    uint8_t *header;
    size_t header_bytes;
    struct sl_capsule_id id = {1, 2, {{3}}};
    struct sl_capsule_info info;
    assert_int_equal(sl_capsule_write_header(session, &id, &header, &header_bytes, &err), SL_OK);
    assert_int_equal(sl_capsule_read_header(header, header_bytes, &info, &err), SL_OK);
    assert_true(info.body_bytes == N_LAYERS * layer_bytes);
    assert_int_equal(info.n_tokens, MILLION);
    assert_false(info.evicted);
    free(header);

    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < N_HEADS; h++) {
            session->layers[l].heads[h].n_pages = (uint32_t)(MILLION / SL_PAGE_SLOTS);
        }
    }
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    assert_true(stats.resident_bytes == N_LAYERS * layer_bytes);
    assert_true(stats.n_slots_mean == (double)MILLION);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < N_HEADS; h++) {
            session->layers[l].heads[h].n_slots = session->layers[l].heads[h].n_pages = 0;
        }
    }
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
}

// Segments of a prompt that was continued from quantized pages are not shared with a prompt that was read exactly.
static void test_segments_are_shared_by_prompts_that_were_read_alike(void **state) {
    (void)state;
    static const struct {
        const char *recipe;
        int alike; // the first of those with the same segments
    } cases[] = {{"full,place=offload/1-", 0},
                 {"full,place=offload/1-,retrieve=pull,topk=7", 0},
                 {"full,place=offload/1-,format=f16/0-0:int2", 2},
                 {"full,place=offload/1-,format=f16/0-0:int2,retrieve=pull,replicas=2", 2},
                 {"full,place=offload/1-,format=f16/0-0:int4", 4},
                 {"random,place=offload/1-,budget=0.5", 5},
                 {"random,place=offload/1-,budget=0.5,chunk=256", 6}};
    enum { N_CASES = sizeof cases / sizeof cases[0] };
    uint64_t fingerprints[N_CASES];
    struct sl_plan *plan = malloc(sizeof *plan);
    assert_non_null(plan);
    for (int i = 0; i < N_CASES; i++) {
        struct sl_recipe recipe;
        struct sl_kv_geometry small = {4, 2, 64}; // layers, KV heads, channels
        assert_int_equal(sl_recipe_parse(cases[i].recipe, &recipe, NULL), SL_OK);
        assert_int_equal(sl_recipe_resolve(&recipe, NULL, small.n_layers, NULL), SL_OK);
        assert_int_equal(sl_plan_make(&recipe, &small, 1000, 0, plan, NULL), SL_OK);
        fingerprints[i] = sl_plan_segments_fingerprint(plan, 77);
        for (int j = 0; j <= i; j++) {
            assert_int_equal(fingerprints[i] == fingerprints[j], cases[i].alike == cases[j].alike);
        }
    }
    assert_true(fingerprints[0] == 77);
    free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_the_full_cache),
        cmocka_unit_test(test_sizes_of_budgets),
        cmocka_unit_test(test_sizes_of_a_session_and_its_capsule),
        cmocka_unit_test(test_segments_are_shared_by_prompts_that_were_read_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
