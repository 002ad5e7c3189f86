// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a group of one rank on the device under test: its library is found, connects, adds up, and lets go. More ranks want more devices;
 *          over emulated ones: tests/unit/tensor/group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cpu/tiers.h"
#include "tensor/group/group.h"
#include "tests/kernels/cuda/device_under_test.h"

#define MOST 1000003 // floats: of a large sum, too

static struct sl_device *device;
static struct sl_stream *stream;
static struct sl_group *group; // NULL: its library is not here
static void *hall;
static float *host, *there; // [MOST], shared and device memory

static int open_group(void **state) {
    const struct sl_ops *of_host, *ops;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_ops_select("reference", &of_host, NULL), SL_OK);
    if (device_under_test_open(of_host, &device, &ops, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    host = sl_device_alloc(device, SL_MEMORY_SHARED, MOST * sizeof *host);
    there = sl_device_alloc(device, SL_MEMORY_DEVICE, MOST * sizeof *there);
    size_t bytes = (sl_group_hall_bytes(1) + 63) / 64 * 64;
    hall = aligned_alloc(64, bytes);
    assert_true(host != NULL && there != NULL && hall != NULL);
    memset(hall, 0, bytes);
    const struct sl_group_config config = {.hall = hall, .size = 1, .one_process = true, .device = device};
    enum sl_status status = sl_group_join(device_under_test_group(), &config, &group, &err);
    if (status == SL_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", err.text);
    } else if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
    return 0;
}

static int close_group(void **state) {
    (void)state;
    sl_group_leave(&group);
    sl_device_free(device, SL_MEMORY_SHARED, host);
    sl_device_free(device, SL_MEMORY_DEVICE, there);
    sl_device_close(&device);
    free(hall);
    return 0;
}

// Whatever the group does with what one rank has, it is what that has.
static void through(size_t n, bool gathered) {
    struct sl_error err = {0};
    for (size_t i = 0; i < n; i++) {
        host[i] = (float)i * 0.37f - 7;
    }
    sl_stream_copy(stream, there, host, n * sizeof *host);
    enum sl_status status = gathered ? sl_group_gather(group, stream, there, n * sizeof *there, there, &err)
                                     : sl_group_sum(group, stream, there, (int64_t)n, &err);
    if (status != SL_OK) {
        fail_msg("%zu floats: %s", n, err.text);
    }
    assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
    memset(host, 0, n * sizeof *host);
    sl_stream_copy(stream, host, there, n * sizeof *host);
    assert_int_equal(sl_stream_wait(stream, NULL), SL_OK);
    for (size_t i = 0; i < n; i++) {
        float want = (float)i * 0.37f - 7;
        assert_memory_equal(&host[i], &want, sizeof want);
    }
}

static void test_one_rank_has_what_it_had(void **state) {
    static const size_t sizes[] = {0, 1, 33, 65537, 131072, 131073, MOST};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && group != NULL; i++) {
        through(sizes[i], false);
        through(sizes[i], true);
    }
}

static void test_one_rank_meets_itself(void **state) {
    struct sl_error err = {0};
    int whose = -7;
    (void)state;
    if (group != NULL) {
        assert_int_equal(sl_group_meet(group, SL_OK, &whose, &err), SL_OK);
        assert_int_equal(whose, -1);
        sl_fail(&err, SL_ERR_IO, "its disk");
        assert_int_equal(sl_group_meet(group, SL_ERR_IO, &whose, &err), SL_ERR_IO);
        assert_string_equal(err.text, "rank 0 of 1: its disk");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_has_what_it_had),
        cmocka_unit_test(test_one_rank_meets_itself),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
