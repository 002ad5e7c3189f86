// SPDX-License-Identifier: Apache-2.0
// Purpose: what is counted, and that nothing counted is lost.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "coordinator/run/counters.h"
#include "tests/unit/metrics_page.h"

// Returns the number that follows `beginning` at the start of a line.
static double value_of(const char *page, const char *beginning) {
    const char *found = strstr(page, beginning);
    assert_non_null(found);
    return strtod(found + strlen(beginning), NULL);
}

static void test_histogram_counts_up_to_each_bound(void **state) {
    (void)state;
    struct sl_histogram histogram = {0};
    static const double seconds[] = {0, 0.001, 0.0011, 1, 600, 601, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        sl_histogram_add(&histogram, seconds[i]);
    }
    struct page page;
    sl_histogram_write(&histogram, page_open(&page), "t_seconds", "Words.");
    assert_int_equal(fclose(page.file), 0);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"0.001\"} "),
                     5); // 0, 0.001, and the three that are none
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"0.0025\"} "), 6);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"0.5\"} "), 6);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"1\"} "), 7);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"300\"} "), 7);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"600\"} "), 8);
    assert_int_equal((int)value_of(page.text, "t_seconds_bucket{le=\"+Inf\"} "), 9);
    assert_int_equal((int)value_of(page.text, "t_seconds_count "), 9);
    assert_true(fabs(value_of(page.text, "t_seconds_sum ") - 1202.0021) < 1e-6);
    assert_non_null(strstr(page.text, "# TYPE t_seconds histogram\n"));
    free(page.text);
}

static const char *const labels[2] = {"recipe", "transport"};

static void test_pairs_are_counted_apart_up_to_a_cap(void **state) {
    (void)state;
    struct sl_pair_counters counters = SL_PAIR_COUNTERS_INIT;
    sl_pair_counters_add(&counters, "full", "shm", 10, 20);
    sl_pair_counters_add(&counters, "full", "tcp", 1, 2);
    sl_pair_counters_add(&counters, "full", "shm", 5, 5);
    struct page page;
    sl_pair_counters_write(&counters, 0, page_open(&page), "a_total", labels);
    assert_page(&page, "a_total{recipe=\"full\",transport=\"shm\"} 15\na_total{recipe=\"full\",transport=\"tcp\"} 1\n");
    sl_pair_counters_write(&counters, 1, page_open(&page), "b_total", labels);
    assert_page(&page, "b_total{recipe=\"full\",transport=\"shm\"} 25\nb_total{recipe=\"full\",transport=\"tcp\"} 2\n");

    for (int i = 0; i < 100; i++) {
        char recipe[32];
        snprintf(recipe, sizeof recipe, "r%d", i);
        sl_pair_counters_add(&counters, recipe, "shm", 1, 1);
    }
    sl_pair_counters_write(&counters, 0, page_open(&page), "a_total", labels);
    assert_int_equal(fclose(page.file), 0);
    int n_lines = 0;
    for (const char *c = page.text; *c; c++) {
        n_lines += *c == '\n';
    }
    assert_int_equal(n_lines, SL_MAX_PAIRS + 1);
    assert_int_equal((int)value_of(page.text, "a_total{recipe=\"other\",transport=\"other\"} "), 102 - SL_MAX_PAIRS);
    free(page.text);
}

static void test_long_labels_are_cut_and_still_found(void **state) {
    (void)state;
    struct sl_pair_counters counters = SL_PAIR_COUNTERS_INIT;
    char recipe[2 * SL_PAIR_BYTES];
    memset(recipe, 'r', sizeof recipe - 1);
    recipe[sizeof recipe - 1] = '\0';
    sl_pair_counters_add(&counters, recipe, "shm", 1, 1);
    sl_pair_counters_add(&counters, recipe, "shm", 1, 1);
    assert_int_equal(atomic_load(&counters.n_pairs), 1);
    assert_int_equal(strlen(counters.pairs[0].values[0]), SL_PAIR_BYTES - 1);
}

enum { N_THREADS = 4, N_ROUNDS = 20000 };

struct shared {
    struct sl_pair_counters counters;
    struct sl_histogram histogram;
};

static void *count_on(void *arg) {
    struct shared *shared = arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        char recipe[16];
        snprintf(recipe, sizeof recipe, "r%d", i % 40); // more than there is room for
        sl_pair_counters_add(&shared->counters, recipe, "shm", 1, 2);
        sl_histogram_add(&shared->histogram, 0.5);
    }
    return NULL;
}

static void test_nothing_is_lost_between_threads(void **state) {
    (void)state;
    static struct shared shared = {.counters = SL_PAIR_COUNTERS_INIT};
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(sl_thread_start("count", count_on, &shared, &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < 20; i++) { // pages are written meanwhile
        struct page page;
        sl_pair_counters_write(&shared.counters, 0, page_open(&page), "a_total", labels);
        sl_histogram_write(&shared.histogram, page.file, "t_seconds", "Words.");
        assert_int_equal(fclose(page.file), 0);
        double n = value_of(page.text, "t_seconds_count ");
        assert_true(value_of(page.text, "t_seconds_bucket{le=\"+Inf\"} ") == n);
        free(page.text);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    int64_t n = 0, other_n = 0;
    for (int i = 0; i <= SL_MAX_PAIRS; i++) {
        n += atomic_load(&shared.counters.pairs[i].counts[0]);
        other_n += atomic_load(&shared.counters.pairs[i].counts[1]);
    }
    assert_int_equal(n, N_THREADS * N_ROUNDS);
    assert_int_equal(other_n, 2 * N_THREADS * N_ROUNDS);
    assert_int_equal(atomic_load(&shared.counters.n_pairs), SL_MAX_PAIRS);
    assert_int_equal(atomic_load(&shared.histogram.sum_ns), (int64_t)N_THREADS * N_ROUNDS * 500000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histogram_counts_up_to_each_bound),
        cmocka_unit_test(test_pairs_are_counted_apart_up_to_a_cap),
        cmocka_unit_test(test_long_labels_are_cut_and_still_found),
        cmocka_unit_test(test_nothing_is_lost_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
