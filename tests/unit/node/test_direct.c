// SPDX-License-Identifier: Apache-2.0
// Memory that capsules leave from straight: it is there, or everything is staged and nothing of the device is held.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "net/node/direct.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/table/device.h"

#define BYTES ((size_t)2 << 20)

static const struct sl_direct_means all = {
    .wanted = true, .one_device = true, .network_reaches = true, .ordinary = true};

// Returns whether there is memory to ship from, on a device with so much room; frees what it opened.
static bool opens(const char *transport, size_t room, bool arrives, const struct sl_direct_means *means) {
    char most[24];
    struct sl_direct direct;
    struct sl_fabric *fabric;
    struct sl_device *device;
    const struct sl_fabric_config config = {.transport = transport};
    setenv("SLUICE_EMULATED_NETWORK", "1", 1);
    assert_int_equal(sl_gpu_device_open(&sl_gpu_emulator, 0, NULL, &device, NULL), SL_OK);
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_OK);
    size_t before = sl_gpu_emulator_bytes();
    snprintf(most, sizeof most, "%zu", before + room);
    setenv("SLUICE_EMULATED_MEMORY", most, 1);
    sl_direct_open(&direct, fabric, device, BYTES, arrives, means);
    bool open = direct.arena != NULL;
    assert_true(open ? sl_gpu_emulator_bytes() > before : sl_gpu_emulator_bytes() == before);
    void *block = open ? sl_arena_alloc(direct.arena, BYTES / 2) : NULL;
    assert_true(!open || block != NULL);
    sl_arena_free(direct.arena, block);
    sl_fabric_destroy(&fabric);
    sl_direct_close(&direct);
    assert_int_equal(sl_gpu_emulator_bytes(), before);
    sl_device_close(&device);
    unsetenv("SLUICE_EMULATED_MEMORY");
    return open;
}

static void test_direct_memory_is_there_or_not_held(void **state) {
    struct sl_direct_means means = all;
    (void)state;
    means.wanted = false;
    for (int arrives = 0; arrives < 2; arrives++) {
        assert_true(opens("shm", 5 * BYTES, arrives, &all));
        assert_false(opens("tcp", 5 * BYTES, arrives, &all));     // it cannot be registered
        assert_false(opens("shm", 5 * BYTES / 4, arrives, &all)); // it would leave no scratch
        assert_false(opens("shm", 5 * BYTES, arrives, &means));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_direct_memory_is_there_or_not_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
