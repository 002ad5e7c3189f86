// SPDX-License-Identifier: Apache-2.0
// Segments of documents' offloaded layers that arrive are checked, bounded and held as long as they are used.
#include "tests/unit/kvstore/remote_kv/layers_harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

// Takes a segment as it arrives: its head, which the test changes, and its pages.
static struct sl_capsule_bytes arriving(struct fixture *fixture, int i, struct sl_kv_segment_head *head_out) {
    struct sl_kv_segment *segment = make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
    *head_out = sl_kv_segment_head_make(segment, &fixture->family, (uint32_t)i,
                                        sl_prompt_hash_at(&fixture->prompt.hashes, cuts[i + 1]));
    struct sl_capsule_bytes bytes = {.body_bytes = head_out->body_bytes, .header_bytes = sizeof *head_out};
    bytes.body = sl_arena_alloc(fixture->parts.arena, bytes.body_bytes);
    assert_non_null(bytes.body);
    size_t stride;
    memcpy(bytes.body, sl_kv_segment_pages(segment, &stride), bytes.body_bytes);
    sl_kv_segment_unref(&segment);
    return bytes;
}

// Puts a segment of document a, with a head of which `change` bytes are other ones.
static enum sl_status put(struct fixture *fixture, int i, void (*change)(struct sl_kv_segment_head *head)) {
    struct sl_kv_segment_head head;
    struct sl_error err = {0};
    struct sl_capsule_bytes bytes = arriving(fixture, i, &head);
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan),
                               key = sl_document_segment_id(&segments, (uint32_t)i);
    if (change) {
        change(&head);
    }
    bytes.header = malloc(sizeof head);
    memcpy(bytes.header, &head, sizeof head);
    enum sl_status status = sl_document_layers_put(fixture->layers, &key, &bytes, &err);
    assert_int_equal(status == SL_OK, bytes.body == NULL);
    sl_capsule_bytes_free(&bytes, fixture->parts.arena);
    return status;
}

#define CHANGE(name, change)                                                                                           \
    static void name(struct sl_kv_segment_head *head) {                                                                \
        change;                                                                                                        \
    }
CHANGE(other_magic, head->magic[7] = 'X')
CHANGE(other_version, head->version++)
CHANGE(other_index, head->index++)
CHANGE(other_heads, head->family.n_offloaded_heads++)
CHANGE(other_scan, head->family.scan = SL_KV_INT8)
CHANGE(other_format, head->family.work = -1)
CHANGE(other_begin, head->begin += 64)
CHANGE(no_slots, head->n_slots = 0)
CHANGE(most_slots, head->n_slots = INT64_MAX)
CHANGE(other_bytes, head->body_bytes--)

// Segments that arrive one by one make a document, if they are whole, in order and of that document.
static void test_segments_that_arrive_are_checked(void **state) {
    struct fixture *fixture = *state;
    void (*changes[])(struct sl_kv_segment_head * head) = {other_magic, other_index,  other_heads,
                                                           other_scan,  other_format, other_begin,
                                                           no_slots,    most_slots,   other_bytes};
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_NOT_FOUND); // no document is named
    name(fixture, &b);
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_NOT_FOUND);
    name(fixture, &a);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        assert_int_equal(put(fixture, 0, changes[i]), SL_ERR_INVALID);
    }
    assert_int_equal(put(fixture, 0, other_version), SL_ERR_UNSUPPORTED);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_PRECONDITION); // the first one is missing
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_EXISTS);
    assert_int_equal(look(fixture, &a).memory_bytes, 0); // not all of it
    assert_int_equal(put(fixture, 1, NULL), SL_OK);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_EXISTS);
    assert_is_found(fixture);
    look_until(fixture, &a, true, true);
}

static void test_segments_that_arrive_are_bounded(void **state) {
    struct fixture *fixture = *state;
    name(fixture, &a);
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    size_t first_bytes = (size_t)sl_remote_kv_pins_bytes(fixture->pins, NULL);
    assert_int_equal(put(fixture, 1, NULL), SL_OK);
    size_t bytes = (size_t)sl_remote_kv_pins_bytes(fixture->pins, NULL);
    open_pins(fixture, bytes - 1, 0); // partial documents are dropped at once
    name(fixture, &a);
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_remote_kv_pins_bytes(fixture->pins, NULL), first_bytes);
    sl_sleep_ms(2);
    name(fixture, &a);
    assert_int_equal(sl_remote_kv_pins_bytes(fixture->pins, NULL), 0);
    assert_int_equal(n_segments(fixture), 0);
}

// A segment that is held outlives its document, and no longer.
static void test_held_segments_end_with_their_last_use(void **state) {
    struct fixture *fixture = *state;
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
    const struct sl_capsule_id keys[] = {sl_document_segment_id(&segments, 0), sl_document_segment_id(&segments, 2)};
    name(fixture, &a);
    read_document(fixture, &a);
    assert_null(sl_remote_kv_pins_hold(fixture->pins, &keys[1]));
    assert_null(sl_remote_kv_pins_hold(fixture->pins, &a));
    struct sl_stored *stored = sl_remote_kv_pins_hold(fixture->pins, &keys[0]);
    assert_non_null(stored);
    assert_true(sl_kv_segment_head_is(stored->capsule.header, stored->capsule.header_bytes));
    name(fixture, NULL);
    assert_int_equal(n_segments(fixture), 1);
    sl_capsule_cache_release(fixture->parts.capsule_cache, stored);
    assert_int_equal(n_segments(fixture), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_segments_that_arrive_are_checked),
        TEST(test_segments_that_arrive_are_bounded),
        TEST(test_held_segments_end_with_their_last_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
