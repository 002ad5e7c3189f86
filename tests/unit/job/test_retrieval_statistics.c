// SPDX-License-Identifier: Apache-2.0
// Every count of a retriever reaches its field of the message: jobs that end with all of them are few in tests of clusters.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/job/retrieval_statistics.h"

static const struct sl_retriever_stats before = {1, 2, 3, 4, 5, 6, 7, 8, 9 * SL_NS_PER_MS, 0, 0, 0, 0, 0, 0};
static const struct sl_retriever_stats after = {.n_steps = 101,
                                                .rows_fetched = 202,
                                                .rows_kept = 303,
                                                .n_asks = 404,
                                                .n_fallbacks = 505,
                                                .n_replica_asks = 606,
                                                .bytes_sent = 707,
                                                .bytes_received = 808,
                                                .wait_ns = 909 * SL_NS_PER_MS,
                                                .round_ns = 1000 * SL_NS_PER_MS,
                                                .store_ns = 1100 * SL_NS_PER_MS,
                                                .recall = 0.5,
                                                .n_probes = 1200,
                                                .n_exact = 1300,
                                                .hot_cache_bytes = 1400};

static void test_retrieval_statistics_have_every_count(void **state) {
    (void)state;
    const struct sl_retriever_stats since = sl_retriever_stats_since(&after, &before);
    Sluice__V1__Statistics message = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__Retrieval r;
    sl_retrieval_statistics_attach(&since, &r, &message);
    assert_ptr_equal(message.retrieval, &r);
    assert_int_equal(since.n_steps, 100);
    assert_int_equal(r.rows_fetched, 200);
    assert_int_equal(r.rows_kept, 300);
    assert_int_equal(message.slots_fetched, 500);
    assert_int_equal(r.asks, 400);
    assert_int_equal(r.fallbacks, 500);
    assert_int_equal(r.replica_asks, 600);
    assert_int_equal(r.bytes_sent, 700);
    assert_int_equal(r.bytes_received, 800);
    assert_true(r.wait_ms == 900 && r.round_ms == 1000 && r.store_ms == 1100 && r.recall == 0.5);
    assert_int_equal(r.probes, 1200);
    assert_int_equal(r.exact, 1300);
    assert_int_equal(r.row_cache_bytes, 1400);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_retrieval_statistics_have_every_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
