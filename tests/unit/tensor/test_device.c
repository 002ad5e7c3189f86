// SPDX-License-Identifier: Apache-2.0
// The processors as a device: what engine/tensor/device.h promises of every filling, and that of this one work is done on return.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/stream.h"

static void test_device_memory_is_aligned_and_writable(void **state) {
    struct sl_device *device = sl_cpu_caller()->device;
    static const size_t sizes[] = {1, 63, 64, 65, 1 << 20};
    (void)state;
    for (int memory = SL_MEMORY_DEVICE; memory <= SL_MEMORY_SHARED; memory++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char *block = sl_device_alloc(device, (enum sl_memory)memory, sizes[i]);
            assert_non_null(block);
            assert_int_equal((uintptr_t)block % 64, 0);
            memset(block, 0xab, sizes[i]);
            sl_device_free(device, (enum sl_memory)memory, block);
        }
    }
}

static void test_device_memory_ends_with_a_null(void **state) {
    struct sl_device *device = sl_cpu_caller()->device;
    (void)state;
    assert_null(sl_device_alloc(device, SL_MEMORY_DEVICE, 0));
    assert_null(sl_device_alloc(device, SL_MEMORY_DEVICE, SIZE_MAX / 2));
    sl_device_free(device, SL_MEMORY_DEVICE, NULL);
}

static void test_stream_copies_in_order(void **state) {
    struct sl_stream *stream = test_stream_open(2);
    struct sl_error err;
    char a[100], b[100];
    (void)state;
    memset(a, 1, sizeof a);
    sl_stream_copy(stream, b, a, sizeof a);
    struct sl_mark behind = sl_stream_mark(stream);
    sl_stream_copy(stream, b, "x", 1);
    assert_int_equal(sl_mark_wait(&behind, &err), SL_OK);
    assert_true(sl_mark_reached(&behind));
    assert_int_equal(sl_stream_wait(stream, &err), SL_OK);
    assert_int_equal(b[0], 'x');
    assert_memory_equal(b + 1, a + 1, sizeof a - 1);
    test_stream_close(&stream);
    assert_null(stream);
}

static void test_mark_that_was_never_made_is_reached(void **state) {
    struct sl_mark none = {0};
    (void)state;
    assert_true(sl_mark_reached(&none));
    assert_int_equal(sl_mark_wait(&none, NULL), SL_OK);
}

static void test_streams_of_a_device_wait_for_one_another(void **state) {
    struct sl_stream *compute = test_stream_open(2);
    struct sl_stream *in = sl_device_stream(compute->device, SL_STREAM_IN);
    int from = 42, between = 0, to = 0;
    (void)state;
    assert_ptr_not_equal(in, compute);
    assert_ptr_equal(in->device, compute->device);
    sl_stream_copy(in, &between, &from, sizeof from);
    struct sl_mark copied = sl_stream_mark(in);
    sl_stream_after(compute, &copied);
    sl_stream_copy(compute, &to, &between, sizeof between);
    assert_int_equal(sl_stream_wait(compute, NULL), SL_OK);
    assert_int_equal(to, from);
    assert_int_equal(sl_device_share(compute->device, &from, sizeof from, NULL), SL_OK);
    test_stream_close(&compute);
}

static void count_task(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        ((int *)arg)[i]++;
    }
}

static void test_stream_runs_loops_with_and_without_threads(void **state) {
    struct sl_stream *stream = test_stream_open(3), *const streams[] = {stream, sl_cpu_caller(), NULL};
    (void)state;
    for (size_t s = 0; s < sizeof streams / sizeof streams[0]; s++) {
        int counts[1000] = {0};
        assert_int_equal(sl_stream_threads(streams[s]), s == 0 ? 3 : 1);
        sl_stream_run(streams[s], 1000, 7, count_task, counts);
        for (int i = 0; i < 1000; i++) {
            assert_int_equal(counts[i], 1);
        }
    }
    test_stream_close(&stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_memory_is_aligned_and_writable),
        cmocka_unit_test(test_device_memory_ends_with_a_null),
        cmocka_unit_test(test_stream_copies_in_order),
        cmocka_unit_test(test_mark_that_was_never_made_is_reached),
        cmocka_unit_test(test_streams_of_a_device_wait_for_one_another),
        cmocka_unit_test(test_stream_runs_loops_with_and_without_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
