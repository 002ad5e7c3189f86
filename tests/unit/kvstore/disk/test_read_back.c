// SPDX-License-Identifier: Apache-2.0
// Capsules of documents go to the disk, if there is room, or later. They come back from it, one after another; one that does
// not come back is not in the way.
#include "tests/unit/kvstore/disk/disk_harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "kvstore/disk/read_back.h"
#include "tests/unit/kvstore/disk/faults.h"

#define N_CAPSULES 3

static bool is_in_memory(struct disk_fixture *fixture, int seed) {
    struct sl_capsule_id id = disk_id(seed);
    return sl_capsule_cache_has(fixture->parts.capsule_cache, &id);
}

// Leaves a capsule on disk alone.
static void put(struct disk_fixture *fixture, int seed) {
    struct sl_capsule_id id = disk_id(seed);
    disk_put(fixture, seed);
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
    while (sl_now_ns() < deadline && (sl_disk_holds(fixture->disk, &id) == 0 || is_in_memory(fixture, seed))) {
        if (sl_disk_holds(fixture->disk, &id) > 0) {
            (void)sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX);
        }
        sl_sleep_ms(2);
    }
    assert_true(sl_disk_holds(fixture->disk, &id) > 0 && !is_in_memory(fixture, seed));
}

// Offers a capsule until the reader has ended; returns whether it has taken the last offer.
static bool offer_until(struct disk_fixture *fixture, struct sl_disk_reader *reader, int seed, bool until_paused) {
    const struct sl_prefix whole = {disk_id(seed), DISK_TOKENS};
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
    bool is_taken = true;
    while (sl_now_ns() < deadline && (until_paused ? is_taken : !is_in_memory(fixture, seed))) {
        is_taken = sl_read_back_offer(reader, &whole);
        sl_sleep_ms(1);
    }
    return is_taken;
}

static void test_read_back_what_does_not_come_is_not_in_the_way(void **state) {
    struct disk_fixture *fixture = *state;
    struct sl_capsule_id *ids = malloc((N_CAPSULES + 1) * sizeof *ids);
    struct sl_disk_reader *reader = NULL;
    for (int i = 0; i < N_CAPSULES; i++) {
        put(fixture, i);
    }
    for (int i = 0; i <= N_CAPSULES; i++) { // the last one is not on disk
        ids[i] = disk_id(i);
    }
    sl_protected_set(fixture->protected, ids, N_CAPSULES + 1);
    assert_int_equal(sl_read_back_create(fixture->disk, fixture->parts.capsule_cache, fixture->protected, DISK_WAIT_MS,
                                         &reader, NULL),
                     SL_OK);
    assert_false(offer_until(fixture, reader, N_CAPSULES, true)); // it has failed, and has a pause now
    for (int i = 0; i < N_CAPSULES; i++) {
        assert_true(offer_until(fixture, reader, i, false));
        assert_true(is_in_memory(fixture, i));
    }
    const struct sl_prefix missing = {disk_id(N_CAPSULES), DISK_TOKENS};
    bool is_taken = true;
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS / 2);
    while ((is_taken = sl_read_back_offer(reader, &missing)) && sl_now_ns() < deadline) { // while the last one is read
        sl_sleep_ms(1);
    }
    assert_false(is_taken); // it still has its pause
    sl_read_back_destroy(&reader);
    assert_null(reader);
    assert_true(sl_read_back_offer(NULL, &missing));
}

// It is tried again after its pause, and one that has come has none.
static void test_read_back_tries_again(void **state) {
    struct disk_fixture *fixture = *state;
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    struct sl_disk_reader *reader = NULL;
    ids[0] = disk_id(0);
    sl_protected_set(fixture->protected, ids, 1);
    assert_int_equal(
        sl_read_back_create(fixture->disk, fixture->parts.capsule_cache, fixture->protected, 20, &reader, NULL), SL_OK);
    assert_false(offer_until(fixture, reader, 0, true));
    sl_protected_set(fixture->protected, NULL, 0);
    put(fixture, 0);
    assert_true(offer_until(fixture, reader, 0, false));
    assert_true(is_in_memory(fixture, 0));
    sl_read_back_destroy(&reader);
}

// Returns whether a capsule that is in memory is on disk; is_due: it is offered again.
static enum sl_disk_copy keep(struct disk_fixture *fixture, int seed, bool is_due) {
    struct sl_capsule_id id = disk_id(seed);
    struct sl_stored *stored = sl_capsule_cache_hold(fixture->parts.capsule_cache, &id);
    assert_non_null(stored);
    if (is_due) {
        atomic_store(&stored->disk_again_ns, 0);
    }
    enum sl_disk_copy copy = sl_disk_keep(fixture->disk, stored);
    assert_int_equal(atomic_load(&stored->is_on_disk), copy == SL_DISK_WRITTEN);
    sl_capsule_cache_release(fixture->parts.capsule_cache, stored);
    return copy;
}

static void wait_for_copy(struct disk_fixture *fixture, int seed, enum sl_disk_copy copy) {
    int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
    while (keep(fixture, seed, false) != copy && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(keep(fixture, seed, false), copy);
}

// A capsule that should be on disk goes there even if its first offer was dropped, or the disk was full.
static void test_disk_keeps_what_it_had_no_room_for_at_first(void **state) {
    struct disk_fixture *fixture = *state;
    disk_put(fixture, 1);
    wait_for_copy(fixture, 1, SL_DISK_WRITTEN);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = ENOSPC, .lasting = true, .scope = FAULT_GROWING});
    disk_put(fixture, 2);
    wait_for_copy(fixture, 2, SL_DISK_NO_ROOM);
    assert_non_null(fault_end()); // an earlier offer may still be waiting
    (void)keep(fixture, 2, true);
    wait_for_copy(fixture, 2, SL_DISK_WRITTEN);
    assert_int_equal(sl_disk_keep(NULL, NULL), SL_DISK_NONE);
}

// A disk that has failed says so of all that is in memory.
static void test_disk_that_fails_keeps_nothing(void **state) {
    struct disk_fixture *fixture = *state;
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .lasting = true, .scope = FAULT_GROWING});
    disk_put(fixture, 1);
    wait_for_copy(fixture, 1, SL_DISK_FAILED);
    assert_non_null(fault_end());
}

// Returns whether the disk is used; the text says why it is not.
static bool is_used(struct disk_fixture *fixture, char failure_out[384]) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    memcpy(failure_out, stats.failure, sizeof stats.failure);
    return stats.failure[0] == '\0';
}

// A disk that is not mounted for a moment is not replaced by an empty folder below its mount point.
static void test_disk_that_is_not_mounted_is_waited_for(void **state) {
    struct disk_fixture *fixture = *state;
    char away[sizeof fixture->folder.path + 8], failure[384] = "";
    struct stat file;
    snprintf(away, sizeof away, "%s.away", fixture->folder.path);
    sl_disk_close(&fixture->disk, 0);
    fixture->pause_ms = 2;
    disk_open(fixture);
    put(fixture, 0);
    for (int is_empty = 0; is_empty < 2; is_empty++) { // a folder of the mount point, and the mount point
        assert_int_equal(rename(fixture->folder.path, away), 0);
        assert_true(is_empty == 0 || mkdir(fixture->folder.path, 0700) == 0);
        fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .only = "pwrite", .is_elsewhere = true});
        disk_put(fixture, 1 + is_empty);
        int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
        while ((is_used(fixture, failure) || !strstr(failure, "mount its disk")) && sl_now_ns() < deadline) {
            sl_sleep_ms(2);
        }
        assert_non_null(fault_end());
        assert_non_null(strstr(failure, "mount its disk"));
        assert_int_equal(stat(fixture->folder.path, &file) == 0, is_empty);
        assert_true(is_empty == 0 || rmdir(fixture->folder.path) == 0); // it has no file
        assert_int_equal(rename(away, fixture->folder.path), 0);
        while (!is_used(fixture, failure) && sl_now_ns() < deadline) {
            sl_sleep_ms(2);
        }
        assert_string_equal(failure, "");
        struct sl_capsule_id id = disk_id(0);
        assert_true(sl_disk_holds(fixture->disk, &id) > 0);
    }
}

// A folder that was removed, or replaced by an empty one, while its disk is mounted is used again without a restart.
static void test_disk_makes_a_folder_that_was_removed(void **state) {
    struct disk_fixture *fixture = *state;
    struct sl_disk_stats stats;
    sl_disk_close(&fixture->disk, 0);
    fixture->pause_ms = 2;
    disk_open(fixture);
    for (int is_there = 0; is_there < 2; is_there++) {
        put(fixture, 2 * is_there);
        temp_folder_destroy(&fixture->folder);
        assert_true(!is_there || mkdir(fixture->folder.path, 0700) == 0);
        disk_put(fixture, 2 * is_there + 1); // finds that it is gone
        const int64_t deadline = sl_deadline_in_ms(DISK_WAIT_MS);
        do {
            sl_sleep_ms(2);
            sl_disk_get_stats(fixture->disk, &stats);
        } while ((stats.n_failures <= is_there || stats.failure[0] != '\0') && sl_now_ns() < deadline);
        assert_string_equal(stats.failure, "");
    }
    put(fixture, N_CAPSULES + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_back_what_does_not_come_is_not_in_the_way, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_read_back_tries_again, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_keeps_what_it_had_no_room_for_at_first, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_fails_keeps_nothing, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_is_not_mounted_is_waited_for, disk_setup, disk_teardown),
        cmocka_unit_test_setup_teardown(test_disk_makes_a_folder_that_was_removed, disk_setup, disk_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
