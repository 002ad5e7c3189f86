// SPDX-License-Identifier: Apache-2.0
// Capsules of documents come back from the disk, one after another; one that does not come back is not in the way.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvstore/disk/read_back.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define N_TOKENS    256
#define WAIT_MS     (10000 * SLOWNESS)
#define N_CAPSULES  3

struct fixture {
    struct temp_folder folder;
    struct parts parts;
    struct sl_disk *disk;
    struct sl_protected *protected;
    struct sl_progress_counter progress_counter;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct sl_error err = {0};
    fixture->folder = temp_folder_create();
    open_parts(&fixture->parts, ARENA_BYTES, 0, 0);
    assert_int_equal(sl_protected_create(0, &fixture->protected, NULL), SL_OK);
    struct sl_disk_config config = {.folder = fixture->folder.path,
                                    .bytes = 16 << 20,
                                    .max_offers = 64,
                                    .silent_ms = WAIT_MS,
                                    .pause_ms = WAIT_MS,
                                    .max_pause_ms = WAIT_MS,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room,
                                    .protected = fixture->protected};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    close_parts(&fixture->parts);
    sl_protected_destroy(&fixture->protected);
    temp_folder_destroy(&fixture->folder);
    free(fixture);
    return 0;
}

static struct sl_capsule_id id_of(int seed) {
    struct prompt prompt;
    make_prompt(&prompt, seed, 0, N_TOKENS);
    return (struct sl_capsule_id){11, 22, prompt.hashes.whole};
}

static bool is_in_memory(struct fixture *fixture, int seed) {
    struct sl_capsule_id id = id_of(seed);
    return sl_capsule_cache_has(fixture->parts.capsule_cache, &id);
}

// Leaves a capsule on disk alone.
static void put(struct fixture *fixture, int seed) {
    struct sl_capsule_id id = id_of(seed);
    struct sl_capsule_bytes capsule = make_capsule(fixture->parts.arena, &id, N_TOKENS, false);
    assert_int_equal(sl_room_take_block(&fixture->parts.room, "test", capsule.body_bytes, &capsule.body, NULL), SL_OK);
    memset(capsule.body, seed, capsule.body_bytes);
    struct sl_capsule_keys keys = {.id = id};
    assert_int_equal(sl_capsule_cache_put(fixture->parts.capsule_cache, &keys, &capsule, NULL), SL_OK);
    sl_disk_offer(fixture->disk, &id);
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while (sl_now_ns() < deadline && (sl_disk_holds(fixture->disk, &id) == 0 || is_in_memory(fixture, seed))) {
        if (sl_disk_holds(fixture->disk, &id) > 0) {
            (void)sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX);
        }
        sl_sleep_ms(2);
    }
    assert_true(sl_disk_holds(fixture->disk, &id) > 0 && !is_in_memory(fixture, seed));
}

// Offers a capsule until the reader has ended; returns whether it has taken the last offer.
static bool offer_until(struct fixture *fixture, struct sl_disk_reader *reader, int seed, bool until_paused) {
    const struct sl_prefix whole = {id_of(seed), N_TOKENS};
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    bool is_taken = true;
    while (sl_now_ns() < deadline && (until_paused ? is_taken : !is_in_memory(fixture, seed))) {
        is_taken = sl_read_back_offer(reader, &whole);
        sl_sleep_ms(1);
    }
    return is_taken;
}

static void test_read_back_what_does_not_come_is_not_in_the_way(void **state) {
    struct fixture *fixture = *state;
    struct sl_capsule_id *ids = malloc((N_CAPSULES + 1) * sizeof *ids);
    struct sl_disk_reader *reader = NULL;
    for (int i = 0; i < N_CAPSULES; i++) {
        put(fixture, i);
    }
    for (int i = 0; i <= N_CAPSULES; i++) { // the last one is not on disk
        ids[i] = id_of(i);
    }
    sl_protected_set(fixture->protected, ids, N_CAPSULES + 1);
    assert_int_equal(
        sl_read_back_create(fixture->disk, fixture->parts.capsule_cache, fixture->protected, WAIT_MS, &reader, NULL),
        SL_OK);
    assert_false(offer_until(fixture, reader, N_CAPSULES, true)); // it has failed, and has a pause now
    for (int i = 0; i < N_CAPSULES; i++) {
        assert_true(offer_until(fixture, reader, i, false));
        assert_true(is_in_memory(fixture, i));
    }
    const struct sl_prefix missing = {id_of(N_CAPSULES), N_TOKENS};
    bool is_taken = true;
    int64_t deadline = sl_deadline_in_ms(WAIT_MS / 2);
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
    struct fixture *fixture = *state;
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    struct sl_disk_reader *reader = NULL;
    ids[0] = id_of(0);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_back_what_does_not_come_is_not_in_the_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_back_tries_again, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
