// SPDX-License-Identifier: Apache-2.0
// The plugin's driver and a device over it, on a runtime of CUDA that the test makes (fake_cudart.h).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/tensor/cuda/plugin/cudart_driver.h"
#include "engine/tensor/cuda/table/device.h"
#include "tests/kernels/cuda/fake_cudart.h"

// A driver that is older than the toolkit: both versions, and what to do.
static void test_cudart_says_which_driver_it_needs(void **state) {
    struct sl_device *device;
    struct sl_error err = {0};
    char needs[96];
    (void)state;
    fake_cudart.driver = (CUDART_VERSION / 1000 - 1) * 1000 + 40;
    assert_int_equal(sl_gpu_device_open(&sl_gpu_cudart, 0, NULL, &device, &err), SL_ERR_UNSUPPORTED);
    snprintf(needs, sizeof needs, "is for CUDA %d.4, and this plugin, of CUDA %d.%d, needs driver %s or newer",
             CUDART_VERSION / 1000 - 1, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
             CUDART_VERSION >= 13000 ? "580" : "525");
    assert_non_null(strstr(err.text, needs));
    snprintf(needs, sizeof needs, "update the driver, or build the plugin with a toolkit of CUDA %d",
             CUDART_VERSION / 1000 - 1);
    assert_non_null(strstr(err.text, needs));
    fake_cudart.driver = CUDART_VERSION;
}

// Streams that only copy have no rings: closing one device must not look like the failure of the next.
static void test_cudart_closes_without_a_failure(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sl_device *device;
        struct sl_error err = {0};
        assert_int_equal(sl_gpu_device_open(&sl_gpu_cudart, 0, NULL, &device, &err), SL_OK);
        struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
        if (sl_stream_wait(stream, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
        assert_false(sl_device_has_failed(device));
        sl_device_close(&device);
    }
    assert_int_equal(fake_cudart.n_freed_null, 0);
    sl_gpu_cudart.free(NULL);
    sl_gpu_cudart.free_shared(NULL);
    assert_int_equal(fake_cudart.n_freed_null, 0);
}

// A wait ends although CUDA's would not.
static void test_cudart_that_hangs_is_given_up(void **state) {
    struct sl_device *device;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_gpu_device_open(&sl_gpu_cudart, 0, NULL, &device, &err), SL_OK);
    struct sl_stream *stream = sl_device_stream(device, SL_STREAM_COMPUTE);
    void *block = sl_device_alloc(device, SL_MEMORY_SHARED, 64);
    sl_device_limit_waits(device, 300);
    fake_cudart.hangs = true;
    int64_t began_ns = sl_now_ns();
    assert_int_equal(sl_stream_wait(stream, &err), SL_ERR_INTERNAL);
    assert_true(sl_now_ns() - began_ns < 20 * SL_NS_PER_S);
    assert_non_null(strstr(err.text, "device 0 (cuda) hangs"));
    assert_true(sl_device_has_failed(device));
    sl_device_free(device, SL_MEMORY_SHARED, block);
    sl_device_close(&device);
    fake_cudart.hangs = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cudart_says_which_driver_it_needs),
        cmocka_unit_test(test_cudart_closes_without_a_failure),
        cmocka_unit_test(test_cudart_that_hangs_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
