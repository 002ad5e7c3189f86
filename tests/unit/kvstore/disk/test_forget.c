// SPDX-License-Identifier: Apache-2.0
// Forgotten capsules leave the disk: while the store runs, and, if there was no time for it, when it ends.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvstore/disk/disk.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define N_TOKENS    256
#define WAIT_MS     (10000 * SLOWNESS)

struct fixture {
    struct temp_folder folder;
    struct parts parts;
    struct sl_disk *disk;
    struct sl_progress_counter progress_counter;
};

static void open_disk(struct fixture *fixture) {
    struct sl_error err = {0};
    struct sl_disk_config config = {.folder = fixture->folder.path,
                                    .bytes = 16 << 20,
                                    .max_offers = 64,
                                    .silent_ms = WAIT_MS,
                                    .pause_ms = WAIT_MS,
                                    .max_pause_ms = WAIT_MS,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->folder = temp_folder_create();
    open_parts(&fixture->parts, ARENA_BYTES, WAIT_MS, 0);
    open_disk(fixture);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    close_parts(&fixture->parts);
    temp_folder_destroy(&fixture->folder);
    free(fixture);
    return 0;
}

static struct sl_capsule_id id_of(int seed) {
    struct prompt prompt;
    make_prompt(&prompt, seed, 0, N_TOKENS);
    return (struct sl_capsule_id){11, 22, prompt.hashes.whole};
}

// In the capsule cache, and offered.
static void put(struct fixture *fixture, int seed) {
    struct sl_capsule_id id = id_of(seed);
    struct sl_capsule_bytes capsule = make_capsule(fixture->parts.arena, &id, N_TOKENS, false);
    assert_int_equal(sl_room_take_block(&fixture->parts.room, "test", capsule.body_bytes, &capsule.body, NULL), SL_OK);
    memset(capsule.body, seed, capsule.body_bytes);
    struct sl_capsule_keys keys = {.id = id};
    assert_int_equal(sl_capsule_cache_put(fixture->parts.capsule_cache, &keys, &capsule, NULL), SL_OK);
    sl_disk_offer(fixture->disk, &id);
}

static int64_t n_capsules(struct fixture *fixture) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    assert_string_equal(stats.failure, "");
    return stats.n_capsules;
}

static void wait_for(struct fixture *fixture, int64_t n) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while (n_capsules(fixture) != n && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(n_capsules(fixture), n);
}

static bool recalls(struct fixture *fixture, int seed) {
    struct sl_prefix prefix = {id_of(seed), N_TOKENS};
    size_t at;
    struct sl_stored *stored = sl_disk_recall(fixture->disk, &prefix, 1, sl_deadline_in_ms(WAIT_MS), &at);
    if (stored) {
        sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored);
    }
    return stored != NULL;
}

// Out of memory, on disk alone: the disk's thread may hold one for a moment.
static void evict(struct fixture *fixture, int n) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while (n > 0 && sl_now_ns() < deadline) {
        n -= sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX);
    }
    assert_int_equal(n, 0);
}

static void test_disk_forgets_what_is_there_and_says_so(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        put(fixture, i);
    }
    wait_for(fixture, 3);
    evict(fixture, 3);
    struct sl_capsule_id id = id_of(0), unknown = id_of(7);
    assert_true(sl_disk_forget(fixture->disk, &id));
    wait_for(fixture, 2);
    assert_false(recalls(fixture, 0));
    assert_false(sl_disk_forget(fixture->disk, &id));
    assert_false(sl_disk_forget(fixture->disk, &unknown));
    assert_false(sl_disk_forget(NULL, &id));
    put(fixture, 0); // it may come again
    wait_for(fixture, 3);
    assert_true(recalls(fixture, 1));
}

// A store that is started again does not find them either. Who ends has to see to what its thread had not come to, among much to write.
static void test_disk_forgets_what_it_had_no_time_for(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 8; i++) {
        put(fixture, i);
    }
    wait_for(fixture, 8);
    for (int i = 0; i < 7; i++) {
        struct sl_capsule_id id = id_of(i);
        sl_capsule_cache_forget(fixture->parts.capsule_cache, &id);
        assert_true(sl_disk_forget(fixture->disk, &id));
    }
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(WAIT_MS));
    evict(fixture, 1);
    open_disk(fixture);
    assert_int_equal(n_capsules(fixture), 1);
    assert_false(recalls(fixture, 0));
    assert_true(recalls(fixture, 7));
}

// One that was to be forgotten and has come anew before the end is wanted again.
static void test_disk_keeps_what_has_come_again(void **state) {
    struct fixture *fixture = *state;
    put(fixture, 1);
    wait_for(fixture, 1);
    struct sl_capsule_id id = id_of(1);
    sl_capsule_cache_forget(fixture->parts.capsule_cache, &id);
    sl_disk_forget(fixture->disk, &id);
    put(fixture, 1);
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(WAIT_MS));
    evict(fixture, 1);
    open_disk(fixture);
    assert_int_equal(n_capsules(fixture), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_forgets_what_is_there_and_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_forgets_what_it_had_no_time_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_keeps_what_has_come_again, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
