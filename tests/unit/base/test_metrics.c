// SPDX-License-Identifier: Apache-2.0
// Purpose: Prometheus' text.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/metrics.h"
#include "tests/unit/metrics_page.h"

static void test_sample_has_labels_and_value(void **state) {
    (void)state;
    struct page page;
    FILE *file = page_open(&page);
    sl_metrics_declare(file, SL_GAUGE, "a_bytes", "Words.");
    sl_metrics_sample(file, "a_bytes", 0, NULL);
    sl_metrics_sample(file, "a_bytes", 123456789012345, "x", "1", NULL);
    sl_metrics_sample(file, "a_bytes", 0.25, "x", "1", "y", "2", NULL);
    sl_metrics_sample(file, "a_bytes", 1795425554.94, NULL);
    assert_page(&page, "# HELP a_bytes Words.\n# TYPE a_bytes gauge\n"
                       "a_bytes 0\n"
                       "a_bytes{x=\"1\"} 123456789012345\n"
                       "a_bytes{x=\"1\",y=\"2\"} 0.25\n"
                       "a_bytes 1795425554.94\n");
}

static void test_label_values_are_escaped(void **state) {
    (void)state;
    struct page page;
    sl_metrics_sample(page_open(&page), "a", 1, "x", "q\"b\\n\nend", NULL);
    assert_page(&page, "a{x=\"q\\\"b\\\\n\\nend\"} 1\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_has_labels_and_value),
        cmocka_unit_test(test_label_values_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
