// SPDX-License-Identifier: Apache-2.0
// Purpose: the metrics against the packages that the benchmarks call (tools/golden_metrics.py), on hostile texts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "lab/eval/metrics/metric.h"

#define GOLDEN "tests/golden/metrics/scores.json"

static void read_case(json_t *golden, struct sl_sample *sample) {
    size_t i;
    json_t *text;
    *sample = (struct sl_sample){.metric = sl_metric_find(json_string_value(json_object_get(golden, "metric")))};
    assert_non_null(sample->metric);
    json_array_foreach(json_object_get(golden, "answers"), i, text) {
        assert_int_equal(sl_sample_add_answer(sample, json_string_value(text), json_string_length(text), NULL), SL_OK);
    }
    json_array_foreach(json_object_get(golden, "classes"), i, text) {
        assert_int_equal(sl_sample_add_class(sample, json_string_value(text), json_string_length(text), NULL), SL_OK);
    }
}

static void test_metrics_agree_with_the_packages(void **state) {
    (void)state;
    json_error_t cause;
    json_t *root = json_load_file(GOLDEN, 0, &cause), *golden;
    if (!root) {
        fail_msg("%s:%d: %s", GOLDEN, cause.line, cause.text);
    }
    size_t i, n_wrong = 0;
    json_array_foreach(root, i, golden) {
        struct sl_sample sample;
        struct sl_error err = {0};
        double score = NAN, wanted = json_number_value(json_object_get(golden, "score"));
        read_case(golden, &sample);
        const char *text = json_string_value(json_object_get(golden, "text"));
        enum sl_status status = sample.metric->score(&sample, text, &score, &err);
        if (status != SL_OK || !(fabs(score - wanted) <= 1e-9)) {
            print_error("case %zu: %s of \"%s\": %.12g, expected %.12g %s\n", i, sample.metric->name, text, score,
                        wanted, err.text);
            n_wrong++;
        }
        sl_sample_cleanup(&sample);
    }
    assert_true(i >= 300);
    assert_int_equal(n_wrong, 0);
    json_decref(root);
}

// A metric that is new needs cases.
static void test_every_metric_has_cases(void **state) {
    (void)state;
    json_t *root = json_load_file(GOLDEN, 0, NULL), *golden;
    assert_non_null(root);
    for (const struct sl_metric *metric = sl_metrics(); metric->name; metric++) {
        size_t i, n = 0;
        json_array_foreach(root, i, golden) {
            n += strcmp(json_string_value(json_object_get(golden, "metric")), metric->name) == 0;
        }
        assert_true(n >= 10);
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_agree_with_the_packages),
        cmocka_unit_test(test_every_metric_has_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
