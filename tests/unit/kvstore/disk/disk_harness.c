// SPDX-License-Identifier: Apache-2.0
// Purpose: see disk_harness.h.
#include "tests/unit/kvstore/disk/disk_harness.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)1 << 20)

void disk_open(struct disk_fixture *fixture) {
    struct sl_error err = {0};
    int64_t pause_ms = fixture->pause_ms > 0 ? fixture->pause_ms : DISK_WAIT_MS;
    struct sl_disk_config config = {.folder = fixture->folder.path,
                                    .bytes = 16 << 20,
                                    .max_offers = 64,
                                    .silent_ms = DISK_WAIT_MS,
                                    .pause_ms = pause_ms,
                                    .max_pause_ms = pause_ms,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room,
                                    .protected = fixture->protected};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

int disk_setup(void **state) {
    struct disk_fixture *fixture = calloc(1, sizeof *fixture);
    fixture->folder = temp_folder_create();
    open_parts(&fixture->parts, ARENA_BYTES, DISK_WAIT_MS, 0);
    assert_int_equal(sl_protected_create(0, &fixture->protected, NULL), SL_OK);
    disk_open(fixture);
    *state = fixture;
    return 0;
}

int disk_teardown(void **state) {
    struct disk_fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    close_parts(&fixture->parts);
    sl_protected_destroy(&fixture->protected);
    temp_folder_destroy(&fixture->folder);
    free(fixture);
    return 0;
}

struct sl_capsule_id disk_id(int seed) {
    struct prompt prompt;
    make_prompt(&prompt, seed, 0, DISK_TOKENS);
    return (struct sl_capsule_id){11, 22, prompt.hashes.whole};
}

void disk_put(struct disk_fixture *fixture, int seed) {
    struct sl_capsule_id id = disk_id(seed);
    struct sl_capsule_bytes capsule = make_capsule(fixture->parts.arena, &id, DISK_TOKENS, false);
    assert_int_equal(sl_room_take_block(&fixture->parts.room, "test", capsule.body_bytes, &capsule.body, NULL), SL_OK);
    memset(capsule.body, seed, capsule.body_bytes);
    struct sl_capsule_keys keys = {.id = id, .is_checkpoint = fixture->puts_checkpoints};
    assert_int_equal(sl_capsule_cache_put(fixture->parts.capsule_cache, &keys, &capsule, NULL), SL_OK);
    sl_disk_offer(fixture->disk, &id);
}
