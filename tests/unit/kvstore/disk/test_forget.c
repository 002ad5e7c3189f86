// SPDX-License-Identifier: Apache-2.0
// Forgotten capsules leave the disk: while the store runs, and, if there was no time for it, when it ends. Checkpoints never
// come there.
#include "tests/unit/kvstore/disk/disk_harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static int64_t n_capsules(struct disk_fixture *fixture) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    assert_string_equal(stats.failure, "");
    return stats.n_capsules;
}

static void wait_for(struct disk_fixture *fixture, int64_t n) {
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
    while (n_capsules(fixture) != n && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(n_capsules(fixture), n);
}

static bool recalls(struct disk_fixture *fixture, int seed) {
    struct sl_prefix prefix = {disk_id(seed), DISK_TOKENS};
    size_t at;
    struct sl_stored *stored = sl_disk_recall(fixture->disk, &prefix, 1, sl_deadline_in_ms(DISK_WAIT_MS), &at);
    if (stored) {
        sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored);
    }
    return stored != NULL;
}

// Out of memory, on disk alone: the disk's thread may hold one for a moment.
static void evict(struct disk_fixture *fixture, int n) {
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
    while (n > 0 && sl_now_ns() < deadline) {
        n -= sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX);
    }
    assert_int_equal(n, 0);
}

static void test_disk_forgets_what_is_there_and_says_so(void **state) {
    struct disk_fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        disk_put(fixture, i);
    }
    wait_for(fixture, 3);
    evict(fixture, 3);
    struct sl_capsule_id id = disk_id(0), unknown = disk_id(7);
    assert_true(sl_disk_forget(fixture->disk, &id));
    wait_for(fixture, 2);
    assert_false(recalls(fixture, 0));
    assert_false(sl_disk_forget(fixture->disk, &id));
    assert_false(sl_disk_forget(fixture->disk, &unknown));
    assert_false(sl_disk_forget(NULL, &id));
    disk_put(fixture, 0); // it may come again
    wait_for(fixture, 3);
    assert_true(recalls(fixture, 1));
}

// A store that is started again does not find them either. Who ends has to see to what its thread had not come to, among much to write.
static void test_disk_forgets_what_it_had_no_time_for(void **state) {
    struct disk_fixture *fixture = *state;
    for (int i = 0; i < 8; i++) {
        disk_put(fixture, i);
    }
    wait_for(fixture, 8);
    for (int i = 0; i < 7; i++) {
        struct sl_capsule_id id = disk_id(i);
        sl_capsule_cache_forget(fixture->parts.capsule_cache, &id);
        assert_true(sl_disk_forget(fixture->disk, &id));
    }
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(DISK_WAIT_MS));
    evict(fixture, 1);
    disk_open(fixture);
    assert_int_equal(n_capsules(fixture), 1);
    assert_false(recalls(fixture, 0));
    assert_true(recalls(fixture, 7));
}

// One that was to be forgotten and has come anew before the end is wanted again.
static void test_disk_keeps_what_has_come_again(void **state) {
    struct disk_fixture *fixture = *state;
    disk_put(fixture, 1);
    wait_for(fixture, 1);
    struct sl_capsule_id id = disk_id(1);
    sl_capsule_cache_forget(fixture->parts.capsule_cache, &id);
    sl_disk_forget(fixture->disk, &id);
    disk_put(fixture, 1);
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(DISK_WAIT_MS));
    evict(fixture, 1);
    disk_open(fixture);
    assert_int_equal(n_capsules(fixture), 1);
}

// A checkpoint is not written, neither when it comes nor when the store ends: its file would be taken for a whole prompt's.
static void test_disk_has_no_checkpoint(void **state) {
    struct disk_fixture *fixture = *state;
    fixture->puts_checkpoints = true;
    disk_put(fixture, 1);
    fixture->puts_checkpoints = false;
    disk_put(fixture, 2);
    wait_for(fixture, 1);
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(DISK_WAIT_MS));
    evict(fixture, 2);
    disk_open(fixture);
    assert_int_equal(n_capsules(fixture), 1);
    assert_false(recalls(fixture, 1));
    assert_true(recalls(fixture, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_forgets_what_is_there_and_says_so, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_forgets_what_it_had_no_time_for, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_keeps_what_has_come_again, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_has_no_checkpoint, disk_setup, disk_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
