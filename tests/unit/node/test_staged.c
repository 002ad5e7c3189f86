// SPDX-License-Identifier: Apache-2.0
// Why what travels is staged: the first thing that is missing, or nothing.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/node/staged.h"

static const char *reason_of(const struct sl_direct_means *means) {
    static char text[128];
    return sl_staged_reason(means, text, sizeof text);
}

static void test_staged_reason_is_the_first_that_is_missing(void **state) {
    struct sl_direct_means means = {.ucx = "1.13.1"};
    (void)state;
    assert_string_equal(reason_of(&means), "--gpudirect off");
    means.has_rdma = means.network_reaches = true; // whatever else is there
    assert_string_equal(reason_of(&means), "--gpudirect off");
    means.wanted = true;
    assert_string_equal(reason_of(&means), "several devices compute one model");
    means.one_device = true;
    means.ucx_knows_cuda = true;
    assert_string_equal(reason_of(&means), "UCX here is 1.13.1, and 1.16 or newer is needed");
    means.ucx_is_new = true;
    means.ucx_knows_cuda = false;
    assert_string_equal(reason_of(&means),
                        "UCX 1.13.1 here does not know CUDA's memory: it was built without CUDA, or finds no driver");
    means.ucx_knows_cuda = true;
    means.has_rdma = false;
    assert_string_equal(reason_of(&means), "no RDMA");
    means.has_rdma = true;
    means.network_reaches = false;
    assert_string_equal(reason_of(&means), "the device does not let RDMA into its memory");
    means.network_reaches = true;
    assert_null(reason_of(&means));
}

static void test_staged_reason_of_ordinary_memory_is_none(void **state) {
    const struct sl_direct_means means = {
        .wanted = true, .one_device = true, .network_reaches = true, .ordinary = true};
    (void)state;
    assert_null(reason_of(&means));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staged_reason_is_the_first_that_is_missing),
        cmocka_unit_test(test_staged_reason_of_ordinary_memory_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
