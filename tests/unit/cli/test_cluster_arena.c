// SPDX-License-Identifier: Apache-2.0
// Purpose: what workers of a cluster on one machine take for KV, by the model and the machine.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cli/cluster_arena.h"

#define GIB (INT64_C(1) << 30)
#define MIB (INT64_C(1) << 20)

static void test_arena_is_for_a_long_text(void **state) {
    (void)state;
    const struct sl_model_config small = {.n_layers = 30, .n_kv_heads = 3, .head_dim = 64, .max_positions = 8192};
    const struct sl_model_config large = {.n_layers = 32, .n_kv_heads = 8, .head_dim = 128, .max_positions = 131072};
    assert_int_equal(sl_cluster_arena_bytes(&small, 64 * GIB, 3), 256 * MIB);
    assert_int_equal(sl_cluster_arena_bytes(&large, 64 * GIB, 3), 2560 * MIB); // 16384 times 128 KiB, and a quarter
    assert_int_equal(sl_cluster_arena_bytes(&large, -1, 3), 2560 * MIB);
}

static void test_arenas_leave_half_of_the_machine(void **state) {
    (void)state;
    const struct sl_model_config large = {.n_layers = 32, .n_kv_heads = 8, .head_dim = 128, .max_positions = 131072};
    assert_int_equal(sl_cluster_arena_bytes(&large, 8 * GIB, 3), 1344 * MIB); // a sixth, in steps of 64M
    assert_int_equal(sl_cluster_arena_bytes(&large, 8 * GIB, 64), 256 * MIB);
    assert_int_equal(sl_cluster_arena_bytes(&large, GIB, 3),
                     256 * MIB); // which fits, or the workers say that it does not
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_is_for_a_long_text),
        cmocka_unit_test(test_arenas_leave_half_of_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
