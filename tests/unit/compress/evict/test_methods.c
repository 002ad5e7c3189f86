// SPDX-License-Identifier: Apache-2.0
/*
 * Properties that the papers' methods must have for any input: each test is one statement about a method, driven through the real ops,
 * session and compressor. test_golden_methods.c checks the numbers.
 */
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
#include "tests/one_head.h"

#define N_PROMPT 230
#define BUDGET   60
#define CHUNK    64

static struct run run_of(int group, int64_t n_steps, run_element_fn element) {
    return (struct run){.geometry = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 16},
                        .group = group,
                        .n_prompt = N_PROMPT,
                        .n_steps = n_steps,
                        .scale = 0.1f,
                        .seed = 77,
                        .element = element};
}

// Two runs keep the same tokens in every head.
static void check_same_kept(const struct run *a, const struct run *b) {
    for (int l = 0; l < a->geometry.n_layers; l++) {
        for (int h = 0; h < a->geometry.n_kv_heads; h++) {
            uint32_t n_a, n_b;
            int64_t *of_a = run_positions(a, l, h, &n_a), *of_b = run_positions(b, l, h, &n_b);
            assert_int_equal(n_a, n_b);
            assert_memory_equal(of_a, of_b, n_a * sizeof *of_a);
            free(of_a), free(of_b);
        }
    }
}

static void check_prompts_keep_alike(const char *recipe_a, run_element_fn element_a, const char *recipe_b,
                                     run_element_fn element_b) {
    struct run a = run_of(2, 0, element_a), b = run_of(2, 0, element_b);
    run_start(&a, recipe_a);
    run_start(&b, recipe_b);
    run_prompt(&a, CHUNK);
    run_prompt(&b, CHUNK);
    assert_in_range(run_kv(&a, 0, 0).n_slots, 1, N_PROMPT - 1); // something was evicted
    check_same_kept(&a, &b);
    run_stop(&a);
    run_stop(&b);
}

// H2O, RoCo: a row of attention sums to one, and where nothing is evicted none of it is lost.
static void test_sums_over_slots_are_the_rows_while_nothing_is_evicted(void **state) {
    (void)state;
    struct run run = run_of(2, 0, NULL);
    run_start(&run, "score=mas,scope=sinks:4+recent:10+std:0.4,budget=60,when=end,format=f32,chunk=64");
    for (int pass = 0; pass < 3; pass++) {
        run_pass(&run, CHUNK, RUN_CHUNK);
        for (int l = 0; l < 2; l++) {
            for (int h = 0; h < 2; h++) {
                struct sl_kv kv = run_kv(&run, l, h);
                float sums[N_PROMPT], squares[N_PROMPT];
                double sum = 0;
                assert_int_equal(kv.n_slots, run.n_read);
                read_plane(run.ops, &kv, 0, sums);
                read_plane(run.ops, &kv, 1, squares);
                for (uint32_t j = 0; j < kv.n_slots; j++) {
                    sum += (double)sums[j];
                    assert_true(squares[j] <= sums[j] * 1.00001f); // probabilities: a square is not above its root
                }
                assert_true(fabs(sum - (double)run.n_read) < 1e-3);
            }
        }
    }
    run_stop(&run);
}

// RoCo: one update by a block of rows is as many updates by single rows.
static void test_roco_by_blocks_is_roco_by_rows(void **state) {
    (void)state;
    const char *recipe = "score=mas,scope=sinks:4+recent:10+std:0.4,budget=60,when=end,format=f32,chunk=64";
    struct run blocks = run_of(2, 0, NULL), rows = run_of(2, 0, NULL);
    run_start(&blocks, recipe);
    run_start(&rows, recipe);
    run_prompt(&blocks, CHUNK);
    run_prompt(&rows, 1);
    check_same_kept(&blocks, &rows);
    for (int plane = 0; plane < 2; plane++) {
        float a[N_PROMPT], b[N_PROMPT];
        struct sl_kv of_blocks = run_kv(&blocks, 1, 0), of_rows = run_kv(&rows, 1, 0);
        assert_int_equal(of_blocks.n_slots, BUDGET);
        read_plane(blocks.ops, &of_blocks, plane, a);
        read_plane(rows.ops, &of_rows, plane, b);
        for (int j = 0; j < BUDGET; j++) {
            assert_true(fabsf(a[j] - b[j]) <= 1e-5f * fabsf(a[j]));
        }
    }
    run_stop(&blocks);
    run_stop(&rows);
}

// Exactly the budget after every block and every step, and always what the scope protects.
static void test_every_method_keeps_its_budget_its_sinks_and_its_newest(void **state) {
    (void)state;
    static const char *const methods[] = {
        "score=random",
        "score=recency",
        "score=aas",
        "score=aas,value=caote",
        "score=aqas",
        "score=ltas",
        "score=ltas,heads=layer",
        "score=ltas,value=fastcaote-heads",
        "score=mas",
        "score=cis",
    };
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        char recipe[200];
        bool steps = strcmp(methods[i], "score=cis") != 0; // its scores come with the prompt's tokens only
        struct run run = run_of(2, steps ? 10 : 0, NULL);
        snprintf(recipe, sizeof recipe, "%s,scope=sinks:3+recent:7,budget=60,when=chunk%s,format=f32,chunk=64",
                 methods[i], steps ? "+step" : "");
        run_start(&run, recipe);
        for (int64_t left; (left = run.n_prompt + run.n_steps - run.n_read) > 0;) {
            int64_t of_prompt = run.n_prompt - run.n_read;
            int m = of_prompt <= 0 ? 1 : of_prompt < CHUNK ? (int)of_prompt : CHUNK;
            run_pass(&run, m, of_prompt <= 0 ? RUN_STEP : m == of_prompt ? RUN_LAST : RUN_CHUNK);
            for (int l = 0; l < 2; l++) {
                for (int h = 0; h < 2; h++) {
                    uint32_t n;
                    int64_t *positions = run_positions(&run, l, h, &n);
                    assert_int_equal(n, BUDGET);
                    for (int j = 0; j < 7; j++) {
                        assert_true(j >= 3 || positions[j] == j);
                        assert_int_equal(positions[n - 1 - (uint32_t)j], run.n_read - 1 - j);
                    }
                    free(positions);
                }
            }
        }
        run_stop(&run);
    }
}

static float shifted_values(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    float value = run_element(run, stream, layer, token, head, c);
    return stream == RUN_V ? value + (float)(c % 5 - 2) : value;
}

static float doubled_values(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    float value = run_element(run, stream, layer, token, head, c);
    return stream == RUN_V ? 2 * value : value;
}

static float other_values(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    return run_element(run, stream, layer, stream == RUN_V ? N_PROMPT - 1 - token : token, head, c);
}

static const char *const caote[] = {
    "score=aas,scope=recent:8,value=caote,budget=60,when=chunk,format=f32,chunk=64",
    "score=aas,scope=recent:8,value=fastcaote,budget=60,when=chunk,format=f32,chunk=64",
    "score=ltas,value=caote-heads,budget=60,when=chunk,format=f32,chunk=64",
    "score=ltas,value=fastcaote-heads,budget=60,when=chunk,format=f32,chunk=64",
};

static void test_caote_is_blind_to_a_constant_added_to_all_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof caote / sizeof caote[0]; i++) {
        check_prompts_keep_alike(caote[i], NULL, caote[i], shifted_values);
    }
}

static void test_caote_is_blind_to_the_scale_of_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof caote / sizeof caote[0]; i++) {
        check_prompts_keep_alike(caote[i], NULL, caote[i], doubled_values);
    }
}

static void test_caote_sees_values_and_its_base_does_not(void **state) {
    (void)state;
    const char *base = "score=aas,scope=recent:8,budget=60,when=chunk,format=f32,chunk=64";
    check_prompts_keep_alike(base, NULL, base, other_values);
    struct run a = run_of(2, 0, NULL), b = run_of(2, 0, other_values);
    uint32_t n_a, n_b;
    run_start(&a, caote[0]);
    run_start(&b, caote[0]);
    run_prompt(&a, CHUNK);
    run_prompt(&b, CHUNK);
    int64_t *of_a = run_positions(&a, 0, 0, &n_a), *of_b = run_positions(&b, 0, 0, &n_b);
    assert_memory_not_equal(of_a, of_b, n_a * sizeof *of_a);
    free(of_a), free(of_b);
    run_stop(&a);
    run_stop(&b);
}

/*
 * error_out[j] = || o - o without slot j ||, by removing it, and attention_out[j], for the query of the newest of
 * positions[n]. One query head a KV head, so that the head's number is the query head's as well.
 */
static void removal_errors(const struct run *run, int layer, int head, const int64_t *positions, int n,
                           double *error_out, double *attention_out) {
    int d = run->geometry.head_dim;
    double sum = 0, out[16] = {0};
    assert_int_equal(d, 16);
    for (int j = 0; j < n; j++) {
        double logit = 0;
        for (int c = 0; c < d; c++) {
            logit += (double)run->element(run, RUN_Q, layer, positions[n - 1], head, c) *
                     (double)run->element(run, RUN_K, layer, positions[j], head, c);
        }
        attention_out[j] = exp((double)run->scale * logit);
        sum += attention_out[j];
    }
    for (int j = 0; j < n; j++) {
        attention_out[j] /= sum;
        for (int c = 0; c < d; c++) {
            out[c] += attention_out[j] * (double)run->element(run, RUN_V, layer, positions[j], head, c);
        }
    }
    for (int j = 0; j < n; j++) {
        double squares = 0, a = attention_out[j];
        for (int c = 0; c < d; c++) {
            double without = (out[c] - a * (double)run->element(run, RUN_V, layer, positions[j], head, c)) / (1 - a);
            squares += (out[c] - without) * (out[c] - without);
        }
        error_out[j] = sqrt(squares);
    }
}

// The strict form of CAOTE's claim: by the last row, one head, one token: no other eviction changes the output less,
// TOVA's among them.
static void test_caote_on_tova_evicts_what_changes_the_output_least(void **state) {
    (void)state;
    enum { N_STEPS = 30 };
    struct run run = run_of(1, N_STEPS, NULL);
    int n_better = 0;
    run_start(&run, "score=ltas,value=caote,budget=60,when=chunk+step,format=f32,chunk=64");
    run_prompt(&run, CHUNK);
    for (int step = 0; step < N_STEPS; step++) {
        int64_t *before[2][2];
        uint32_t n;
        for (int i = 0; i < 4; i++) {
            before[i / 2][i % 2] = run_positions(&run, i / 2, i % 2, &n);
            before[i / 2][i % 2][BUDGET] = run.n_read; // run_positions() leaves room for one
            assert_int_equal(n, BUDGET);
        }
        run_pass(&run, 1, RUN_STEP);
        for (int i = 0; i < 4; i++) {
            double error[BUDGET + 1], attention[BUDGET + 1];
            int64_t *positions = before[i / 2][i % 2], *after = run_positions(&run, i / 2, i % 2, &n);
            int gone = 0, tova = 0;
            assert_int_equal(n, BUDGET);
            while (gone < BUDGET && after[gone] == positions[gone]) {
                gone++;
            }
            removal_errors(&run, i / 2, i % 2, positions, BUDGET + 1, error, attention);
            for (int j = 0; j <= BUDGET; j++) {
                assert_true(error[gone] <= error[j] * (1 + 1e-5));
                tova = attention[j] < attention[tova] ? j : tova;
            }
            n_better += error[gone] < error[tova] * (1 - 1e-5);
            free(positions), free(after);
        }
    }
    assert_true(n_better > 0); // or the test could not tell the two apart
    run_stop(&run);
}

static void test_snapkv_of_one_row_without_pool_is_tova_of_heads_that_protects_the_newest(void **state) {
    (void)state;
    check_prompts_keep_alike("score=snapkv,window=1,pool=none,scope=recent:1,budget=60,when=end,format=f32,chunk=64",
                             NULL, "score=ltas,scope=recent:1,budget=60,when=end,format=f32,chunk=64", NULL);
}

#define D2O "score=aas,scope=sinks:4+recent:10,budget=60,when=end+step,format=f32,chunk=64"

static void test_d2o_merging_changes_no_kept_set(void **state) {
    (void)state;
    check_prompts_keep_alike(D2O, NULL, D2O ",evicted=merge:0.7", NULL);
}

// Prompt and steps; then what check() asserts of every kept slot of every head.
static void check_merged_rows(run_element_fn element,
                              void (*check)(const struct run *run, const int64_t *positions, uint32_t slot, int layer,
                                            int head, const float *k, const float *v)) {
    struct run run = run_of(2, 10, element);
    struct sl_compress_stats stats;
    int d = run.geometry.head_dim;
    run_start(&run, D2O ",evicted=merge:0.7");
    run_prompt(&run, CHUNK);
    for (int step = 0; step < 10; step++) {
        run_pass(&run, 1, RUN_STEP);
    }
    sl_compressor_get_stats(run.compressor, &stats);
    assert_in_range(stats.slots_merged, 1, stats.slots_evicted);
    for (int l = 0; l < 2; l++) {
        for (int h = 0; h < 2; h++) {
            uint32_t n;
            int64_t *positions = run_positions(&run, l, h, &n);
            float k[BUDGET * 16], v[BUDGET * 16];
            struct sl_kv kv = run_kv(&run, l, h);
            assert_int_equal(n, BUDGET);
            run.ops->read_rows(&kv, 0, n, k, v);
            for (uint32_t j = 0; j < n; j++) {
                check(&run, positions, j, l, h, k + j * (uint32_t)d, v + j * (uint32_t)d);
            }
            free(positions);
        }
    }
    run_stop(&run);
}

// Eight different tokens over and over: whatever is evicted has its like among what is kept.
static float twins(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    return run_element(run, stream, layer, stream == RUN_K || stream == RUN_V ? token % 8 : token, head, c);
}

static void check_unchanged(const struct run *run, const int64_t *positions, uint32_t slot, int layer, int head,
                            const float *k, const float *v) {
    for (int c = 0; c < run->geometry.head_dim; c++) {
        assert_true(fabsf(k[c] - run->element(run, RUN_K, layer, positions[slot], head, c)) < 1e-5f);
        assert_true(fabsf(v[c] - run->element(run, RUN_V, layer, positions[slot], head, c)) < 1e-5f);
    }
}

static void test_d2o_merging_equals_changes_nothing(void **state) {
    (void)state;
    check_merged_rows(twins, check_unchanged);
}

// One channel of all values is 1: weights that sum to one leave it.
static float one_in_front(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    return stream == RUN_V && c == 0 ? 1 : run_element(run, stream, layer, token, head, c);
}

static void check_convex(const struct run *run, const int64_t *positions, uint32_t slot, int layer, int head,
                         const float *k, const float *v) {
    (void)positions, (void)slot;
    assert_true(fabsf(v[0] - 1) < 1e-5f);
    for (int c = 0; c < run->geometry.head_dim; c++) {
        float low = INFINITY, high = -INFINITY;
        for (int64_t token = 0; token < run->n_read; token++) {
            float x = run->element(run, RUN_K, layer, token, head, c);
            low = fminf(low, x), high = fmaxf(high, x);
        }
        assert_true(k[c] >= low - 1e-5f && k[c] <= high + 1e-5f);
    }
}

static void test_d2o_merged_rows_are_convex_combinations(void **state) {
    (void)state;
    check_merged_rows(one_in_front, check_convex);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_over_slots_are_the_rows_while_nothing_is_evicted),
        cmocka_unit_test(test_roco_by_blocks_is_roco_by_rows),
        cmocka_unit_test(test_every_method_keeps_its_budget_its_sinks_and_its_newest),
        cmocka_unit_test(test_caote_is_blind_to_a_constant_added_to_all_values),
        cmocka_unit_test(test_caote_is_blind_to_the_scale_of_values),
        cmocka_unit_test(test_caote_sees_values_and_its_base_does_not),
        cmocka_unit_test(test_caote_on_tova_evicts_what_changes_the_output_least),
        cmocka_unit_test(test_snapkv_of_one_row_without_pool_is_tova_of_heads_that_protects_the_newest),
        cmocka_unit_test(test_d2o_merging_changes_no_kept_set),
        cmocka_unit_test(test_d2o_merging_equals_changes_nothing),
        cmocka_unit_test(test_d2o_merged_rows_are_convex_combinations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
