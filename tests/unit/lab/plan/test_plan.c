// SPDX-License-Identifier: Apache-2.0
// Purpose: the parts of `sluice plan` where their answers are known by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"
#include "lab/plan/play.h"
#include "lab/plan/sizing.h"
#include "lab/plan/speed.h"
#include "lab/plan/workload.h"
#include "tests/unit/temp_folder.h"

static void assert_near(double x, double y, double tolerance) {
    if (!(fabs(x - y) <= tolerance)) {
        fail_msg("%.9g is not within %g of %.9g", x, tolerance, y);
    }
}

// --- workload ------------------------------------------------------------------------------------------------------

static enum sl_status load(const char *text, double rate_scale, struct sl_workload *workload, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    char path[128];
    snprintf(path, sizeof path, "%s/trace.jsonl", folder.path);
    temp_folder_write_text(&folder, "trace.jsonl", text);
    enum sl_status status = sl_workload_load(path, rate_scale, workload, err);
    temp_folder_destroy(&folder);
    return status;
}

static void test_a_trace_is_read_as_it_stands(void **state) {
    (void)state;
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(load("{\"timestamp\": 500, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [3, 4]}\n\n"
                          "{\"timestamp\": 2500, \"input_length\": 9, \"output_length\": 1}\n",
                          2, &w, &err),
                     SL_OK);
    assert_int_equal(w.n, 2);
    assert_true(w.arrivals[0].at_s == 0 && w.arrivals[1].at_s == 1); // twice as fast
    assert_int_equal(w.arrivals[0].n_prompt, 600);
    assert_int_equal(w.arrivals[0].n_output, 7);
    assert_int_equal(w.arrivals[0].n_blocks, 2);
    assert_int_equal(w.blocks[1], 4);
    assert_int_equal(w.arrivals[1].n_blocks, 0);
    assert_true(w.seconds == 2);
    sl_workload_cleanup(&w);
}

static void test_a_damaged_trace_is_refused_by_its_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "has no requests"},
        {"{\"timestamp\": 0", "jsonl:1"},
        {"[1]", "is not an object"},
        {"{\"timestamp\": 0, \"input_length\": 5}", "output_length"},
        {"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}", "input_length 0"},
        {"{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1}", "timestamp -1"},
        {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 9000000000}", "output_length 9000000000"},
        {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": 3}", "not a list"},
        {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}", "hash_ids[0]"},
        {"{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}", "2 blocks"},
        {"{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 1}\n"
         "{\"timestamp\": 8, \"input_length\": 5, \"output_length\": 1}",
         "jsonl:2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_workload w;
        struct sl_error err = {0};
        assert_int_equal(load(cases[i].text, 1, &w, &err), SL_ERR_INVALID);
        if (!strstr(err.text, cases[i].says)) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
        }
    }
}

static void test_draws_have_their_means_and_their_seed(void **state) {
    (void)state;
    struct sl_workload_config config = {
        .rate = 4, .n = 20000, .n_prompt = 1000, .n_output = 50, .spread = 0.5, .seed = 7};
    struct sl_workload w, again;
    struct sl_error err;
    assert_int_equal(sl_workload_draw(&config, &w, &err), SL_OK);
    assert_int_equal(sl_workload_draw(&config, &again, &err), SL_OK);
    double prompt = 0, output = 0;
    for (int64_t i = 0; i < w.n; i++) {
        prompt += (double)w.arrivals[i].n_prompt / (double)w.n;
        output += (double)w.arrivals[i].n_output / (double)w.n;
    }
    assert_near(prompt, 1000, 20);
    assert_near(output, 50, 1);
    assert_near((double)w.n / w.seconds, 4, 0.15);
    assert_memory_equal(w.arrivals, again.arrivals, (size_t)w.n * sizeof *w.arrivals);
    sl_workload_cleanup(&w);
    sl_workload_cleanup(&again);
}

// Three blocks; the same with another last one; the first again, long after.
static void test_reuse_is_the_common_beginning_while_it_is_kept(void **state) {
    (void)state;
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(
        load("{\"timestamp\": 0, \"input_length\": 1537, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 9]}\n"
             "{\"timestamp\": 1000, \"input_length\": 1600, \"output_length\": 1, \"hash_ids\": [1, 2, 4, 5]}\n"
             "{\"timestamp\": 2000, \"input_length\": 2000, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 6]}\n"
             "{\"timestamp\": 60000, \"input_length\": 2000, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 6]}\n",
             1, &w, &err),
        SL_OK);
    int64_t reused[4];
    assert_int_equal(sl_workload_reuse(&w, 10, true, 512, reused, &err), SL_OK);
    assert_memory_equal(reused, ((int64_t[]){0, 1024, 1536, 0}), sizeof reused);
    // Evicting recipes leave one state a prompt: after 1,536 tokens each time.
    assert_int_equal(sl_workload_reuse(&w, 10, false, 512, reused, &err), SL_OK);
    assert_memory_equal(reused, ((int64_t[]){0, 0, 1536, 0}), sizeof reused);
    assert_int_equal(sl_workload_reuse(&w, 100, true, 512, reused, &err), SL_OK);
    assert_int_equal(reused[3], 1536);
    sl_workload_cleanup(&w);
}

// --- speed ---------------------------------------------------------------------------------------------------------

static enum sl_status fit(const char *text, struct sl_speed *speed, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    char path[128];
    snprintf(path, sizeof path, "%s/cells", folder.path);
    temp_folder_write_text(&folder, "cells", text);
    enum sl_status status = sl_speed_load(path, 1000, speed, err);
    temp_folder_destroy(&folder);
    return status;
}

// Cells of a machine that is 1 us a token and 2 ns a pair, and 4 ms, 1 ms and 1 ns a byte in a step.
static const char *const exact = "{\"bench\": \"cells\", \"model\": \"m\"}\n"
                                 "{\"bench\": \"cells\", \"case\": \"prefill:1000\", \"value\": 500000}\n"
                                 "{\"bench\": \"engine\", \"case\": \"prefill\", \"value\": 3}\n"
                                 "{\"bench\": \"cells\", \"case\": \"prefill:4000\", \"value\": 200000}\n"
                                 "{\"bench\": \"cells\", \"case\": \"decode:1000x1\", \"value\": 166.66666666666667}\n"
                                 "{\"bench\": \"cells\", \"case\": \"decode:1000x4\", \"value\": 333.33333333333333}\n"
                                 "{\"bench\": \"cells\", \"case\": \"decode:5000x1\", \"value\": 100}\n";

static void test_a_machine_is_found_again_in_its_cells(void **state) {
    (void)state;
    struct sl_speed speed;
    struct sl_error err;
    assert_int_equal(fit(exact, &speed, &err), SL_OK);
    assert_near(speed.token_s, 1e-6, 1e-12);
    assert_near(speed.pair_s, 2e-9, 1e-15);
    assert_near(speed.step_s, 4e-3, 1e-9);
    assert_near(speed.row_s, 1e-3, 1e-9);
    assert_near(speed.byte_s, 1e-9, 1e-15);
    assert_true(speed.worst_prefill_error < 1e-9 && speed.worst_decode_error < 1e-9);
    // From the middle of a prompt, what is left of it: the parts add up.
    assert_near(sl_speed_prefill_s(&speed, 0, 1000) + sl_speed_prefill_s(&speed, 1000, 4000), 0.02, 1e-9);
    assert_near(sl_speed_step_s(&speed, 4, 4e6), 12e-3, 1e-9);
}

static void test_no_time_is_below_zero(void **state) {
    (void)state;
    struct sl_speed speed;
    struct sl_error err;
    // Longer prompts that are read faster a token: attention costs nothing then, and not less.
    assert_int_equal(fit("{\"bench\": \"cells\", \"case\": \"prefill:1000\", \"value\": 900}\n"
                         "{\"bench\": \"cells\", \"case\": \"prefill:4000\", \"value\": 1000}\n"
                         "{\"bench\": \"cells\", \"case\": \"decode:1000x1\", \"value\": 10}\n"
                         "{\"bench\": \"cells\", \"case\": \"decode:1000x4\", \"value\": 20}\n"
                         "{\"bench\": \"cells\", \"case\": \"decode:5000x1\", \"value\": 11}\n",
                         &speed, &err),
                     SL_OK);
    assert_true(speed.pair_s == 0 && speed.token_s > 1e-3 && speed.token_s < 1.12e-3);
    assert_true(speed.step_s >= 0 && speed.row_s >= 0 && speed.byte_s >= 0);
}

static void test_cells_that_say_too_little_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"bench\": \"cells\", \"case\": \"prefill:1000\", \"value\": 9}", "are needed"},
        {"{\"bench\": \"cells\", \"case\": \"prefill:lots\", \"value\": 9}", "cells:1"},
        {"{\"bench\": \"cells\", \"case\": \"prefill:10\", \"value\": 0}", "above 0"},
        {"nonsense", "cells:1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_speed speed;
        struct sl_error err = {0};
        assert_int_equal(fit(cases[i].text, &speed, &err), SL_ERR_INVALID);
        if (!strstr(err.text, cases[i].says)) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
        }
    }
}

// --- play ----------------------------------------------------------------------------------------------------------

// Two jobs at once, of 10 s of prefill, 1 s to the first token, and 5 s of writing.
static void test_jobs_wait_for_workers_and_for_memory(void **state) {
    (void)state;
    struct sl_play_job jobs[2] = {{0, 10, 1, 5, 60}, {0, 10, 1, 5, 60}};
    struct sl_play_config config = {
        .jobs = jobs, .n = 2, .n_prefill = 1, .n_decode = 1, .arena_bytes = 120, .n_places = 2, .ttft_s = 11};
    struct sl_play play;
    struct sl_error err;
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    assert_true(play.in_time == 0.5 && play.waited_prefill_s == 10 && play.waited_decode_s == 0 && play.p99_s == 21);
    config.n_prefill = 2;
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    assert_true(play.in_time == 1 && play.waited_prefill_s == 0 && play.p99_s == 11);
    config.arena_bytes = 119; // the second waits until the first has ended
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    assert_true(play.in_time == 0.5 && play.waited_decode_s == 16 && play.p99_s == 27);
    config.arena_bytes = 1000;
    config.n_places = 1;
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    assert_true(play.waited_decode_s == 16);
    config.n_decode = 2;
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    assert_true(play.in_time == 1 && play.waited_decode_s == 0);
}

// M/M/1 has a mean wait of rho / (mu - lambda) where jobs come and go at random: the play has it, too.
static void test_a_queue_waits_as_its_theory_says(void **state) {
    (void)state;
    struct sl_workload_config drawn = {.rate = 0.7, .n = 200000, .n_prompt = 1, .n_output = 1, .seed = 3};
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(sl_workload_draw(&drawn, &w, &err), SL_OK);
    struct sl_play_job *jobs = calloc((size_t)w.n, sizeof *jobs);
    assert_non_null(jobs);
    for (int64_t i = 0; i < w.n; i++) {
        // Exponential, of mean 1: the gaps of another process.
        jobs[i].at_s = w.arrivals[i].at_s;
        uint64_t random = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
        random = (random ^ (random >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
        jobs[i].prefill_s = -log(((double)(random >> 11) + 1) * 0x1p-53);
    }
    struct sl_play_config config = {
        .jobs = jobs, .n = w.n, .n_prefill = 1, .n_decode = 1, .arena_bytes = 1, .n_places = 1 << 20, .ttft_s = 1};
    struct sl_play play;
    assert_int_equal(sl_play(&config, &play, &err), SL_OK);
    // Waits of all are counted from when a job is first in line; the median of the time to the end is ln 2 / (mu - lambda).
    assert_near(play.p50_s, log(2) / 0.3, 0.12);
    assert_near(play.p90_s, log(10) / 0.3, 0.5);
    free(jobs);
    sl_workload_cleanup(&w);
}

// --- sizing --------------------------------------------------------------------------------------------------------

static struct sl_sizing size(const char *text, int64_t decode_arena, double ttft_s, double token_s) {
    struct sl_sizing_config config = {
        .speed = {.token_s = 20e-6, .step_s = 2e-3, .row_s = 1e-4, .byte_s = 2e-11},
        .geometry = {.n_layers = 8, .n_kv_heads = 2, .head_dim = 64},
        .max_positions = 16384,
        .ttft_s = ttft_s,
        .token_s = token_s,
        .in_time = 0.9,
        .headroom = 0.8,
        .prefill_arena = INT64_C(1) << 40,
        .decode_arena = decode_arena,
        .store_arena = INT64_C(1) << 30,
        .max_batch = 64,
        .ship_rate = 1e9,
        .keep_s = 60,
    };
    struct sl_workload_config drawn = {
        .rate = 20, .n = 2000, .n_prompt = 4000, .n_output = 400, .spread = 0.5, .seed = 1};
    struct sl_workload w;
    struct sl_recipe recipe;
    struct sl_sizing sizing;
    struct sl_error err = {0};
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_OK);
    assert_int_equal(sl_workload_draw(&drawn, &w, &err), SL_OK);
    if (sl_sizing_make(&config, &w, &recipe, &sizing, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    sl_workload_cleanup(&w);
    return sizing;
}

static void test_compression_is_fewer_decode_workers_and_stores(void **state) {
    (void)state;
    struct sl_sizing full = size("full", 256 << 20, 2, 0.1),
                     less = size("h2o,budget=0.2,format=int4", 256 << 20, 2, 0.1);
    assert_null(full.impossible);
    assert_null(less.impossible);
    assert_true(less.n_decode * 2 < full.n_decode && less.n_stores * 4 < full.n_stores);
    assert_int_equal(less.n_prefill, full.n_prefill); // the same tokens are read
    assert_true(full.in_time >= 0.9 && less.in_time >= 0.9);
    // The arithmetic is what it says.
    assert_near(full.prefill_load, full.rate * full.prefill_s, 1e-9);
    assert_int_equal(full.n_prefill, (int64_t)ceil(full.prefill_load / 0.8));
    assert_int_equal(full.places_by_arena, (int64_t)((256 << 20) / full.decode_bytes));
    assert_true(full.places == full.places_by_arena && full.places < full.places_by_time);
    assert_near(full.decode_load, full.rate * full.lifetime_s / (double)full.places, 1e-9);
}

static void test_what_cannot_be_is_said(void **state) {
    (void)state;
    assert_non_null(strstr(size("full", 256 << 20, 0.01, 0.1).impossible, "--ttft"));
    assert_non_null(strstr(size("full", 256 << 20, 2, 0.001).impossible, "--tpot"));
    struct sl_sizing tiny = size("full", 1 << 20, 2, 0.1);
    assert_true(tiny.impossible && tiny.n_jobs == 0 && tiny.n_too_big > 1900);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_trace_is_read_as_it_stands),
        cmocka_unit_test(test_a_damaged_trace_is_refused_by_its_line),
        cmocka_unit_test(test_draws_have_their_means_and_their_seed),
        cmocka_unit_test(test_reuse_is_the_common_beginning_while_it_is_kept),
        cmocka_unit_test(test_a_machine_is_found_again_in_its_cells),
        cmocka_unit_test(test_no_time_is_below_zero),
        cmocka_unit_test(test_cells_that_say_too_little_are_refused),
        cmocka_unit_test(test_jobs_wait_for_workers_and_for_memory),
        cmocka_unit_test(test_a_queue_waits_as_its_theory_says),
        cmocka_unit_test(test_compression_is_fewer_decode_workers_and_stores),
        cmocka_unit_test(test_what_cannot_be_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
