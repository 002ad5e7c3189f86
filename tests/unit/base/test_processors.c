// SPDX-License-Identifier: Apache-2.0
// Purpose: processors are chosen from the kernel's description of a machine: nodes, hardware threads, holes, quotas.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/processors.h"

static char root[64];

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/sluice-processors-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *position) {
    (void)info;
    (void)type;
    (void)position;
    return remove(path);
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *line) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700); // may exist
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "%s\n", line) > 0);
    assert_int_equal(fclose(file), 0);
}

static void put_siblings(int processor, const char *list) {
    char path[128];
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    put(path, list);
}

/*
 * Two nodes of four cores with two hardware threads each: node 0 has (0 8) (1 9) (2 10) (3 11), node 2 has (4 12) (13)
 * (6 14) (7 15), because 5 is offline. Node 1 has memory and no processors.
 */
static void put_machine(void) {
    put("sys/devices/system/cpu/online", "0-4,6-15");
    put("sys/devices/system/node/online", "0-2");
    put("sys/devices/system/node/node0/cpulist", "0-3,8-11");
    put("sys/devices/system/node/node1/cpulist", "");
    put("sys/devices/system/node/node2/cpulist", "4,6-7,12-15");
    for (int i = 0; i < 8; i++) {
        char pair[32];
        snprintf(pair, sizeof pair, i == 5 ? "13" : "%d,%d", i, i + 8);
        if (i != 5) {
            put_siblings(i, pair);
        }
        put_siblings(i + 8, pair);
    }
}

static void allow(cpu_set_t *set_out, int first, int last) {
    CPU_ZERO(set_out);
    for (int i = first; i <= last; i++) {
        CPU_SET((size_t)i, set_out);
    }
}

static void check_place(const cpu_set_t *allowed, int n, const int *expected) {
    int processors[64];
    struct sl_error err;
    assert_int_equal(sl_processors_place(root, allowed, n, processors, &err), SL_OK);
    for (int i = 0; i < n; i++) {
        assert_int_equal(processors[i], expected[i]);
    }
}

static void test_processors_cores_before_threads_and_node_by_node(void **state) {
    (void)state;
    put_machine();
    cpu_set_t all;
    allow(&all, 0, 63);
    check_place(&all, 1, (int[]){0});
    check_place(&all, 4, (int[]){0, 1, 2, 3});
    check_place(&all, 6, (int[]){0, 1, 2, 3, 4, 6});
    check_place(&all, 8, (int[]){0, 1, 2, 3, 4, 6, 7, 13}); // 13 is alone on its core
    check_place(&all, 10, (int[]){0, 8, 1, 9, 2, 3, 4, 6, 7, 13});
    check_place(&all, 15, (int[]){0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 6, 14, 7, 15, 13});
    int processors[64];
    struct sl_error err;
    assert_int_equal(sl_processors_place(root, &all, 16, processors, &err), SL_ERR_RANGE);
}

static void test_processors_of_a_restricted_mask(void **state) {
    (void)state;
    put_machine();
    cpu_set_t some;
    allow(&some, 8, 15); // the second threads, which are alone on their cores now
    check_place(&some, 8, (int[]){8, 9, 10, 11, 12, 13, 14, 15});
    allow(&some, 3, 12); // without 5: (3 11) (8) (9) (10) on node 0, (4 12) (6) (7) on node 2
    check_place(&some, 5, (int[]){3, 8, 9, 10, 4});
    check_place(&some, 9, (int[]){3, 11, 8, 9, 10, 4, 12, 6, 7});
}

static void test_processors_without_a_description(void **state) {
    (void)state;
    cpu_set_t some;
    allow(&some, 1, 3);
    CPU_SET(70, &some);
    CPU_CLR(2, &some);
    check_place(&some, 3, (int[]){1, 3, 70});
}

static void test_processors_quota_is_the_smallest_on_the_way_up(void **state) {
    (void)state;
    assert_int_equal(sl_processors_quota(root), 0); // no control groups
    put("proc/self/cgroup", "3:cpu,cpuacct:/old");
    assert_int_equal(sl_processors_quota(root), 0); // version 1
    put("proc/self/cgroup", "1:name=systemd:/x\n0::/pods/worker");
    assert_int_equal(sl_processors_quota(root), 0); // no quota anywhere
    put("sys/fs/cgroup/pods/worker/cpu.max", "max 100000");
    assert_int_equal(sl_processors_quota(root), 0);
    put("sys/fs/cgroup/pods/cpu.max", "350000 100000");
    assert_int_equal(sl_processors_quota(root), 4);
    put("sys/fs/cgroup/pods/worker/cpu.max", "200000 100000");
    assert_int_equal(sl_processors_quota(root), 2);
    put("proc/self/cgroup", "0::/"); // seen from inside a container
    assert_int_equal(sl_processors_quota(root), 0);
    put("sys/fs/cgroup/cpu.max", "50000 100000");
    assert_int_equal(sl_processors_quota(root), 1);
}

static void test_processors_of_this_machine(void **state) {
    (void)state;
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int n = sl_processors_count(), processors[CPU_SETSIZE];
    struct sl_error err;
    assert_true(n >= 1 && n <= CPU_COUNT(&allowed));
    assert_int_equal(sl_processors_place("", &allowed, n, processors, &err), SL_OK);
    for (int i = 0; i < n; i++) {
        assert_true(CPU_ISSET((size_t)processors[i], &allowed));
    }
}

static void test_node_of_processors(void **state) {
    (void)state;
    cpu_set_t allowed;
    put_machine();
    const struct {
        int first, last, node;
    } cases[] = {{0, 3, 0}, {8, 11, 0}, {12, 15, 2}, {4, 4, 2}, {0, 15, -1}, {3, 4, -1}, {11, 12, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        allow(&allowed, cases[i].first, cases[i].last);
        assert_int_equal(sl_processors_node_of(root, &allowed), cases[i].node);
    }
    CPU_ZERO(&allowed);
    assert_int_equal(sl_processors_node_of(root, &allowed), -1);
    allow(&allowed, 0, 15);
    assert_int_equal(sl_processors_node_of("/nowhere", &allowed), 0); // a kernel without nodes
    assert_true(sl_processors_node("/nowhere") == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_processors_cores_before_threads_and_node_by_node, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_node_of_processors, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_processors_of_a_restricted_mask, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_processors_without_a_description, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_processors_quota_is_the_smallest_on_the_way_up, make_root, remove_root),
        cmocka_unit_test(test_processors_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
