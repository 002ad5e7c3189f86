// SPDX-License-Identifier: Apache-2.0
// Purpose: how many calls a connection may cancel in a second: half after each that was closed for it, down to a sixteenth, until it is calm.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "base/clock.h"
#include "net/rpc/connections/rpc_connections.h"

enum { MOST = 500, CALM_S = 10 };

// The tests' clock
static int64_t now_ns = 1000 * SL_NS_PER_S;

int64_t __wrap_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void) {
    return now_ns;
}

static int count_until_closed(const char *peer) {
    int n = 0;
    while (!sl_rpc_resets_of_peer(peer)) {
        n++;
    }
    return n;
}

static int count_in_reads(void) {
    int64_t since_ns = 0;
    int n = 0, count = 0;
    while (!sl_rpc_resets_in_a_read(&since_ns, &n)) {
        count++;
    }
    return count;
}

static void test_a_host_may_do_half_after_each_closed_connection(void **state) {
    (void)state;
    static const char *const peers[] = {"ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.1:3", "ipv4:10.0.0.1:4",
                                        "ipv4:10.0.0.1:5", "ipv4:10.0.0.1:6", "ipv4:10.0.0.1:7"};
    static const int allowed[] = {MOST, MOST / 2, MOST / 4, MOST / 8, MOST / 16, MOST / 16, MOST / 16};
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        assert_int_equal(count_until_closed(peers[i]), allowed[i]);
    }
    for (int i = 0; i < 2 * MOST; i++) { // of calls that the closed connection had open
        assert_false(sl_rpc_resets_of_peer(peers[0]));
    }
    assert_int_equal(count_until_closed("ipv4:10.0.0.2:1"), MOST);
    now_ns += CALM_S * SL_NS_PER_S;
    assert_int_equal(count_until_closed("ipv4:10.0.0.1:8"), MOST / 16);
    now_ns += CALM_S * SL_NS_PER_S + 1;
    assert_int_equal(count_until_closed("ipv4:10.0.0.1:9"), MOST);
}

static void test_everyone_may_do_half_of_resets_in_a_read(void **state) {
    (void)state;
    now_ns += 2 * CALM_S * SL_NS_PER_S;
    assert_int_equal(count_in_reads(), MOST);
    assert_int_equal(count_in_reads(), MOST / 2);
    now_ns += CALM_S * SL_NS_PER_S + 1;
    assert_int_equal(count_in_reads(), MOST);
    int64_t since_ns = 0;
    int n = 0;
    for (int i = 0; i < 4 * MOST; i++) { // never so many in a second
        assert_false(sl_rpc_resets_in_a_read(&since_ns, &n));
        now_ns += SL_NS_PER_S / 100;
    }
}

static void test_a_callers_closed_connection_is_known_for_a_while(void **state) {
    (void)state;
    assert_false(sl_rpc_resets_are_recent(11));
    sl_rpc_resets_note(11);
    sl_rpc_resets_note(0);
    assert_true(sl_rpc_resets_are_recent(11));
    assert_false(sl_rpc_resets_are_recent(13));
    assert_false(sl_rpc_resets_are_recent(0));
    now_ns += CALM_S * SL_NS_PER_S - 1;
    assert_true(sl_rpc_resets_are_recent(11));
    now_ns++;
    assert_false(sl_rpc_resets_are_recent(11));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_may_do_half_after_each_closed_connection),
        cmocka_unit_test(test_everyone_may_do_half_of_resets_in_a_read),
        cmocka_unit_test(test_a_callers_closed_connection_is_known_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
