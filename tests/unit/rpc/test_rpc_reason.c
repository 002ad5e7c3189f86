// SPDX-License-Identifier: Apache-2.0
// Purpose: reason and culprit of a failure as metadata: the reader ignores whatever a peer should not have sent.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "net/rpc/rpc_internal.h"

// Reads metadata of these keys and values, as the client of a failed call does.
static struct sl_error take(const char *const pairs[][2], size_t n) {
    grpc_metadata entries[4];
    struct sl_error err;
    assert_in_range(n, 0, 4);
    for (size_t i = 0; i < n; i++) {
        entries[i] = (grpc_metadata){.key = grpc_slice_from_static_string(pairs[i][0]),
                                     .value = grpc_slice_from_static_string(pairs[i][1])};
    }
    grpc_metadata_array metadata = {.count = n, .capacity = n, .metadata = entries};
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    sl_rpc_reason_take(&metadata, &err);
    assert_int_equal(err.status, SL_ERR_EXHAUSTED);
    assert_string_equal(err.text, "no room");
    return err;
}

static void test_what_was_attached_is_taken(void **state) {
    (void)state;
    struct sl_error err, taken;
    struct sl_rpc_reason_entries entries;
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    assert_int_equal(sl_rpc_reason_attach(&entries, &err), 0); // as an older peer
    sl_error_blame(&err, SL_REASON_OLD_TERM, "");
    assert_int_equal(sl_rpc_reason_attach(&entries, &err), 1);
    sl_error_blame(&err, SL_REASON_STORE, "10.0.0.1:7010");
    sl_error_blame(&err, SL_REASON_STORE, "10.0.0.2:7010");
    grpc_metadata_array metadata = {.count = sl_rpc_reason_attach(&entries, &err), .metadata = entries.metadata};
    assert_int_equal(metadata.count, 2);
    sl_fail(&taken, SL_ERR_EXHAUSTED, "no room");
    sl_rpc_reason_take(&metadata, &taken);
    assert_int_equal(taken.reason, SL_REASON_STORE);
    assert_string_equal(taken.culprit, "10.0.0.1:7010,10.0.0.2:7010");
    sl_rpc_reason_take(&metadata, NULL);
    sl_error_blame(&err, SL_REASON_UNCONNECTED, "");
    assert_int_equal(sl_rpc_reason_attach(&entries, &err), 0); // of our own connections
}

static void test_reasons_that_no_server_sends_are_ignored(void **state) {
    (void)state;
    static const char *const names[] = {"", "of-tomorrow", "unconnected", "unknown-method", "Store", "store ", "\xff"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct sl_error err = take((const char *const[][2]){{"sluice-reason", names[i]}, {"sluice-culprit", "a:1"}}, 2);
        assert_int_equal(err.reason, SL_REASON_NONE);
        assert_string_equal(err.culprit, ""); // nothing without a reason
    }
    struct sl_error err = take((const char *const[][2]){{"sluice-culprit", "a:1"}}, 1);
    assert_string_equal(err.culprit, "");
    err = take((const char *const[][2]){{"sluice-reason", "store"}, {"sluice-reason", "old-term"}}, 2);
    assert_int_equal(err.reason, SL_REASON_NONE); // two are none
    err = take((const char *const[][2]){{"grpc-message", "store"}}, 1);
    assert_int_equal(err.reason, SL_REASON_NONE);
}

static void test_culprits_that_are_no_addresses_are_ignored(void **state) {
    (void)state;
    char full[SL_CULPRIT_BYTES], longer[SL_CULPRIT_BYTES + 1];
    memset(full, 'a', sizeof full - 1);
    full[sizeof full - 1] = '\0';
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    const struct {
        const char *sent, *taken;
    } cases[] = {{"a:1", "a:1"},     {"a:1,b:2", "a:1,b:2"}, {"", ""},     {",,a:1,,", "a:1"}, {"a:1,\x01:2", "a:1"},
                 {"\xc3\xa4:1", ""}, {"a b:1", ""},          {full, full}, {longer, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err =
            take((const char *const[][2]){{"sluice-reason", "store"}, {"sluice-culprit", cases[i].sent}}, 2);
        assert_int_equal(err.reason, SL_REASON_STORE);
        assert_string_equal(err.culprit, cases[i].taken);
    }
    struct sl_error err = take(
        (const char *const[][2]){{"sluice-reason", "store"}, {"sluice-culprit", "a:1"}, {"sluice-culprit", "b:1"}}, 3);
    assert_int_equal(err.reason, SL_REASON_STORE);
    assert_string_equal(err.culprit, "");
    // A zero byte would hide the rest.
    grpc_metadata entries[] = {
        {.key = grpc_slice_from_static_string("sluice-reason"), .value = grpc_slice_from_static_string("store")},
        {.key = grpc_slice_from_static_string("sluice-culprit"), .value = grpc_slice_from_static_buffer("a:1\0b", 5)}};
    grpc_metadata_array metadata = {.count = 2, .metadata = entries};
    sl_fail(&err, SL_ERR_EXHAUSTED, "no room");
    sl_rpc_reason_take(&metadata, &err);
    assert_string_equal(err.culprit, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_attached_is_taken),
        cmocka_unit_test(test_reasons_that_no_server_sends_are_ignored),
        cmocka_unit_test(test_culprits_that_are_no_addresses_are_ignored),
    };
    sl_rpc_init();
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
