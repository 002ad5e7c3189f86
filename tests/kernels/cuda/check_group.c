// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the group by which devices gather (engine/tensor/group.h), of one rank on the device under test: its library is found, connects, gathers,
 *          and ends. More ranks need more devices; over emulated ones: tests/unit/tensor/group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/group.h"
#include "tests/kernels/cuda/device_under_test.h"

#define MOST ((size_t)4 << 20)

static struct sl_device *device;
static struct sl_stream *stream;
static struct sl_group *group; // NULL: its library is not here
static unsigned char *host, *there;

static int open_group(void **state) {
    const struct sl_ops *of_host, *ops;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_ops_select("reference", &of_host, NULL), SL_OK);
    if (device_under_test_open(of_host, &device, &ops, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    host = sl_device_alloc(device, SL_MEMORY_SHARED, MOST);
    there = sl_device_alloc(device, SL_MEMORY_DEVICE, MOST);
    assert_true(host != NULL && there != NULL);
    enum sl_status status = device_under_test_group()->open(1, 5000, &group, &err);
    if (status == SL_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", err.text);
    } else if (status != SL_OK || group->ops->join(group, 0, stream, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return 0;
}

static int close_group(void **state) {
    (void)state;
    if (group != NULL) {
        group->ops->close(group);
    }
    sl_device_free(device, SL_MEMORY_SHARED, host);
    sl_device_free(device, SL_MEMORY_DEVICE, there);
    sl_device_close(&device);
    return 0;
}

static void test_one_rank_has_what_it_had(void **state) {
    static const size_t sizes[] = {1, 33, 4096, 131073, MOST};
    struct sl_error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && group != NULL; i++) {
        for (size_t j = 0; j < sizes[i]; j++) {
            host[j] = (unsigned char)(j * 37 >> 3);
        }
        sl_stream_copy(stream, there, host, sizes[i]);
        if (group->ops->gather(group, 0, stream, there, sizes[i], &err) != SL_OK) {
            fail_msg("%zu bytes: %s", sizes[i], err.text);
        }
        assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
        memset(host, 0, sizes[i]);
        sl_stream_copy(stream, host, there, sizes[i]);
        assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(host[j], (unsigned char)(j * 37 >> 3));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_has_what_it_had),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
