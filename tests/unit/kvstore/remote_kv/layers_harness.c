// SPDX-License-Identifier: Apache-2.0
// Purpose: see layers_harness.h.
#include "tests/unit/kvstore/remote_kv/layers_harness.h"

#include <stdlib.h>

#include "base/clock.h"

const int64_t cuts[] = {0, 256, N_TOKENS};
const struct sl_capsule_id a = {1, 2, {{3}}}, b = {1, 2, {{4}}};

static struct sl_stored *hold(void *arg, const struct sl_capsule_id *key) {
    return sl_remote_kv_pins_hold(arg, key);
}

void open_disk(struct fixture *fixture) {
    struct sl_error err = {0};
    struct sl_disk_config config = {.folder = fixture->folder.path,
                                    .bytes = 16 << 20,
                                    .max_offers = 64,
                                    .silent_ms = WAIT_MS,
                                    .pause_ms = WAIT_MS,
                                    .max_pause_ms = WAIT_MS,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room,
                                    .protected = fixture->protected,
                                    .hold_fn = hold,
                                    .arg = fixture->pins};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    struct sl_document_layers_config layers = {.pins = fixture->pins,
                                               .room = &fixture->parts.room,
                                               .ops = fixture->ops,
                                               .disk = fixture->disk,
                                               .protected = fixture->protected,
                                               .pause_ms = WAIT_MS};
    assert_int_equal(sl_document_layers_create(&layers, &fixture->layers, &err), SL_OK);
}

void close_disk(struct fixture *fixture) {
    sl_document_layers_destroy(&fixture->layers);
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(WAIT_MS));
}

void open_pins(struct fixture *fixture, size_t max_bytes, int64_t partial_ms) {
    close_disk(fixture);
    sl_remote_kv_pins_destroy(&fixture->pins);
    assert_int_equal(sl_remote_kv_pins_create(fixture->parts.segments, max_bytes, partial_ms, &fixture->pins, NULL),
                     SL_OK);
    open_disk(fixture);
}

int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->folder = temp_folder_create();
    open_parts(&fixture->parts, ARENA_BYTES, WAIT_MS, 0);
    assert_int_equal(sl_protected_create(0, &fixture->protected, NULL), SL_OK);
    assert_int_equal(sl_ops_select("auto", &fixture->ops, NULL), SL_OK);
    fixture->family = test_family;
    fixture->family.first_offloaded_head = 0; // all that a document has
    fixture->family.rows = SL_KV_INT8;
    fixture->family.scan = SL_KV_INT1;
    make_prompt(&fixture->prompt, 1, 0, N_TOKENS);
    make_prompt(&fixture->asked, 1, 0, N_ASKED);
    open_pins(fixture, ARENA_BYTES, WAIT_MS);
    *state = fixture;
    return 0;
}

int teardown(void **state) {
    struct fixture *fixture = *state;
    close_disk(fixture);
    sl_remote_kv_pins_destroy(&fixture->pins);
    close_parts(&fixture->parts);
    sl_protected_destroy(&fixture->protected);
    temp_folder_destroy(&fixture->folder);
    free(fixture);
    return 0;
}

struct sl_document_remote_kv document(const struct fixture *fixture, const struct sl_capsule_id *capsule) {
    return (struct sl_document_remote_kv){*capsule, N_TOKENS, fixture->family.n_offloaded_heads, fixture->family.scan};
}

// Names one document, or none.
void name(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    const struct sl_document_remote_kv one = capsule ? document(fixture, capsule) : (struct sl_document_remote_kv){0};
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, &one, capsule != NULL, 0, sl_now_ns(), NULL), SL_OK);
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    if (capsule) {
        ids[0] = sl_document_segments_id(capsule, one.n_offloaded_heads, one.scan);
    }
    sl_protected_set(fixture->protected, ids, capsule != NULL);
}

// Reads the document, as a job does: its remote KV is offered to the pins.
void read_document(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    struct sl_remote_kv *remote_kv = NULL;
    assert_int_equal(sl_remote_kv_create(fixture->ops, 0, fixture->family.n_offloaded_heads, fixture->family.head_dim,
                                         N_TOKENS, &remote_kv, NULL),
                     SL_OK);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment *segment =
            make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
        struct sl_hash128 hash = sl_prompt_hash_at(&fixture->prompt.hashes, cuts[i + 1]);
        assert_int_equal(sl_kv_segments_put(fixture->parts.segments, &fixture->family, hash, &segment, NULL), SL_OK);
        assert_int_equal(sl_remote_kv_append(remote_kv, segment, NULL), SL_OK);
        sl_kv_segment_unref(&segment);
    }
    sl_remote_kv_pins_offer(fixture->pins, capsule, &fixture->family, &fixture->prompt.hashes, remote_kv);
    sl_remote_kv_destroy(&remote_kv);
}

struct sl_document_layers_copies look(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    const struct sl_document_remote_kv one = document(fixture, capsule);
    struct sl_document_layers_copies copies;
    sl_document_layers_look(fixture->layers, &one, &copies);
    return copies;
}

// Looks until the layers are in memory, or on disk, or in neither.
struct sl_document_layers_copies look_until(struct fixture *fixture, const struct sl_capsule_id *capsule,
                                            bool in_memory, bool on_disk) {
    struct sl_document_layers_copies copies;
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    do {
        copies = look(fixture, capsule);
        sl_sleep_ms(1);
    } while (((copies.memory_bytes > 0) != in_memory || (copies.disk_bytes > 0) != on_disk) && sl_now_ns() < deadline);
    assert_int_equal(copies.memory_bytes > 0, in_memory);
    assert_int_equal(copies.disk_bytes > 0, on_disk);
    return copies;
}

int64_t n_files(struct fixture *fixture) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    return stats.n_capsules;
}

int64_t n_segments(struct fixture *fixture) {
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(fixture->parts.segments, &stats);
    return stats.n_segments;
}

// Has the document on disk alone, as after a restart.
void leave_on_disk(struct fixture *fixture) {
    name(fixture, &a);
    read_document(fixture, &a);
    look_until(fixture, &a, true, true);
    name(fixture, NULL);
    assert_int_equal(n_segments(fixture), 0);
    close_disk(fixture);
    open_disk(fixture);
    assert_int_equal(n_files(fixture), 2);
}

static void assert_same(const struct sl_kv_segment *segment, const struct sl_kv_segment *wanted) {
    size_t stride, other_stride;
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(wanted);
    const void *pages = sl_kv_segment_pages(segment, &stride), *others = sl_kv_segment_pages(wanted, &other_stride);
    assert_int_equal(stride, other_stride);
    assert_memory_equal(pages, others, sl_kv_segment_kept_bytes(config));
    pages = sl_kv_segment_key_indexes(segment, &stride);
    others = sl_kv_segment_key_indexes(wanted, &other_stride);
    assert_memory_equal(pages, others, (size_t)config->n_offloaded_heads * stride);
}

// Finds all of the document for a prompt that begins with it, with the bytes that it had when it was read.
void assert_is_found(struct fixture *fixture) {
    struct sl_kv_segment **chain = NULL;
    size_t n_chain = 0;
    assert_int_equal(sl_kv_segments_chain(fixture->parts.segments, &fixture->family, &fixture->prompt.hashes, &chain,
                                          &n_chain, NULL),
                     SL_OK);
    assert_int_equal(n_chain, 2);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment *wanted = make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
        assert_same(chain[i], wanted);
        sl_kv_segment_unref(&wanted);
        sl_kv_segment_unref(&chain[i]);
    }
    free(chain);
}