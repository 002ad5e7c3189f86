// SPDX-License-Identifier: Apache-2.0
// Purpose: workloads from traces and from draws, and how much of a prompt an earlier one leaves.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/simulate/workload.h"
#include "tests/unit/temp_folder.h"

static void assert_near(double x, double y, double tolerance) {
    if (!(fabs(x - y) <= tolerance)) {
        fail_msg("%.9g is not within %g of %.9g", x, tolerance, y);
    }
}

// --- workload ------------------------------------------------------------------------------------------------------

static enum sl_status load(const char *text, struct sl_workload *workload, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    char path[128];
    snprintf(path, sizeof path, "%s/trace.jsonl", folder.path);
    temp_folder_write_text(&folder, "trace.jsonl", text);
    enum sl_status status = sl_workload_load(path, workload, err);
    temp_folder_destroy(&folder);
    return status;
}

static void test_a_trace_is_read_as_it_stands(void **state) {
    (void)state;
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(load("{\"timestamp\": 500, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [3, 4]}\n\n"
                          "{\"timestamp\": 2500, \"input_length\": 9, \"output_length\": 1}\n",
                          &w, &err),
                     SL_OK);
    assert_int_equal(w.n, 2);
    assert_true(w.arrivals[0].at_s == 0 && w.arrivals[1].at_s == 2); // after the first one
    assert_int_equal(w.arrivals[0].n_prompt, 600);
    assert_int_equal(w.arrivals[0].n_output, 7);
    assert_int_equal(w.arrivals[0].n_blocks, 2);
    assert_int_equal(w.blocks[1], 4);
    assert_int_equal(w.arrivals[1].n_blocks, 0);
    assert_true(w.seconds == 4);
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
        assert_int_equal(load(cases[i].text, &w, &err), SL_ERR_INVALID);
        if (!strstr(err.text, cases[i].says)) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
        }
    }
}

static struct sl_workload draw(double burstiness, const char *input, const char *output) {
    struct sl_workload_config config = {.rate = 4, .burstiness = burstiness, .n = 20000, .seed = 7};
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(sl_lengths_parse("input", input, &config.input, &err), SL_OK);
    assert_int_equal(sl_lengths_parse("output", output, &config.output, &err), SL_OK);
    assert_int_equal(sl_workload_draw(&config, &w, &err), SL_OK);
    return w;
}

static void test_draws_have_their_means_and_their_seed(void **state) {
    (void)state;
    struct sl_workload w = draw(1, "exp:1000", "40-60"), again = draw(1, "exp:1000", "40-60");
    double prompt = 0, output = 0;
    for (int64_t i = 0; i < w.n; i++) {
        prompt += (double)w.arrivals[i].n_prompt / (double)w.n;
        output += (double)w.arrivals[i].n_output / (double)w.n;
        assert_in_range(w.arrivals[i].n_output, 40, 60);
    }
    assert_near(prompt, 1000, 30);
    assert_near(output, 50, 0.2);
    assert_near((double)w.n / w.seconds, 4, 0.15);
    assert_memory_equal(w.arrivals, again.arrivals, (size_t)w.n * sizeof *w.arrivals);
    sl_workload_cleanup(&w);
    sl_workload_cleanup(&again);
}

// The variance of gaps of mean 1/4 is 1/16 divided by the shape.
static void test_gaps_are_as_bursty_as_asked(void **state) {
    (void)state;
    static const double shapes[] = {0.25, 1, 4};
    for (size_t k = 0; k < 3; k++) {
        struct sl_workload w = draw(shapes[k], "8", "lognormal:50:0.5");
        double squares = 0;
        for (int64_t i = 1; i < w.n; i++) {
            double gap = w.arrivals[i].at_s - w.arrivals[i - 1].at_s - 0.25;
            squares += gap * gap / (double)(w.n - 1);
        }
        assert_near(squares * 16 * shapes[k], 1, 0.12);
        assert_int_equal(w.arrivals[9].n_prompt, 8);
        sl_workload_cleanup(&w);
    }
}

static void test_lengths_that_are_none_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "x", "0", "5-", "5-4", "-3", "exp:", "exp:5x", "lognormal:5", "lognormal:5:99", "1e12"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_lengths lengths;
        struct sl_error err;
        assert_int_equal(sl_lengths_parse("input", bad[i], &lengths, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "--input"));
    }
}

// Three blocks; the same with another last one; the first again, twice.
static void test_reuse_is_the_common_beginning(void **state) {
    (void)state;
    struct sl_workload w;
    struct sl_error err;
    assert_int_equal(
        load("{\"timestamp\": 0, \"input_length\": 1537, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 9]}\n"
             "{\"timestamp\": 1000, \"input_length\": 1600, \"output_length\": 1, \"hash_ids\": [1, 2, 4, 5]}\n"
             "{\"timestamp\": 2000, \"input_length\": 2000, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 6]}\n"
             "{\"timestamp\": 60000, \"input_length\": 2000, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 6]}\n",
             &w, &err),
        SL_OK);
    int64_t reused[4];
    assert_int_equal(sl_workload_reuse(&w, reused, &err), SL_OK);
    assert_memory_equal(reused, ((int64_t[]){0, 1024, 1536, 1536}), sizeof reused);
    sl_workload_cleanup(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_trace_is_read_as_it_stands),
        cmocka_unit_test(test_a_damaged_trace_is_refused_by_its_line),
        cmocka_unit_test(test_draws_have_their_means_and_their_seed),
        cmocka_unit_test(test_gaps_are_as_bursty_as_asked),
        cmocka_unit_test(test_lengths_that_are_none_are_refused),
        cmocka_unit_test(test_reuse_is_the_common_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
