// SPDX-License-Identifier: Apache-2.0
// Limits of memory, read from files as the kernel has them: version 2 and 1, in a container and not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_limit.h"

#define MIB INT64_C(1048576)

static char root[64];

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/sluice-limit-XXXXXX");
    if (!mkdtemp(root)) {
        return -1;
    }
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1024 kB\n"); // 16 GiB
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void expect(int64_t bytes, const char *source) {
    struct sl_memory_limit limit;
    struct sl_error err = {0};
    assert_int_equal(sl_memory_limit_read(root, &limit, &err), SL_OK);
    assert_int_equal(limit.bytes, bytes);
    assert_string_equal(limit.source + strlen(root), source);
}

static void test_limit_of_a_machine_without_groups(void **state) {
    (void)state;
    expect(16384 * MIB, "/proc/meminfo");
    put("/proc/self/cgroup", "0::/user.slice\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    expect(16384 * MIB, "/proc/meminfo");
}

static void test_limit_of_a_container(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    expect(2048 * MIB, "/sys/fs/cgroup/memory.max");
}

// The path is the host's, of which the container sees nothing but its own group.
static void test_limit_of_a_container_that_knows_the_hosts_path(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods.slice/pod1/container1\n");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    expect(1024 * MIB, "/sys/fs/cgroup/memory.max");
}

static void test_limit_is_the_least_on_the_way_up(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/sluice.service\n");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/other.slice/memory.max", "1048576\n");
    expect(4096 * MIB, "/sys/fs/cgroup/system.slice/memory.max");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.max", "1073741824\n");
    expect(1024 * MIB, "/sys/fs/cgroup/system.slice/sluice.service/memory.max");
}

static void test_limit_of_version_1(void **state) {
    (void)state;
    put("/proc/self/cgroup", "12:cpu,cpuacct:/a\n5:hugetlb,memory:/docker/1f\n1:name=systemd:/docker/1f\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect(16384 * MIB, "/proc/meminfo");
    put("/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "536870912\n");
    expect(512 * MIB, "/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes");
}

static void test_limit_passes_over_nonsense(void **state) {
    (void)state;
    put("/proc/self/cgroup", "nonsense\n0:\n:::\n0::/\n");
    put("/sys/fs/cgroup/memory.max", "12 monkeys\n");
    expect(16384 * MIB, "/proc/meminfo");
    put("/sys/fs/cgroup/memory.max", "-1\n");
    expect(16384 * MIB, "/proc/meminfo");
    put("/proc/meminfo", "MemTotal: many kB\n");
    struct sl_memory_limit limit;
    struct sl_error err = {0};
    assert_int_equal(sl_memory_limit_read(root, &limit, &err), SL_ERR_UNSUPPORTED);
}

static void test_resident_is_what_the_kernel_says(void **state) {
    (void)state;
    assert_int_equal(sl_memory_resident(root), -1);
    put("/proc/self/status", "Name:\tx\nVmRSS:\t   2048 kB\n");
    assert_int_equal(sl_memory_resident(root), 2 * MIB);
    assert_true(sl_memory_resident("") > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_limit_of_a_machine_without_groups, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_limit_of_a_container, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_limit_of_a_container_that_knows_the_hosts_path, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_limit_is_the_least_on_the_way_up, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_limit_of_version_1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_limit_passes_over_nonsense, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_resident_is_what_the_kernel_says, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
