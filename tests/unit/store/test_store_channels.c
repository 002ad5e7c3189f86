// SPDX-License-Identifier: Apache-2.0
// Purpose: a worker that has met more kvstores than it keeps channels to goes on meeting others.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "net/store/store_channels.h"

static struct sl_rpc_channel *take(struct sl_store_channels *channels, int n) {
    char address[64];
    struct sl_rpc_channel *channel = NULL;
    struct sl_error err = {0};
    snprintf(address, sizeof address, "127.0.0.1:%d", 10000 + n);
    if (sl_store_channels_take(channels, address, &channel, &err) != SL_OK) {
        fail_msg("store %d: %s", n, err.text);
    }
    return channel;
}

static void test_stores_come_and_go(void **state) {
    (void)state;
    struct sl_store_channels *channels = NULL;
    assert_int_equal(sl_store_channels_create(NULL, &channels, NULL), SL_OK);
    struct sl_rpc_channel *kept = take(channels, 0); // in use all the time
    for (int n = 1; n < 5 * SL_STORE_CHANNELS_MAX; n++) {
        sl_store_channels_give(channels, take(channels, n));
        assert_true(sl_store_channels_count(channels) <= SL_STORE_CHANNELS_MAX);
    }
    assert_ptr_equal(take(channels, 0), kept);
    sl_store_channels_give(channels, kept);
    sl_store_channels_give(channels, kept);
    // The one that was used last is there still.
    struct sl_rpc_channel *last = take(channels, 5 * SL_STORE_CHANNELS_MAX - 1);
    assert_ptr_equal(take(channels, 5 * SL_STORE_CHANNELS_MAX - 1), last);
    sl_store_channels_destroy(&channels);
    assert_null(channels);
}

static void test_all_in_use_is_told(void **state) {
    (void)state;
    struct sl_store_channels *channels = NULL;
    struct sl_rpc_channel *channel = NULL, *first = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_store_channels_create(NULL, &channels, NULL), SL_OK);
    for (int n = 0; n < SL_STORE_CHANNELS_MAX; n++) {
        channel = take(channels, n);
        first = first ? first : channel;
    }
    assert_int_equal(sl_store_channels_take(channels, "127.0.0.1:9999", &channel, &err), SL_ERR_EXHAUSTED);
    sl_store_channels_give(channels, first);
    assert_int_equal(sl_store_channels_take(channels, "127.0.0.1:9999", &channel, &err), SL_OK);
    assert_int_equal(sl_store_channels_take(channels, "nonsense", &channel, &err), SL_ERR_INVALID);
    sl_store_channels_destroy(&channels);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stores_come_and_go),
        cmocka_unit_test(test_all_in_use_is_told),
    };
    sl_rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}
