// SPDX-License-Identifier: Apache-2.0
// Why what travels is staged: the first thing that is missing, and in the end that the host computes digests.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "node/staged.h"

static void test_staged_reason_is_the_first_that_is_missing(void **state) {
    struct sl_direct_means means = {false, false, false};
    (void)state;
    assert_string_equal(sl_staged_reason(&means), "UCX here does not know CUDA's memory");
    means.has_rdma = means.network_reaches = true; // whatever else is there
    assert_string_equal(sl_staged_reason(&means), "UCX here does not know CUDA's memory");
    means = (struct sl_direct_means){true, false, true};
    assert_string_equal(sl_staged_reason(&means), "no RDMA");
    means = (struct sl_direct_means){true, true, false};
    assert_string_equal(sl_staged_reason(&means), "the device does not let RDMA into its memory");
}

static void test_staged_reason_is_digests_where_nothing_is_missing(void **state) {
    const struct sl_direct_means means = {true, true, true};
    (void)state;
    assert_string_equal(sl_staged_reason(&means), "digests are computed by the host");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staged_reason_is_the_first_that_is_missing),
        cmocka_unit_test(test_staged_reason_is_digests_where_nothing_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
