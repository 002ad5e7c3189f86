// SPDX-License-Identifier: Apache-2.0
// Purpose: checks the promises of a driver (engine/tensor/cuda/table/driver.h), for the emulator and for CUDA alike.
#include <sys/mman.h>

#include "tests/kernels/cuda/gpu_fixture.h"

enum { N = 1 << 20 };

// Memory of another owner, as the fabric's region is.
static void test_driver_shares_memory(void **state) {
    (void)state;
    struct sl_error err = {0};
    uint32_t *mapped = mmap(NULL, 2 * N * sizeof *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapped != MAP_FAILED);
    if (sl_under_test->share(mapped, 2 * N * sizeof *mapped, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (uint32_t i = 0; i < N; i++) {
        mapped[i] = i * 2654435761u;
    }
    void *there = gpu_room(N * sizeof *mapped);
    gpu_copy(queue, there, mapped, N * sizeof *mapped);
    gpu_copy(queue, mapped + N, there, N * sizeof *mapped);
    gpu_wait(queue);
    assert_memory_equal(mapped, mapped + N, N * sizeof *mapped);
    gpu_free(there);
}

// Up in one queue, down in another: the second waits for the first, again and again.
static void test_driver_orders_queues(void **state) {
    (void)state;
    struct gpu_queue *out = sl_under_test->queue_open();
    struct gpu_event *up = sl_under_test->event_open(), *down = sl_under_test->event_open();
    uint32_t *shared = sl_under_test->alloc_shared(2 * N * sizeof *shared);
    assert_non_null(out);
    assert_non_null(shared);
    char *there = gpu_room(N * sizeof *shared);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < N; i++) {
            shared[i] = i + round;
        }
        gpu_copy(queue, there, shared, N * sizeof *shared);
        sl_under_test->event_record(up, queue);
        sl_under_test->event_before(up, out);
        gpu_copy(out, shared + N, there, N * sizeof *shared);
        sl_under_test->event_record(down, out);
        assert_int_equal(sl_under_test->event_wait(down, NULL), SL_OK);
        assert_true(sl_under_test->event_reached(down));
        assert_true(sl_under_test->event_reached(up));
        assert_memory_equal(shared, shared + N, N * sizeof *shared);
    }
    gpu_free(there);
    sl_under_test->free_shared(shared);
    sl_under_test->event_close(&up);
    sl_under_test->event_close(&down);
    sl_under_test->queue_close(&out);
}

static void test_driver_says_that_memory_is_exhausted(void **state) {
    (void)state;
    assert_null(sl_under_test->alloc((size_t)1 << 60));
    void *there = gpu_room(64); // and goes on
    uint32_t up[16] = {7}, down[16] = {0};
    gpu_copy(queue, there, up, sizeof up);
    gpu_down(down, there, sizeof down);
    assert_memory_equal(up, down, sizeof up);
    gpu_free(there);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_driver_shares_memory),
        GPU_TEST(test_driver_orders_queues),
        GPU_TEST(test_driver_says_that_memory_is_exhausted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
