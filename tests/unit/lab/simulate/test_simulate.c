// SPDX-License-Identifier: Apache-2.0
// Purpose: simulations whose answers are known by hand or by theory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/workers/admit.h"
#include "lab/simulate/figures.h"
#include "lab/simulate/network.h"
#include "lab/simulate/scale.h"
#include "lab/simulate/simulate.h"
#include "tests/unit/temp_folder.h"

#define N_LAYERS 4

static void assert_near(double x, double y, double tolerance) {
    if (!(fabs(x - y) <= tolerance)) {
        fail_msg("%.9g is not within %g of %.9g", x, tolerance, y);
    }
}

// --- costs -------------------------------------------------------------------------------------------------------------

static enum sl_status load(const char *prefill, const char *recipe, struct sl_costs *costs, struct sl_error *err) {
    char text[1024], path[128];
    struct temp_folder folder = temp_folder_create();
    snprintf(
        text, sizeof text,
        "{\"machine\": \"m\", \"rows\": 256, \"prefill\": %s, \"reading\": {\"full\": [[1000, 1500], [2000, 2000]]}, "
        "\"decode\": {\"full\": [[1, 0, 10], [1, 100, 20], [3, 0, 14], [3, 100, 44]], \"h2o\": [[1, 0, 1]]}, "
        "\"ship\": {\"bytes_per_s\": 1e9, \"latency_ms\": 0}, \"store\": {\"lookup_ms\": 0}, \"call_ms\": 0}",
        prefill);
    temp_folder_write_text(&folder, "costs", text);
    snprintf(path, sizeof path, "%s/costs", folder.path);
    enum sl_status status = sl_costs_load(path, recipe, costs, err);
    temp_folder_destroy(&folder);
    return status;
}

// A millisecond a token, whatever is before it.
static const char *const linear = "[[1, 0, 1], [512, 0, 512]]";

static void test_times_between_the_lines(void **state) {
    (void)state;
    struct sl_costs costs;
    struct sl_error err = {0};
    assert_int_equal(load(linear, "full", &costs, &err), SL_OK);
    assert_near(sl_costs_read_s(&costs, 100, 7777), 0.1, 1e-9);
    assert_near(sl_costs_step_s(&costs, 1, 50), 0.015, 1e-9);
    assert_near(sl_costs_step_s(&costs, 2, 50), 0.022, 1e-9);
    assert_near(sl_costs_step_s(&costs, 5, 200), 0.118, 1e-9); // beyond both
    // Whole prompts take 1.5 times as long as their passes, then as long
    const struct sl_costs_cut cut = {512, 1e9, false};
    sl_costs_fit_reading(&costs, &cut);
    assert_near(sl_costs_factor(&costs, 1500), 1.25, 1e-9);
    assert_near(sl_costs_prompt_s(&costs, &cut, 500), 0.75, 1e-9);
    assert_near(sl_costs_prompt_s(&costs, &cut, 4000), 4, 1e-9);
}

static void test_a_damaged_table_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *prefill, *recipe, *says;
    } cases[] = {
        {"[]", "full", "not a grid"},
        {"[[1, 0, 1], [2, 5, 1]]", "full", "not a grid"},
        {"[[1, 0, 1], [1, 0, 1]]", "full", "not a grid"},
        {"[[1, 0, 1], [2, 0, 0]]", "full", "row 2"},
        {"[[1, 0, \"a\"]]", "full", "row 1"},
        {"[[0, 0, 1], [2, 0, 1]]", "full", "row 1"},
        {"[[1, 0, 1]]", "snapkv", "full; h2o"},
        {"[[1, 0, 1]", "full", "costs:1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_costs costs;
        struct sl_error err = {0};
        assert_int_equal(load(cases[i].prefill, cases[i].recipe, &costs, &err), SL_ERR_INVALID);
        if (!strstr(err.text, cases[i].says)) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
        }
    }
    struct sl_costs costs;
    struct sl_error err = {0};
    assert_int_equal(sl_costs_load("/nonexistent/costs", "full", &costs, &err), SL_ERR_NOT_FOUND);
}

// --- links -------------------------------------------------------------------------------------------------------------

static void note_end(void *arg, double at_s) {
    *(double *)arg = at_s;
}

// Node 0 sends to 1 and 2; 3 sends to 2, too. All have 100 bytes to send, at 100 a second.
static void send_three(bool only_out, double ends[3]) {
    struct sl_sim_events events = {0};
    struct sl_sim_network network = {.events = &events, .bytes_per_s = 100, .only_out = only_out};
    struct sl_sim_link links[4] = {0};
    static const int ways[3][2] = {{0, 1}, {0, 2}, {3, 2}};
    struct sl_sim_transfer transfers[3] = {0};
    for (int i = 0; i < 3; i++) {
        transfers[i] = (struct sl_sim_transfer){.network = &network,
                                                .from = &links[ways[i][0]],
                                                .to = &links[ways[i][1]],
                                                .end_fn = note_end,
                                                .arg = &ends[i]};
        sl_sim_send(&transfers[i], 100, 0);
    }
    while (sl_sim_run_next(&events, INFINITY)) {
    }
    sl_sim_events_cleanup(&events);
}

static void test_transfers_share_their_links(void **state) {
    (void)state;
    double ends[3];
    send_three(true, ends);
    assert_true(ends[0] == 2 && ends[1] == 2 && ends[2] == 1);
    send_three(false, ends);
    assert_true(ends[0] == 2 && ends[1] == 2 && ends[2] == 2);
}

// --- the cluster -------------------------------------------------------------------------------------------------------

static const struct sl_model_config model = {.n_layers = N_LAYERS,
                                             .n_heads = 4,
                                             .n_kv_heads = 2,
                                             .head_dim = 64,
                                             .hidden = 256,
                                             .intermediate = 1024,
                                             .max_positions = 100000};

struct setup {
    struct sl_costs costs;
    struct sl_recipe recipe;
    struct sl_workload workload;
    struct sl_sim_config config;
    struct sl_sim_result *result;
};

static struct setup *make(const char *recipe, struct sl_workload_arrival *arrivals, int64_t n) {
    struct setup *s = calloc(1, sizeof *s);
    struct sl_error err = {0};
    assert_non_null(s);
    assert_int_equal(load(linear, "full", &s->costs, &err), SL_OK);
    s->costs.reading.nx = 0;
    assert_int_equal(sl_recipe_parse(recipe, &s->recipe, &err), SL_OK);
    s->workload = (struct sl_workload){.arrivals = arrivals, .n = n};
    s->config = (struct sl_sim_config){.workload = &s->workload,
                                       .time_scale = 1,
                                       .costs = &s->costs,
                                       .model = &model,
                                       .recipe = &s->recipe,
                                       .n_prefill = 1,
                                       .n_decode = 1,
                                       .prefill_arena = INT64_C(1) << 34,
                                       .decode_arena = INT64_C(1) << 34,
                                       .store_arena = INT64_C(1) << 34,
                                       .prefill_jobs = 16,
                                       .decode_jobs = 16,
                                       .max_queued = 1 << 20,
                                       .keep_ms = 1000,
                                       .ttl_ms = 1000};
    s->result = calloc(1, sizeof *s->result);
    assert_non_null(s->result);
    return s;
}

static const struct sl_sim_request *run(struct setup *s) {
    struct sl_error err = {0};
    sl_sim_result_cleanup(s->result);
    if (sl_sim_run(&s->config, s->result, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return s->result->requests;
}

static void destroy(struct setup *s) {
    sl_sim_result_cleanup(s->result);
    free(s->result);
    free(s);
}

static double capsule_bytes(const struct setup *s, int64_t n_prompt) {
    struct sl_kv_geometry geometry = sl_model_geometry(&model);
    struct sl_demand demand;
    struct sl_error err = {0};
    assert_int_equal(sl_demand_make(&s->recipe, &geometry, n_prompt, 1, &demand, &err), SL_OK);
    return (double)demand.capsule_bytes;
}

// 1024 tokens are read in two passes. Ships begin when the first layer of the second is final.
static void test_one_request_takes_what_its_parts_take(void **state) {
    (void)state;
    struct sl_workload_arrival arrivals[] = {{.at_s = 0, .n_prompt = 1025, .n_output = 3}};
    struct setup *s = make("full", arrivals, 1);
    double bytes = capsule_bytes(s, 1025), steps[3];
    for (int i = 0; i < 3; i++) {
        steps[i] = sl_costs_step_s(&s->costs, 1, 1025 + i);
    }
    const struct sl_sim_request *r = run(s); // the link is fast: the last layer follows the reading
    assert_int_equal(r->outcome, SL_SIM_DONE);
    assert_near(r->ttft_s, 1.024 + bytes / N_LAYERS / 1e9 + steps[0], 1e-5);
    assert_near(r->e2e_s - r->ttft_s, steps[1] + steps[2], 1e-5);
    assert_near(r->tpot_s, (steps[1] + steps[2]) / 2, 1e-6);
    s->config.link_bytes_per_s = bytes; // a second for all
    r = run(s);
    assert_near(r->ttft_s, 0.512 + 0.512 / N_LAYERS + 1 + steps[0], 1e-4);
    assert_near(s->result->capsule_bytes, bytes, 1);
    s->costs.call_s = 0.001; // to the coordinator, to decode and prefill, to decode, and back
    assert_near(run(s)->ttft_s, 0.512 + 0.512 / N_LAYERS + 1 + steps[0] + 0.005, 1e-4);
    s->config.n_prefill = s->config.n_decode = 0;
    s->config.n_aggregated = 1;
    s->costs.call_s = 0;
    assert_near(run(s)->ttft_s, 1.024 + steps[0], 1e-4);
    assert_true(s->result->capsule_bytes == 0);
    destroy(s);
}

// A short prompt passes a long one between two layers; the long one loses no more than that time.
static void test_a_short_prompt_passes_a_long_one(void **state) {
    (void)state;
    struct sl_workload_arrival arrivals[] = {{.at_s = 0, .n_prompt = 8193, .n_output = 1},
                                             {.at_s = 1, .n_prompt = 129, .n_output = 1}};
    struct setup *s = make("full", arrivals, 2);
    const struct sl_sim_request *r = run(s);
    assert_in_range((int)(1e3 * r[1].ttft_s), 128, 128 + 2 * 512 / N_LAYERS + 100);
    assert_near(r[0].ttft_s, 8.192 + 0.128, 1);
    destroy(s);
}

// A run ends with its last answer, not when a transfer would have ended that has become faster meanwhile.
static void test_a_run_ends_with_its_last_answer(void **state) {
    (void)state;
    struct sl_workload_arrival arrivals[] = {{.at_s = 0, .n_prompt = 513, .n_output = 1},
                                             {.at_s = 0.5, .n_prompt = 129, .n_output = 1}};
    struct setup *s = make("full", arrivals, 2);
    s->config.link_bytes_per_s = capsule_bytes(s, 513); // a second for the longer one, which the other slows down
    s->costs.call_s = 0.001;
    const struct sl_sim_request *r = run(s);
    assert_true(r[1].e2e_s + 0.5 < r[0].e2e_s);
    assert_near(s->result->seconds, r[0].e2e_s, 1e-5);
    destroy(s);
}

// A worker of both roles reads, between two steps, for as long as a step took, and whole layers.
static void test_an_aggregated_worker_shares_its_time(void **state) {
    (void)state;
    struct sl_workload_arrival arrivals[] = {{.at_s = 0, .n_prompt = 1, .n_output = 200},
                                             {.at_s = 0.5, .n_prompt = 129, .n_output = 1}};
    struct setup *s = make("full", arrivals, 2);
    s->config.n_prefill = s->config.n_decode = 0;
    s->config.n_aggregated = 1;
    const struct sl_sim_request *r = run(s);
    double alone = 0;
    for (int i = 1; i < 200; i++) {
        alone += sl_costs_step_s(&s->costs, 1, 1 + i);
    }
    assert_near(r[0].e2e_s - r[0].ttft_s, alone + 0.128, 0.2); // and a step with two answers
    assert_true(r[1].ttft_s > 0.128 + 3 * 0.01);               // steps came in between
    destroy(s);
}

// With a prefill worker that takes one job at a time, and exponential lengths, the time to the first token is that of
// M/M/1.
static void test_a_queue_waits_as_its_theory_says(void **state) {
    (void)state;
    struct sl_workload_config drawn = {.rate = 0.7, .burstiness = 1, .n = 30000, .seed = 3};
    struct sl_workload w;
    struct sl_error err = {0};
    struct sl_figures figures;
    const struct sl_slo slo = {INFINITY, INFINITY, INFINITY};
    assert_int_equal(sl_lengths_parse("input", "exp:1000", &drawn.input, &err), SL_OK);
    assert_int_equal(sl_lengths_parse("output", "1", &drawn.output, &err), SL_OK);
    assert_int_equal(sl_workload_draw(&drawn, &w, &err), SL_OK);
    struct setup *s = make("full", w.arrivals, w.n);
    s->config.link_bytes_per_s = 1e15;
    s->config.prefill_jobs = 1;
    s->config.decode_jobs = 4096;
    s->costs.decode = (struct sl_cost_grid){.nx = 1, .ny = 1, .values = {1e-6}};
    (void)run(s);
    assert_int_equal(sl_figures_make(&w, s->result, &slo, &figures, &err), SL_OK);
    assert_near(figures.ttft.p50 / 1e3, log(2) / 0.3, 0.2);
    assert_near(figures.ttft.p90 / 1e3, log(10) / 0.3, 0.7);
    assert_near(s->result->prefill_busy, 0.7, 0.02);
    assert_true(figures.in_slo == 1 && figures.n_done == w.n);
    destroy(s);
    sl_workload_cleanup(&w);
}

static void test_memory_and_places_are_the_coordinator_s(void **state) {
    (void)state;
    struct sl_workload_arrival arrivals[8];
    for (int i = 0; i < 8; i++) {
        arrivals[i] = (struct sl_workload_arrival){.at_s = 0, .n_prompt = 4097, .n_output = 100};
    }
    struct setup *s = make("full", arrivals, 8);
    s->config.decode_arena = (int64_t)(2.5 * capsule_bytes(s, 4097));
    (void)run(s);
    int64_t full_queued = s->result->most_queued;
    double full_s = s->result->queued_s;
    assert_true(full_queued >= 5);
    destroy(s);
    s = make("full,format=int4", arrivals, 8);
    s->config.decode_arena = (int64_t)(0.75 * 4 * N_LAYERS * 2 * 64 * 4097 * 2.5);
    (void)run(s);
    assert_true(s->result->queued_s < full_s / 2);
    s->config.max_queued = 2; // the line is full for some
    s->config.decode_jobs = 1;
    const struct sl_sim_request *r = run(s);
    int n_refused = 0;
    for (int i = 0; i < 8; i++) {
        n_refused += r[i].outcome == SL_SIM_REFUSED;
    }
    assert_in_range(n_refused, 1, 6);
    s->config.decode_arena = 1 << 20; // it fits never
    assert_int_equal(run(s)->outcome, SL_SIM_FAILED);
    assert_non_null(strstr(s->result->failure, "fits never"));
    destroy(s);
}

static void test_what_a_store_has_is_not_read_again(void **state) {
    (void)state;
    int64_t blocks[] = {1, 2, 3, 1, 2, 3, 1, 2, 4};
    struct sl_workload_arrival arrivals[] = {
        {.at_s = 0, .n_prompt = 1400, .n_output = 2, .n_blocks = 3},
        {.at_s = 10, .n_prompt = 1400, .n_output = 2, .first_block = 3, .n_blocks = 3},
        {.at_s = 20, .n_prompt = 1400, .n_output = 2, .first_block = 6, .n_blocks = 3}};
    struct setup *s = make("full", arrivals, 3);
    s->workload.blocks = blocks;
    s->workload.n_blocks = 9;
    const struct sl_sim_request *r = run(s);
    assert_true(r[1].n_cached == 0 && r[2].n_cached == 0); // there is no store
    s->config.n_stores = 2;
    r = run(s);
    assert_true(r[0].n_cached == 0 && r[1].n_cached == 1399 && r[2].n_cached == 1024);
    assert_true(r[1].ttft_s < 0.2 && r[2].ttft_s < 0.6 && r[0].ttft_s > 1.3);
    assert_true(s->result->fetched_bytes > 0 && s->result->copied_bytes > 0);
    s->config.store_arena = 1 << 20; // too small for it
    assert_int_equal(run(s)[1].n_cached, 0);
    destroy(s);
}

static void test_the_same_seed_gives_the_same_figures(void **state) {
    (void)state;
    struct sl_workload w;
    struct sl_error err = {0};
    assert_int_equal(sl_workload_draw_conversations(500, 5, &w, &err), SL_OK);
    struct setup *s = make("h2o,budget=0.5", w.arrivals, w.n);
    s->workload = w;
    s->config.n_stores = s->config.n_prefill = s->config.n_decode = 2;
    size_t bytes = (size_t)w.n * sizeof *s->result->requests;
    struct sl_sim_request *first = malloc(bytes);
    assert_non_null(first);
    memcpy(first, run(s), bytes);
    assert_memory_equal(first, run(s), bytes);
    free(first);
    destroy(s);
    sl_workload_cleanup(&w);
}

// --- numbers of workers ------------------------------------------------------------------------------------------------

// Asks for as many workers for a time, by the second trigger, and returns how many there are then.
static int64_t ask_for(struct sl_scale *scale, double n, int s) {
    for (int at_s = 0; at_s < s; at_s += SL_SCALE_EVERY_S) {
        (void)sl_scale_step(scale, (double[2]){0, n});
    }
    return scale->n;
}

static void test_numbers_of_workers_follow_by_kubernetes_rules(void **state) {
    (void)state;
    struct sl_scale scale = {.n = 2, .least = 2, .most = 16};
    assert_int_equal(ask_for(&scale, 2.19, 600), 2); // within a tenth
    assert_int_equal(ask_for(&scale, 2.3, 15), 3);
    assert_int_equal(ask_for(&scale, 100, 15), 4); // two in a minute
    assert_int_equal(ask_for(&scale, 100, 45), 5); // the first of them was a minute ago
    assert_int_equal(ask_for(&scale, 100, 60), 7);
    assert_int_equal(ask_for(&scale, 100, 600), 16);
    assert_int_equal(ask_for(&scale, 0, 585), 16); // of ten minutes, the largest counts
    assert_int_equal(ask_for(&scale, 0, 15), 15);
    assert_int_equal(ask_for(&scale, 0, 285), 15); // one in five minutes
    assert_int_equal(ask_for(&scale, 0, 15), 14);
    assert_int_equal(ask_for(&scale, 16, 15), 16);
    assert_int_equal(ask_for(&scale, 0, 24 * 3600), 2);
    (void)sl_scale_step(&scale, (double[2]){3.5, 1});
    assert_int_equal(scale.n, 4); // either trigger
}

// Prompts that keep two and a half prefill workers busy for an hour, between two hours of few.
static void test_workers_that_follow_the_load_cost_the_time_that_they_are_there(void **state) {
    (void)state;
    enum { N = 2 * 100 + 9000 };
    struct sl_workload_arrival *arrivals = calloc(N, sizeof *arrivals);
    assert_non_null(arrivals);
    for (int i = 0; i < N; i++) {
        double at_s = i < 100 ? 36 * i : i < N - 100 ? 3600 + 0.4 * (i - 100) : 7200 + 36 * (i - N + 100);
        arrivals[i] = (struct sl_workload_arrival){.at_s = at_s, .n_prompt = 1001, .n_output = 1};
    }
    struct setup *s = make("full", arrivals, N);
    s->config.n_prefill = 8;
    s->config.n_decode = 4;
    (void)run(s);
    assert_near(s->result->worker_s, 12 * s->result->seconds, 1e-3);
    double all_p99, all_busy;
    struct sl_figures figures;
    struct sl_error err = {0};
    const struct sl_slo slo = {5, INFINITY, INFINITY};
    assert_int_equal(sl_figures_make(&s->workload, s->result, &slo, &figures, &err), SL_OK);
    all_p99 = figures.ttft.p99;
    all_busy = s->result->prefill_busy;
    s->config.autoscale = 1;
    s->config.start_ms = 60000;
    (void)run(s);
    assert_int_equal(sl_figures_make(&s->workload, s->result, &slo, &figures, &err), SL_OK);
    assert_int_equal(figures.n_done, N);
    // Two thirds of the time two workers are enough; in the busy hour 2.5 readers at 80%, and a writer
    assert_in_range((int)s->result->worker_s, (int)(2 * 7200 + 4.1 * 3600), (int)(2 * 7200 + 7 * 3600));
    assert_true(figures.in_slo > 0.9 && figures.ttft.p99 > all_p99); // until the first ones had started
    assert_in_range((int)(100 * s->result->prefill_busy), (int)(200 * all_busy), 99); // of the time that they are there
    s->config.n_prefill = 1;
    s->config.n_decode = 1;
    (void)run(s);
    assert_int_equal(sl_figures_make(&s->workload, s->result, &slo, &figures, &err), SL_OK);
    assert_true(figures.in_slo < 0.1);
    destroy(s);
    free(arrivals);
}

static void test_limits_are_read_as_written(void **state) {
    (void)state;
    struct sl_slo slo;
    struct sl_error err = {0};
    assert_int_equal(sl_slo_parse("ttft:2s,e2el:100ms", &slo, &err), SL_OK);
    assert_true(slo.ttft_s == 2 && slo.e2e_s == 0.1 && isinf(slo.tpot_s));
    static const char *const bad[] = {"", "ttft", "ttft:2", "ttft:2s,ttft:3s", "other:2s", "tpot:0s"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sl_slo_parse(bad[i], &slo, &err), SL_ERR_INVALID);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_between_the_lines),
        cmocka_unit_test(test_a_damaged_table_is_refused),
        cmocka_unit_test(test_transfers_share_their_links),
        cmocka_unit_test(test_one_request_takes_what_its_parts_take),
        cmocka_unit_test(test_a_short_prompt_passes_a_long_one),
        cmocka_unit_test(test_a_run_ends_with_its_last_answer),
        cmocka_unit_test(test_an_aggregated_worker_shares_its_time),
        cmocka_unit_test(test_a_queue_waits_as_its_theory_says),
        cmocka_unit_test(test_memory_and_places_are_the_coordinator_s),
        cmocka_unit_test(test_what_a_store_has_is_not_read_again),
        cmocka_unit_test(test_the_same_seed_gives_the_same_figures),
        cmocka_unit_test(test_numbers_of_workers_follow_by_kubernetes_rules),
        cmocka_unit_test(test_workers_that_follow_the_load_cost_the_time_that_they_are_there),
        cmocka_unit_test(test_limits_are_read_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
