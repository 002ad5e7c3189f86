// SPDX-License-Identifier: Apache-2.0
// Purpose: the KV memory of each worker of a cluster on one machine, by the model and the machine.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "client/cli/cluster_arena.h"

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

static void test_arena_says_what_fits(void **state) {
    (void)state;
    const struct sl_model_config small = {.n_layers = 30, .n_kv_heads = 3, .head_dim = 64, .max_positions = 8192};
    const struct sl_model_config large = {.n_layers = 32, .n_kv_heads = 8, .head_dim = 128, .max_positions = 131072};
    const struct sl_model_config unknown = {0};
    char text[192];
    sl_cluster_arena_describe(&small, 256 * MIB, text, sizeof text);
    assert_string_equal(text, "");
    sl_cluster_arena_describe(&unknown, 256 * MIB, text, sizeof text);
    assert_string_equal(text, "");
    sl_cluster_arena_describe(&large, 2560 * MIB, text, sizeof text);
    assert_string_equal(text, "2560 MiB a worker: texts of up to 16384 tokens, uncompressed; the model's 131072 take "
                              "--arena 20480M");
    sl_cluster_arena_describe(&large, 20480 * MIB, text, sizeof text);
    assert_string_equal(text, "");
}

static void put(const char *root, const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", root, path);
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

// A container's limit holds, however much its machine has free.
static void test_memory_is_the_containers(void **state) {
    (void)state;
    char root[] = "/tmp/sluice-arena-XXXXXX", path[256], command[64];
    static const char *const folders[] = {"proc", "proc/self", "sys", "sys/fs", "sys/fs/cgroup"};
    assert_non_null(mkdtemp(root));
    assert_int_equal(sl_cluster_memory(root), -1);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    put(root, "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
    put(root, "proc/self/cgroup", "0::/\n");
    assert_int_equal(sl_cluster_memory(root), 32 * GIB);
    put(root, "sys/fs/cgroup/memory.max", "4294967296\n");
    assert_int_equal(sl_cluster_memory(root), 4 * GIB);
    put(root, "sys/fs/cgroup/memory.max", "max\n");
    assert_int_equal(sl_cluster_memory(root), 32 * GIB);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_is_for_a_long_text),
        cmocka_unit_test(test_arenas_leave_half_of_the_machine),
        cmocka_unit_test(test_arena_says_what_fits),
        cmocka_unit_test(test_memory_is_the_containers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
