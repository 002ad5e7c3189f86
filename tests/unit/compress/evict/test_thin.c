// SPDX-License-Identifier: Apache-2.0
// Compares the slots of offloaded layers that a budget leaves with a choice made slot by slot from the recipe's text alone.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "engine/tensor/cpu/device.h"

#define N_PROMPT 700
#define SINKS    5
#define RECENT   40
#define OFFLOADS "place=offload/1-,scope=sinks:5+recent:40,channels=4,format=f32,chunk=128,topk=32"

static struct run run_of(int64_t n_prompt, int64_t n_steps) {
    return (struct run){.geometry = {.n_layers = 3, .n_kv_heads = 2, .head_dim = 16},
                        .group = 2,
                        .n_prompt = n_prompt,
                        .n_steps = n_steps,
                        .scale = 0.1f,
                        .seed = 5};
}

// Which token every slot of a head is, by its key.
static uint32_t tokens_of(const struct run *run, int layer, int head, int64_t *tokens_out) {
    struct sl_kv kv = run_kv(run, layer, head);
    for (uint32_t j = 0; j < kv.n_slots; j++) {
        const float *key = (const float *)kv.pages[j / SL_PAGE_SLOTS] + (size_t)(j % SL_PAGE_SLOTS) * 16;
        int64_t token = j == 0 ? 0 : tokens_out[j - 1] + 1;
        for (int c = 0; c < 16; c++) {
            if (token < run->n_read && key[c] != run_element(run, RUN_K, layer, token, head, c)) {
                token++;
                c = -1;
            }
        }
        assert_true(token < run->n_read); // ascending, and none twice
        tokens_out[j] = token;
    }
    return kv.n_slots;
}

static float importance_of(const struct run *run, int layer, int64_t token, int head) {
    return run_element(run, RUN_CIS_HIGH, layer, token, head, 0) +
           run_element(run, RUN_CIS_LOW, layer, token, head, 0) / 256;
}

// The recipe's words: of n tokens, ceil(ratio * n) stay, but more than sinks and recent.
static int64_t n_allowed(double ratio, int64_t n) {
    int64_t most = SINKS + RECENT + 1, share = (int64_t)ceil(ratio * (double)n);
    most = share > most ? share : most;
    return n < most ? n : most;
}

/*
 * Evicts one slot after the other while there are too many: the slot of the least importance (of equal ones the newest). Slots that were
 * decided before, sinks and the newest slots stay.
 */
static int64_t choose(const struct run *run, int layer, int head, double ratio, int step, int64_t *kept) {
    int64_t n = 0, decided = 0; // kept[0 .. decided) stay
    for (int64_t begin = 0; begin < N_PROMPT; begin += step) {
        int64_t end = begin + step < N_PROMPT ? begin + step : N_PROMPT;
        for (int64_t t = begin; t < end; t++) {
            kept[n++] = t;
        }
        while (n > n_allowed(ratio, end)) {
            int64_t worst = -1;
            for (int64_t i = decided; i < n; i++) {
                if (kept[i] >= SINKS && kept[i] < end - RECENT &&
                    (worst < 0 ||
                     importance_of(run, layer, kept[i], head) <= importance_of(run, layer, kept[worst], head))) {
                    worst = i;
                }
            }
            assert_true(worst >= 0);
            memmove(kept + worst, kept + worst + 1, (size_t)(n - worst - 1) * sizeof *kept);
            n--;
        }
        while (decided < n && kept[decided] < end - RECENT) {
            decided++;
        }
    }
    return n;
}

static void test_thin_keeps_what_the_recipe_says(void **state) {
    (void)state;
    static const double ratios[] = {0.5, 0.3, 0.8, 0.05, 0.999999};
    static const int steps[] = {128, 64, 100, 30, 7}; // the last two are shorter than what is recent
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
            char recipe[256];
            struct run run = run_of(N_PROMPT, 0);
            snprintf(recipe, sizeof recipe, OFFLOADS ",score=cis,budget=%g,when=chunk", ratios[i]);
            run_start(&run, recipe);
            run_prompt(&run, steps[s]);
            struct sl_compress_stats stats;
            int64_t n_evicted = 0;
            for (int l = 0; l < 3; l++) {
                for (int h = 0; h < 2; h++) {
                    int64_t tokens[N_PROMPT], kept[N_PROMPT];
                    uint32_t n = tokens_of(&run, l, h, tokens);
                    int64_t n_kept = l == 0 ? N_PROMPT : choose(&run, l, h, ratios[i], steps[s], kept);
                    assert_int_equal(n, n_kept);
                    assert_int_equal(n, l == 0 ? N_PROMPT : sl_plan_offloaded_slots(&run.plan, N_PROMPT));
                    for (uint32_t j = 0; j < n; j++) {
                        assert_int_equal(tokens[j], l == 0 ? j : kept[j]);
                    }
                    n_evicted += N_PROMPT - n;
                }
            }
            sl_compressor_get_stats(run.compressor, &stats);
            assert_int_equal(stats.slots_evicted, n_evicted);
            struct sl_arena_stats arena;
            sl_arena_get_stats(run.arena, &arena);
            assert_true(arena.high_water_bytes <= run.plan.prefill_peak_bytes);
            run_stop(&run);
        }
    }
}

// V goes with its K.
static void test_thin_keeps_rows_together(void **state) {
    (void)state;
    struct run run = run_of(N_PROMPT, 0);
    run_start(&run, OFFLOADS ",score=cis,budget=0.5,when=chunk");
    run_prompt(&run, 128);
    int64_t tokens[N_PROMPT];
    uint32_t n = tokens_of(&run, 2, 1, tokens);
    struct sl_kv kv = run_kv(&run, 2, 1);
    for (uint32_t j = 0; j < n; j++) {
        const char *page = kv.pages[j / SL_PAGE_SLOTS];
        const float *value = (const float *)(page + kv.work->v) + (size_t)(j % SL_PAGE_SLOTS) * 16;
        for (int c = 0; c < 16; c++) {
            assert_true(value[c] == run_element(&run, RUN_V, 2, tokens[j], 1, c));
        }
    }
    run_stop(&run);
}

// Chance protects the same and keeps as many, other slots in every head and for every seed, and the same ones again.
static void test_thin_by_chance(void **state) {
    (void)state;
    int64_t kept[4][N_PROMPT];
    uint32_t n = 0;
    static const int seeds[] = {1, 1, 2}, heads[] = {0, 0, 0, 1};
    for (int i = 0; i < 4; i++) {
        struct run run = run_of(N_PROMPT, 0);
        char recipe[256];
        snprintf(recipe, sizeof recipe, OFFLOADS ",score=random,seed=%d,budget=0.4,when=chunk", seeds[i % 3]);
        run_start(&run, recipe);
        run_prompt(&run, 128);
        n = tokens_of(&run, 1, heads[i], kept[i]);
        assert_int_equal(n, 280);
        for (int j = 0; j < SINKS; j++) {
            assert_int_equal(kept[i][j], j);
        }
        for (uint32_t j = 0; j < RECENT; j++) {
            assert_int_equal(kept[i][n - 1 - j], N_PROMPT - 1 - j);
        }
        run_stop(&run);
    }
    assert_memory_equal(kept[0], kept[1], n * sizeof kept[0][0]);
    assert_memory_not_equal(kept[0], kept[2], n * sizeof kept[0][0]);
    assert_memory_not_equal(kept[0], kept[3], n * sizeof kept[0][0]);
}

// A budget that evicts nothing, and prompts that are not longer than what is protected, are no budget at all: the same
// bits, in steps of retrieval too.
static void test_thin_of_nothing_is_no_budget(void **state) {
    (void)state;
    static const int64_t lengths[] = {N_PROMPT, SINKS + RECENT + 1, 3};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct run with = run_of(lengths[i], 3), without = run_of(lengths[i], 3);
        run_start(&with, i == 0 ? OFFLOADS ",score=cis,budget=0.999999,when=chunk"
                                : OFFLOADS ",score=cis,budget=0.1,when=chunk");
        run_start(&without, OFFLOADS);
        run_prompt(&with, 128);
        run_prompt(&without, 128);
        for (int step = 0; step < 3; step++) {
            run_pass(&with, 1, RUN_STEP);
            run_pass(&without, 1, RUN_STEP);
            for (int l = 0; l < 3; l++) {
                assert_memory_equal(with.out[l], without.out[l], 4 * 16 * sizeof(float));
            }
        }
        assert_int_equal(run_kv(&with, 1, 0).n_slots, lengths[i] + 3);
        run_stop(&with);
        run_stop(&without);
    }
}

/*
 * A step finds its topk among the slots that are there: where they are as many as there are to choose from but one, it
 * attends to all of them, and the one that is left out is one in the middle.
 */
static void test_thin_is_searched_by_slots(void **state) {
    (void)state;
    enum { N_KEPT = N_PROMPT / 2, TOPK = N_KEPT - SINKS - RECENT - 1 };
    struct run run = run_of(N_PROMPT, 1);
    char recipe[256];
    snprintf(recipe, sizeof recipe, OFFLOADS ",topk=%d,channels=16,score=cis,budget=0.5,when=chunk", TOPK);
    run_start(&run, recipe);
    run_prompt(&run, 128);
    run_pass(&run, 1, RUN_STEP);
    struct sl_retriever_stats stats;
    sl_retriever_get_stats(run.offloaded.retriever, &stats);
    assert_int_equal(stats.rows_fetched, 2 * 2 * TOPK); // two layers of two heads
    for (int l = 1; l < 3; l++) {
        struct sl_kv kv[2] = {run_kv(&run, l, 0), run_kv(&run, l, 1)};
        float out[4 * 16];
        struct sl_attend all = run_attend(&run, l, 0, kv, out);
        assert_int_equal(kv[0].n_slots, N_KEPT + 1);
        run.ops->attend(NULL, &all, 1);
        // One slot of 351, with little attention.
        for (int i = 0; i < 4 * 16; i++) {
            assert_true(fabsf(out[i] - run.out[l][i]) < 0.02f);
        }
    }
    run_stop(&run);
}

static void test_thin_counts_slots(void **state) {
    (void)state;
    srand(3);
    for (int round = 0; round < 300; round++) {
        struct sl_plan plan = {.recipe = {.sinks = rand() % 20, .topk = 8}};
        plan.recipe.recent.slots = rand() % 200;
        plan.recipe.budget.ratio = (1 + rand() % 999) / 1000.0;
        sl_layers_add(&plan.recipe.offload, 1);
        int64_t scope = plan.recipe.sinks + plan.recipe.recent.slots, before = 0;
        for (int64_t n = 0; n < 3000; n++) {
            int64_t slots = sl_plan_offloaded_slots(&plan, n);
            assert_in_range(slots - before, 0, n > 0);
            assert_true(slots >= (n < scope + 1 ? n : scope + 1));
            assert_true(slots >= plan.recipe.budget.ratio * (double)n - 1e-6);
            assert_true(slots <= scope + 1 || slots < plan.recipe.budget.ratio * (double)n + 1 + 1e-6);
            before = slots;
        }
    }
}

// Memory of stores, and of prefill, follows the budget; resident layers are whole.
static void test_thin_halves_what_is_stored(void **state) {
    (void)state;
    struct sl_kv_geometry geometry = {4, 2, 64};
    struct sl_plan plans[2];
    static const char *const texts[] = {"place=offload/2-,scope=sinks:8+recent:56",
                                        "place=offload/2-,scope=sinks:8+recent:56,score=cis,budget=0.5,when=chunk"};
    for (int i = 0; i < 2; i++) {
        struct sl_recipe recipe;
        struct sl_error err;
        assert_int_equal(sl_recipe_parse(texts[i], &recipe, &err), SL_OK);
        assert_int_equal(sl_recipe_resolve(&recipe, NULL, geometry.n_layers, &err), SL_OK);
        assert_int_equal(sl_plan_make(&recipe, &geometry, 20480, 0, &plans[i], &err), SL_OK);
        assert_false(plans[i].work[2].has_positions);
        assert_int_equal(plans[i].work[2].n_states, 0);
    }
    assert_int_equal(2 * sl_plan_remote_kv_bytes(&plans[1]), sl_plan_remote_kv_bytes(&plans[0]));
    assert_int_equal(plans[1].capsule_bytes, plans[0].capsule_bytes);
    assert_int_equal(sl_plan_held_slots(&plans[1]), sl_plan_held_slots(&plans[0]) + 56);
    assert_int_equal(plans[1].budget_slots, 10240);
    assert_int_equal(plans[1].layer_budget[1], 20480);
    assert_int_equal(plans[1].layer_budget[2], 10240);
    assert_int_not_equal(sl_recipe_fingerprint(&plans[0].recipe), sl_recipe_fingerprint(&plans[1].recipe));
}

static void test_thin_refuses_what_it_cannot_know(void **state) {
    (void)state;
    struct sl_error err;
    struct run run = run_of(N_PROMPT, 0);
    run_start(&run, OFFLOADS ",score=random,budget=0.5,when=chunk");
    assert_int_equal(sl_compressor_estimate(run.compressor, true, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "errors of place=offload with a budget are not estimated"));
    assert_int_equal(sl_compressor_estimate(run.compressor, false, &err), SL_OK);
    run_pass(&run, 128, RUN_CHUNK);
    // A compressor that has not seen the beginning.
    struct sl_compressor *other;
    bool final;
    assert_int_equal(sl_compressor_create(&run.plan, run.ops, sl_cpu_caller(), &other, &err), SL_OK);
    struct sl_attend attend = {.m = 1, .n_heads = 4, .head_dim = 16, .heads = {NULL, 2}};
    assert_int_equal(sl_compressor_layer(other, run.session, 1, &attend, false, &final, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "of 128 tokens 0 have been read here"));
    sl_compressor_destroy(&other);
    run_stop(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thin_keeps_what_the_recipe_says),
        cmocka_unit_test(test_thin_keeps_rows_together),
        cmocka_unit_test(test_thin_by_chance),
        cmocka_unit_test(test_thin_of_nothing_is_no_budget),
        cmocka_unit_test(test_thin_is_searched_by_slots),
        cmocka_unit_test(test_thin_counts_slots),
        cmocka_unit_test(test_thin_halves_what_is_stored),
        cmocka_unit_test(test_thin_refuses_what_it_cannot_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
