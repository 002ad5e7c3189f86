// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/pull/meter.h"

#define SECOND INT64_C(1000000000)

static void test_meter_formats_times(void **state) {
    (void)state;
    char text[32];
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0.2, "0 s"},        {59.4, "59 s"},      {59.6, "1 min 0 s"},      {200, "3 min 20 s"},
                 {3600, "1 h 0 min"}, {3900, "1 h 5 min"}, {1e30, "277777 h 46 min"}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        assert_string_equal(sl_meter_format_time(times[i].seconds, text, sizeof text), times[i].text);
    }
}

static struct sl_meter opened(FILE **file, char **text, size_t *n, int width) {
    *file = open_memstream(text, n);
    assert_non_null(*file);
    return (struct sl_meter){.name = "model", .total_bytes = 100 << 20, .file = *file, .width = width};
}

static void test_meter_rate_is_of_the_last_seconds(void **state) {
    (void)state;
    FILE *file;
    char *text;
    size_t n;
    struct sl_meter meter = opened(&file, &text, &n, 0);
    assert_true(sl_meter_rate(&meter, SECOND, 0) == 0);
    // Bytes that were there at the start are not counted.
    sl_meter_show(&meter, SECOND, 50 << 20);
    assert_true(sl_meter_rate(&meter, SECOND + SECOND / 4, 51 << 20) == 0); // too soon
    assert_true(sl_meter_rate(&meter, 2 * SECOND, 51 << 20) == 1 << 20);
    // After a minute at 1 MiB a second, ten seconds without a byte: the rate is 0 again.
    for (int i = 1; i <= 20; i++) {
        sl_meter_show(&meter, (1 + i) * SECOND, (50 + i) << 20);
    }
    assert_true(sl_meter_rate(&meter, 21 * SECOND, 70 << 20) == 1 << 20);
    for (int i = 21; i <= 30; i++) {
        sl_meter_show(&meter, (1 + i) * SECOND, 70 << 20);
    }
    assert_true(sl_meter_rate(&meter, 32 * SECOND, 70 << 20) == 0);
    fclose(file);
    free(text);
}

static void test_meter_writes_a_line_every_few_seconds(void **state) {
    (void)state;
    FILE *file;
    char *text;
    size_t n;
    struct sl_meter meter = opened(&file, &text, &n, 0);
    for (int i = 0; i <= 80; i++) { // 8 s in steps of 0.1 s, 10 MiB a second
        sl_meter_show(&meter, SECOND + i * SECOND / 10, (int64_t)i << 20);
    }
    sl_meter_say(&meter, "checking");
    sl_meter_hide(&meter);
    fclose(file);
    assert_string_equal(text, "sluice pull: model: 10% of 100.0 MiB, 10.0 MiB/s, 9 s left\n"
                              "sluice pull: model: 60% of 100.0 MiB, 10.0 MiB/s, 4 s left\n");
    free(text);
}

static void test_meter_draws_on_a_terminal(void **state) {
    (void)state;
    FILE *file;
    char *text;
    size_t n;
    struct sl_meter meter = opened(&file, &text, &n, 100);
    sl_meter_show(&meter, SECOND, 0);
    sl_meter_show(&meter, 2 * SECOND, 20 << 20);
    sl_meter_say(&meter, "checking");
    sl_meter_hide(&meter);
    fclose(file);
    assert_non_null(strstr(text, "\rmodel ["));
    assert_non_null(strstr(text, "20%  20.0 MiB/100.0 MiB  20.0 MiB/s, 4 s left"));
    assert_string_equal(text + n - strlen("\rchecking\033[K\r\033[K"), "\rchecking\033[K\r\033[K");
    free(text);
}

static void test_meter_without_a_total_or_a_file(void **state) {
    (void)state;
    FILE *file;
    char *text;
    size_t n;
    struct sl_meter meter = opened(&file, &text, &n, 0), silent = {.name = "model"};
    meter.total_bytes = 0;
    sl_meter_show(&meter, SECOND, 0);
    sl_meter_show(&meter, 4 * SECOND, 3 << 20);
    fclose(file);
    assert_string_equal(text, "sluice pull: model: 3.0 MiB, 1.0 MiB/s\n");
    free(text);
    sl_meter_show(&silent, SECOND, 0);
    sl_meter_say(&silent, "checking");
    sl_meter_hide(&silent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meter_formats_times),
        cmocka_unit_test(test_meter_rate_is_of_the_last_seconds),
        cmocka_unit_test(test_meter_writes_a_line_every_few_seconds),
        cmocka_unit_test(test_meter_draws_on_a_terminal),
        cmocka_unit_test(test_meter_without_a_total_or_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
