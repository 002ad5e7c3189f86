// SPDX-License-Identifier: Apache-2.0
// Every score, with every protection and division that it goes with, against dense attention as the papers have it.
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

#include "engine/compress/plan/budget.h"
#include "dense.h"
#include "engine/kvcache/capsule.h"

#define N_LAYERS 2

struct bench {
    struct drive drive;
    struct dense_head heads[N_LAYERS][DENSE_HEADS];
    int64_t step_budget[N_LAYERS][DENSE_HEADS]; // layers=d2o: what a head held when the steps began
    int64_t n_evicted;
};

static void share(double values[][DENSE_SLOTS], int n_heads, int n) {
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int h = 0; h < n_heads; h++) {
            sum += values[h][j];
        }
        for (int h = 0; h < n_heads; h++) {
            values[h][j] = sum / n_heads;
        }
    }
}

// AdaKV: a head that holds more than the floor holds no slot with a lower score than a slot that another head has lost.
static void check_adaptive(const struct bench *bench, int layer, const struct dense_ranking *rankings) {
    const struct drive *drive = &bench->drive;
    int n_heads = drive->plan.geometry.n_kv_heads;
    int64_t budget = drive->plan.layer_budget[layer], floor = (int64_t)(0.2 * (double)budget), sum = 0;
    double held[DENSE_HEADS], lost = -INFINITY;
    int64_t kept[DENSE_HEADS];
    for (int h = 0; h < n_heads; h++) {
        int64_t positions[DENSE_SLOTS];
        const struct dense_head *dense = &bench->heads[layer][h];
        struct sl_kv kv = drive_kv(drive, layer, h);
        drive->ops->read_positions(&kv, positions);
        held[h] = INFINITY;
        kept[h] = kv.n_slots;
        sum += kept[h];
        assert_true(kept[h] >= floor && kept[h] <= dense->n);
        for (int j = 0, i = 0; j < dense->n; j++) {
            if (i < kept[h] && positions[i] == dense->position[j]) {
                held[h] = fmin(held[h], rankings[h].score[j]);
                i++;
            } else {
                lost = fmax(lost, rankings[h].score[j]);
            }
        }
    }
    assert_int_equal(sum, n_heads * budget);
    for (int h = 0; h < n_heads; h++) {
        assert_true(kept[h] == floor || held[h] >= lost - 1e-4 * fabs(lost));
    }
}

// Did the drive evict from this layer what the formulas say?
static void follow_layer(struct bench *bench, int layer, int64_t budget, int64_t stabilizers, int64_t tail) {
    struct drive *drive = &bench->drive;
    const struct sl_recipe *recipe = &drive->plan.recipe;
    int n_heads = drive->plan.geometry.n_kv_heads;
    static struct dense_ranking rankings[DENSE_HEADS];
    static double scores[DENSE_HEADS][DENSE_SLOTS], deviations[DENSE_HEADS][DENSE_SLOTS];
    for (int h = 0; h < n_heads; h++) {
        dense_rank(drive, layer, h, &bench->heads[layer][h], drive->n_read, &rankings[h]);
        memcpy(scores[h], rankings[h].score, sizeof scores[h]);
        memcpy(deviations[h], rankings[h].deviation, sizeof deviations[h]);
    }
    if (recipe->heads == SL_HEADS_LAYER) {
        share(scores, n_heads, bench->heads[layer][0].n);
        share(deviations, n_heads, bench->heads[layer][0].n);
    }
    bool steps_alone = drive->stepping && recipe->layers == SL_LAYERS_D2O;
    for (int h = 0; h < n_heads; h++) {
        memcpy(rankings[h].score, scores[h], sizeof scores[h]);
        memcpy(rankings[h].deviation, deviations[h], sizeof deviations[h]);
        dense_protect(drive, &bench->heads[layer][h], steps_alone ? bench->step_budget[layer][h] : budget, stabilizers,
                      tail, &rankings[h]);
    }
    if (recipe->heads == SL_HEADS_ADAPTIVE) {
        check_adaptive(bench, layer, rankings);
    }
    for (int h = 0; h < n_heads; h++) {
        struct dense_head *dense = &bench->heads[layer][h];
        int64_t held = (steps_alone ? bench->step_budget[layer][h] : budget) + tail;
        int n = dense->n;
        if (recipe->heads != SL_HEADS_ADAPTIVE) {
            assert_int_equal(drive_kv(drive, layer, h).n_slots, n < held ? n : held);
        }
        dense_follow(drive, layer, h, &rankings[h], dense);
        bench->n_evicted += n - dense->n;
    }
}

// layers=d2o: budgets from the variance of the column sums, exact in their sum.
static void follow_end(struct bench *bench) {
    struct drive *drive = &bench->drive;
    const struct sl_plan *plan = &drive->plan;
    int n_heads = plan->geometry.n_kv_heads;
    double variances[N_LAYERS * DENSE_HEADS], weights[N_LAYERS];
    int64_t shares[N_LAYERS], sum = 0;
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < n_heads; h++) {
            const struct dense_head *dense = &bench->heads[l][h];
            double mean = 0, square = 0;
            for (int j = 0; j < dense->n; j++) {
                mean += dense->sum[j] / dense->n;
            }
            for (int j = 0; j < dense->n; j++) {
                square += (dense->sum[j] - mean) * (dense->sum[j] - mean);
            }
            variances[l * n_heads + h] = square / (dense->n - 1);
        }
    }
    sl_budget_d2o_weights(plan->recipe.layers, variances, N_LAYERS, n_heads, weights);
    sl_budget_divide(plan->total_budget, weights, N_LAYERS, plan->least_slots, plan->layer_budget[0], shares);
    for (int l = 0; l < N_LAYERS; l++) {
        int64_t held = drive_kv(drive, l, 0).n_slots - plan->tail_slots;
        assert_true(llabs(held - shares[l]) <= 1); // a remainder may be rounded the other way
        sum += held;
        follow_layer(bench, l, held, 0, plan->tail_slots);
    }
    assert_int_equal(sum, plan->total_budget);
}

static void read_chunk(struct bench *bench) {
    struct drive *drive = &bench->drive;
    const struct sl_plan *plan = &drive->plan;
    int64_t begin = drive->n_read, body = sl_plan_body_tokens(plan);
    static struct dense_head before[N_LAYERS][DENSE_HEADS];
    memcpy(before, bench->heads, sizeof before);
    struct drive ahead = *drive; // how far the drive will read is its own affair
    assert_true(drive_next_chunk(drive));
    int m = (int)(drive->n_read - begin);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            dense_read(&ahead, l, h, m, &bench->heads[l][h]);
        }
    }
    bool end = drive->n_read == body, in_tail = begin >= body;
    if (plan->recipe.layers >= SL_LAYERS_D2O && plan->recipe.layers <= SL_LAYERS_D2O_MINMAX) {
        assert_int_equal(drive->n_final, 0);
        if (drive->n_read == plan->n_prompt) {
            follow_end(bench);
        }
        return;
    }
    for (int l = 0; l < N_LAYERS; l++) {
        if (!in_tail && (end || (plan->recipe.when & SL_WHEN_CHUNK)) && !sl_layers_has(&plan->recipe.exempt, l)) {
            follow_layer(bench, l, plan->layer_budget[l], end ? 0 : plan->recipe.stabilizers, 0);
        }
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            assert_int_equal(drive_kv(drive, l, h).n_slots, bench->heads[l][h].n);
        }
    }
}

static void step(struct bench *bench, int m) {
    struct drive *drive = &bench->drive;
    const struct sl_plan *plan = &drive->plan;
    struct drive ahead = *drive;
    for (int l = 0; l < N_LAYERS && !drive->stepping; l++) {
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            bench->step_budget[l][h] = bench->heads[l][h].n;
        }
    }
    drive_step(drive, m);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            dense_read(&ahead, l, h, m, &bench->heads[l][h]);
        }
        follow_layer(bench, l, plan->layer_budget[l] + plan->tail_slots, 0, 0);
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            assert_true(drive_kv(drive, l, h).n_slots <= sl_plan_layer_slots(plan, l, drive->n_read - plan->n_prompt));
        }
    }
}

static void check_case(const char *text, const struct sl_kv_geometry *geometry, int group, int64_t n_prompt,
                       uint64_t seed, int n_threads, int n_steps) {
    static struct bench bench;
    char label[256];
    snprintf(label, sizeof label, "%s,format=f32", text);
    memset(&bench, 0, sizeof bench);
    if (getenv("SLUICE_TEST_VERBOSE") != NULL) {
        printf("%s, %d tokens, seed %d\n", label, (int)n_prompt, (int)seed);
    }
    drive_start(&bench.drive, label, geometry, group, n_prompt, seed, 0.2f, n_threads);
    while (bench.drive.n_read < n_prompt) {
        read_chunk(&bench);
    }
    assert_int_equal(bench.n_evicted > 0, 1);
    assert_true(sl_capsule_body_bytes(bench.drive.session) <= bench.drive.plan.capsule_bytes);
    for (int i = 0; i < n_steps; i++) {
        step(&bench, 1 + i % 3);
    }
    struct sl_compress_stats stats;
    struct sl_arena_stats arena;
    sl_compressor_get_stats(bench.drive.compressor, &stats);
    assert_int_equal(stats.slots_evicted, bench.n_evicted);
    sl_arena_get_stats(bench.drive.arena, &arena);
    if (n_steps == 0) {
        assert_true(arena.high_water_bytes <= bench.drive.plan.prefill_peak_bytes);
    }
    drive_stop(&bench.drive);
}

static void check_cases(const char *const *texts, int n_steps) {
    const struct sl_kv_geometry small = {N_LAYERS, 2, 16}, wide = {N_LAYERS, 3, 8};
    for (size_t i = 0; texts[i] != NULL; i++) {
        check_case(texts[i], &small, 2, 200, 2 * i, 1, n_steps);
        check_case(texts[i], &wide, 3, 131, 2 * i + 1, 2, n_steps); // the last chunk has three rows
    }
}

static void test_compressor_evicts_what_each_score_ranks_lowest(void **state) {
    (void)state;
    check_cases(
        (const char *const[]){"score=recency,budget=50,when=chunk,chunk=64", "h2o,budget=60,chunk=64",
                              "score=aas,budget=60,when=end,chunk=64", "scissorhands,budget=60,chunk=64",
                              "score=aqas,budget=60,when=chunk,chunk=64", "score=mas,budget=60,when=chunk,chunk=64",
                              "score=ltas,budget=60,when=chunk,chunk=64", "score=ltas,budget=60,when=end,chunk=64",
                              "score=cis,budget=60,when=chunk,chunk=64", NULL},
        0);
}

static void test_compressor_pools_what_the_window_saw(void **state) {
    (void)state;
    check_cases((const char *const[]){"snapkv,window=16,scope=recent:16,budget=60,chunk=64",
                                      "snapkv,window=16,scope=recent:16,pool=avg:5,budget=60,chunk=64",
                                      "snapkv,window=8,scope=sinks:2+recent:12,pool=none,budget=60,chunk=64",
                                      "snapkv,window=8,scope=recent:8,pool=max:3,budget=60,when=chunk,chunk=64", NULL},
                0);
}

static void test_compressor_weighs_values_as_caote_does(void **state) {
    (void)state;
    check_cases((const char *const[]){"h2o+caote,budget=60,chunk=64", "h2o+fastcaote,budget=60,chunk=64",
                                      "tova+caote,budget=60,chunk=64", "tova+fastcaote,budget=60,chunk=64",
                                      "snapkv+caote,window=8,scope=recent:8,budget=60,chunk=64",
                                      "roco+caote,budget=60,chunk=64",
                                      "score=aqas,value=caote,budget=60,when=chunk,chunk=64",
                                      "score=ltas,value=caote-heads,budget=60,when=chunk,chunk=64",
                                      "score=ltas,value=fastcaote-heads,budget=60,when=chunk,chunk=64",
                                      "snapkv,value=caote-heads,window=8,scope=recent:8,budget=60,chunk=64", NULL},
                0);
}

static void test_compressor_spares_what_scope_protects(void **state) {
    (void)state;
    check_cases((const char *const[]){"h2o,scope=sinks:4+recent:0.25,budget=60,chunk=64",
                                      "score=aas,scope=sinks:3+recent:7+stabilizers:20,budget=60,when=chunk,chunk=64",
                                      "roco,budget=60,chunk=64",
                                      "score=mas,scope=sinks:2+recent:5+std:0.4,budget=60,when=chunk,chunk=64",
                                      "locret,scope=stabilizers:20+tail:30,budget=50,positions=original,chunk=64",
                                      "score=aas,scope=tail:70,budget=40,when=end,chunk=64", NULL},
                0);
}

static void test_compressor_divides_over_layers_and_heads(void **state) {
    (void)state;
    check_cases(
        (const char *const[]){
            "tova,budget=60,chunk=64", "score=mas,scope=std:0.3,heads=layer,budget=60,when=chunk,chunk=64",
            "h2o+caote,heads=layer,budget=60,chunk=64", "adakv,window=8,scope=recent:8,budget=60,chunk=64",
            "score=aas,scope=sinks:2+recent:4,heads=adaptive,budget=40,when=end,chunk=64",
            "pyramidkv,window=8,scope=recent:8,budget=60,chunk=64", "h2o,budget=60,exempt=0,chunk=64",
            "d2o,budget=60,evicted=drop,chunk=64", "d2o,budget=60,evicted=drop,layers=d2o-raw,chunk=64",
            "d2o,budget=60,evicted=drop,layers=d2o-minmax,scope=tail:20+sinks:1,chunk=64", NULL},
        0);
}

static void test_compressor_steps_evict_by_the_same_scores(void **state) {
    (void)state;
    check_cases(
        (const char *const[]){
            "h2o,budget=60,when=chunk+step,chunk=64", "scissorhands,budget=60,when=chunk+step,chunk=64",
            "score=ltas,budget=60,when=end+step,chunk=64", "tova,budget=60,when=chunk+step,chunk=64",
            "roco,budget=60,when=chunk+step,chunk=64", "roco+caote,budget=60,when=chunk+step,chunk=64",
            "roco,scope=tail:20,budget=60,when=chunk+step,chunk=64",
            "roco,scope=tail:20+std:0.4,budget=60,when=end+step,chunk=64",
            "roco,scope=sinks:2+tail:20+std:0.4,budget=60,when=chunk+step,chunk=64",
            "snapkv,window=8,scope=recent:8,budget=60,when=end+step,chunk=64",
            "locret,scope=stabilizers:20+tail:30,budget=50,positions=original,when=chunk+step,chunk=64",
            "d2o,budget=60,evicted=drop,chunk=64", NULL},
        12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressor_evicts_what_each_score_ranks_lowest),
        cmocka_unit_test(test_compressor_pools_what_the_window_saw),
        cmocka_unit_test(test_compressor_weighs_values_as_caote_does),
        cmocka_unit_test(test_compressor_spares_what_scope_protects),
        cmocka_unit_test(test_compressor_divides_over_layers_and_heads),
        cmocka_unit_test(test_compressor_steps_evict_by_the_same_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
