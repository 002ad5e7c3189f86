// SPDX-License-Identifier: Apache-2.0
// --arena: what its words mean, and what auto makes of a container's limit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "net/node/room.h"

#define MIB INT64_C(1048576)
#define GIB (1024 * MIB)

static char root[64];

static void put(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
    (void)state;
    char command[256];
    snprintf(root, sizeof root, "/tmp/sluice-room-XXXXXX");
    if (!mkdtemp(root)) {
        return -1;
    }
    snprintf(command, sizeof command, "mkdir -p %s/proc/self %s/sys/fs/cgroup", root, root);
    if (system(command) != 0) {
        return -1;
    }
    put("proc/meminfo", "MemTotal: 67108864 kB\n"); // 64 GiB
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/status", "VmRSS: 1048576 kB\n"); // 1 GiB
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void test_room_auto_is_what_the_limit_leaves(void **state) {
    (void)state;
    put("sys/fs/cgroup/memory.max", "17179869184\n"); // 16 GiB
    const struct sl_room_needs needs = {.activation_bytes = 512 * MIB, .other_bytes = 256 * MIB};
    int64_t bytes = 0;
    struct sl_error err = {0};
    assert_int_equal(sl_room_auto(root, &needs, &bytes, &err), SL_OK);
    // 16 GiB less 1 GiB, 512, 256 and 256 MiB are 14 GiB, of which a 16th stays.
    assert_int_equal(bytes, 14 * GIB / 16 * 15);

    put("sys/fs/cgroup/memory.max", "max\n");
    assert_int_equal(sl_room_auto(root, &needs, &bytes, &err), SL_OK);
    assert_int_equal(bytes, 62 * GIB / 16 * 15);
}

static void test_room_auto_says_that_nothing_is_left(void **state) {
    (void)state;
    put("sys/fs/cgroup/memory.max", "1073741824\n"); // as much as the process has
    const struct sl_room_needs needs = {0};
    int64_t bytes = 7;
    struct sl_error err = {0};
    assert_int_equal(sl_room_auto(root, &needs, &bytes, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "memory.max"));
    assert_int_equal(bytes, 7);
}

static void test_room_words(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } fine[] = {{"", 0}, {"auto", SL_ROOM_AUTO}, {"1M", MIB}, {"48m", 48 * MIB}, {"2G", 2 * GIB}};
    struct sl_error err = {0};
    int64_t bytes;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_int_equal(sl_room_parse(fine[i].text, &bytes, &err), SL_OK);
        assert_int_equal(bytes, fine[i].bytes);
    }
    assert_int_equal(sl_room_parse(NULL, &bytes, &err), SL_OK);
    assert_int_equal(bytes, 0);
    static const char *const wrong[] = {"Auto", "0", "1023K", "-1", "1P", "2000T", "much"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(sl_room_parse(wrong[i], &bytes, &err), SL_ERR_INVALID);
    }
}

static void test_room_check_refuses_what_is_not_there(void **state) {
    (void)state;
    struct sl_error err = {0};
    assert_int_equal(sl_room_check("--arena", MIB, false, &err), SL_OK);
    assert_int_equal(sl_room_check("--arena", INT64_MAX / 2, false, &err), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_room_check("--arena", INT64_MAX / 2, true, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "/dev/shm"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_room_auto_is_what_the_limit_leaves, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_room_auto_says_that_nothing_is_left, make_root, remove_root),
        cmocka_unit_test(test_room_words),
        cmocka_unit_test(test_room_check_refuses_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
