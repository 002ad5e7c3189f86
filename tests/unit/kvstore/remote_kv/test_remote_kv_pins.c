// SPDX-License-Identifier: Apache-2.0
// The remote KVs of documents: pinned when they are complete and named, not evicted, and freed with their documents.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "kvstore/remote_kv/remote_kv_pins.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define KEEP_MS     60000
#define N_TOKENS    300
#define NO_MERCY    INT64_MAX
#define PARTIAL_MS  60000

struct fixture {
    void *memory;
    struct sl_arena *arena;
    struct sl_kv_segments *segments;
    struct sl_remote_kv_pins *pins;
    struct prompt prompt;
    size_t capsule_bytes; // of documents, as the store counts them
};

// Offloaded heads 0 and 1: all that a document has.
static struct sl_kv_family all_heads(void) {
    struct sl_kv_family family = test_family;
    family.first_offloaded_head = 0;
    return family;
}

static const struct sl_capsule_id a = {1, 2, {{3}}}, b = {1, 2, {{4}}};

static struct sl_document_remote_kv document(const struct sl_capsule_id *capsule) {
    return (struct sl_document_remote_kv){*capsule, N_TOKENS, test_family.n_offloaded_heads, test_family.scan};
}

static void open_pins(struct fixture *fixture, size_t max_bytes) {
    sl_remote_kv_pins_destroy(&fixture->pins);
    assert_int_equal(sl_remote_kv_pins_create(fixture->segments, max_bytes, PARTIAL_MS, &fixture->pins, NULL), SL_OK);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->memory = aligned_alloc(4096, ARENA_BYTES);
    assert_non_null(fixture->memory);
    assert_int_equal(sl_arena_create(fixture->memory, ARENA_BYTES, &fixture->arena, NULL), SL_OK);
    assert_int_equal(sl_kv_segments_create(KEEP_MS, &fixture->segments, NULL), SL_OK);
    make_prompt(&fixture->prompt, 1, 0, N_TOKENS);
    open_pins(fixture, ARENA_BYTES);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_remote_kv_pins_destroy(&fixture->pins);
    sl_kv_segments_destroy(&fixture->segments);
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&fixture->arena);
    free(fixture->memory);
    free(fixture);
    return 0;
}

// Makes the remote KV of the prompt: indexed segments of 256 tokens and the rest. The caller ends it.
static struct sl_remote_kv *make_remote_kv(struct fixture *fixture, const struct sl_kv_family *family) {
    static const int64_t cuts[] = {0, 256, N_TOKENS};
    const struct sl_ops *ops;
    struct sl_remote_kv *remote_kv = NULL;
    assert_int_equal(sl_ops_select("auto", &ops, NULL), SL_OK);
    assert_int_equal(sl_remote_kv_create(ops, family->first_offloaded_head, family->n_offloaded_heads, family->head_dim,
                                         N_TOKENS, &remote_kv, NULL),
                     SL_OK);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment *segment = make_segment(fixture->arena, family, cuts[i], cuts[i + 1], 7);
        struct sl_hash128 hash = sl_prompt_hash_at(&fixture->prompt.hashes, cuts[i + 1]);
        assert_int_equal(sl_kv_segments_put(fixture->segments, family, hash, &segment, NULL), SL_OK);
        assert_int_equal(sl_remote_kv_append(remote_kv, segment, NULL), SL_OK);
        sl_kv_segment_unref(&segment);
    }
    return remote_kv;
}

// Ends the remote KV as the end of a lease does.
static void end(struct fixture *fixture, const struct sl_kv_family *family, struct sl_remote_kv **remote_kv) {
    sl_kv_segments_release(fixture->segments, family, &fixture->prompt.hashes, *remote_kv);
    sl_remote_kv_destroy(remote_kv);
}

static struct sl_kv_segments_stats stats_of(struct fixture *fixture) {
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(fixture->segments, &stats);
    return stats;
}

static int64_t pinned(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    const struct sl_document_remote_kv asked = document(capsule);
    return sl_remote_kv_pins_bytes(fixture->pins, &asked);
}

static void name(struct fixture *fixture, const struct sl_document_remote_kv *documents, size_t n) {
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, documents, n, fixture->capsule_bytes, sl_now_ns(), NULL),
                     SL_OK);
}

static void test_pins_keep_a_documents_segments(void **state) {
    struct fixture *fixture = *state;
    const struct sl_kv_family family = all_heads();
    const struct sl_document_remote_kv both[] = {document(&b), document(&a), document(&a)}; // two share a capsule
    struct sl_remote_kv *remote_kv = make_remote_kv(fixture, &family);
    size_t bytes = stats_of(fixture).bytes;
    sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv); // of no document yet
    assert_int_equal(pinned(fixture, &a), 0);
    name(fixture, both, 3);
    assert_int_equal(pinned(fixture, &a), 0);
    sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv);
    assert_int_equal(pinned(fixture, &a), bytes);
    assert_int_equal(pinned(fixture, &b), 0);
    sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv); // again: counted once
    end(fixture, &family, &remote_kv);
    for (int round = 0; round < 2; round++) { // the coordinator repeats itself
        name(fixture, both, 3);
        assert_int_equal(pinned(fixture, &a), bytes);
        assert_int_equal(stats_of(fixture).evictable_bytes, 0);
        assert_false(sl_kv_segments_evict_one(fixture->segments, NO_MERCY));
    }
    name(fixture, both, 1); // only b
    assert_int_equal(pinned(fixture, &a), 0);
    assert_int_equal(stats_of(fixture).n_segments, 0);
    struct sl_arena_stats arena;
    sl_arena_get_stats(fixture->arena, &arena);
    assert_int_equal(arena.used_bytes, 0);
}

static void test_pins_take_only_what_a_document_needs(void **state) {
    struct fixture *fixture = *state;
    const struct sl_kv_family all = all_heads();
    struct sl_kv_family less = all, signs = all;
    less.n_offloaded_heads = 1;
    signs.scan = SL_KV_INT1;
    const struct sl_document_remote_kv one = document(&a);
    name(fixture, &one, 1);
    const struct sl_kv_family *others[] = {&less, &signs, &test_family}; // test_family has the right number of others
    for (int i = 0; i < 3; i++) {
        struct sl_remote_kv *remote_kv = make_remote_kv(fixture, others[i]);
        sl_remote_kv_pins_offer(fixture->pins, &a, others[i], &fixture->prompt.hashes, remote_kv);
        assert_int_equal(pinned(fixture, &a), 0);
        end(fixture, others[i], &remote_kv);
    }
    assert_int_equal(stats_of(fixture).evictable_bytes, stats_of(fixture).bytes);
}

static void test_pins_are_bounded(void **state) {
    struct fixture *fixture = *state;
    const struct sl_kv_family family = all_heads();
    const struct sl_document_remote_kv both[] = {document(&a), document(&b)};
    struct sl_remote_kv *remote_kv = make_remote_kv(fixture, &family);
    size_t bytes = stats_of(fixture).bytes;
    for (int more = 0; more < 2; more++) {
        open_pins(fixture, 2 * bytes - 1 + (size_t)more);
        name(fixture, both, 2);
        sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv);
        sl_remote_kv_pins_offer(fixture->pins, &b, &family, &fixture->prompt.hashes, remote_kv);
        assert_int_equal(pinned(fixture, &a), bytes);
        assert_int_equal(pinned(fixture, &b), more ? bytes : 0);
    }
    open_pins(fixture, 2 * bytes - 1);
    name(fixture, both, 2);
    sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv);
    name(fixture, &both[1], 1); // the room of the first
    sl_remote_kv_pins_offer(fixture->pins, &b, &family, &fixture->prompt.hashes, remote_kv);
    assert_int_equal(pinned(fixture, &b), bytes);
    open_pins(fixture, 2 * bytes);
    for (size_t more = 1; more < 2; more--) { // capsules take all but the segments' bytes, with one too many at first
        fixture->capsule_bytes = bytes + more;
        name(fixture, both, 2);
        sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, remote_kv);
        assert_int_equal(pinned(fixture, &a), more ? 0 : bytes);
    }
    fixture->capsule_bytes = 3 * bytes; // what is pinned stays
    uint64_t n_warnings = sl_log_lines(SL_LOG_WARN);
    for (int i = 0; i < 3; i++) { // each question offers it
        name(fixture, both, 2);
        sl_remote_kv_pins_offer(fixture->pins, &b, &family, &fixture->prompt.hashes, remote_kv);
        assert_int_equal(pinned(fixture, &a), bytes);
        assert_int_equal(pinned(fixture, &b), 0);
    }
    assert_int_equal(sl_log_lines(SL_LOG_WARN), n_warnings + 1); // and the log says it once
    end(fixture, &family, &remote_kv);
}

// A question that still uses the segments of a removed document keeps them until it ends, and no longer.
static void test_segments_of_a_removed_document_end_with_their_last_use(void **state) {
    struct fixture *fixture = *state;
    const struct sl_kv_family family = all_heads();
    const struct sl_document_remote_kv one = document(&a);
    name(fixture, &one, 1);
    struct sl_remote_kv *first = make_remote_kv(fixture, &family), *second = make_remote_kv(fixture, &family);
    assert_int_equal(stats_of(fixture).n_segments, 2); // shared
    sl_remote_kv_pins_offer(fixture->pins, &a, &family, &fixture->prompt.hashes, first);
    name(fixture, NULL, 0);
    assert_int_equal(stats_of(fixture).n_segments, 2);
    end(fixture, &family, &second);
    assert_int_equal(stats_of(fixture).n_segments, 2);
    end(fixture, &family, &first);
    assert_int_equal(stats_of(fixture).n_segments, 0);
}

#define STEP_NS       (900 * SL_NS_PER_MS)
#define SEGMENT_BYTES 100000

static struct sl_capsule_id segments_of_a(void) {
    const struct sl_document_remote_kv one = document(&a);
    return sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
}

// Pins a segment of document a, as one that arrives.
static enum sl_status add(struct fixture *fixture, const struct sl_remote_kv *remote_kv, int i) {
    const struct sl_kv_family family = all_heads();
    const struct sl_capsule_id segments = segments_of_a();
    struct sl_kv_segment *segment = (struct sl_kv_segment *)sl_remote_kv_segment(remote_kv, i);
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
    struct sl_hash128 hash = sl_prompt_hash_at(&fixture->prompt.hashes, config->begin + config->n_slots);
    struct sl_kv_segment_head head = sl_kv_segment_head_make(segment, &family, (uint32_t)i, hash);
    return sl_remote_kv_pins_add(fixture->pins, &segments, &head, segment, NULL);
}

// Reports that n_bytes of document a's second segment have arrived (0: nothing has), and names the document then. Returns
// whether the first one stays.
static bool stays_at(struct fixture *fixture, size_t n_bytes, int64_t now_ns) {
    const struct sl_document_remote_kv one = document(&a);
    const struct sl_capsule_id segments = segments_of_a(), second = sl_document_segment_id(&segments, 1);
    if (n_bytes > 0) {
        sl_remote_kv_pins_note_arriving(fixture->pins, &second, n_bytes, now_ns);
    }
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, &one, 1, 0, now_ns, NULL), SL_OK);
    return sl_remote_kv_pins_bytes(fixture->pins, NULL) > 0;
}

// A sender that is silent for too long, or too slow on the whole, loses what it has sent; another one takes the time it takes.
static void test_segments_of_a_slow_sender_stay_while_it_goes_on(void **state) {
    struct fixture *fixture = *state;
    const struct sl_kv_family family = all_heads();
    const struct sl_document_remote_kv one = document(&a);
    struct sl_remote_kv *remote_kv = make_remote_kv(fixture, &family);
    sl_remote_kv_pins_destroy(&fixture->pins);
    assert_int_equal(sl_remote_kv_pins_create(fixture->segments, ARENA_BYTES, 1000, &fixture->pins, NULL), SL_OK);
    name(fixture, &one, 1);
    const struct sl_capsule_id segments = segments_of_a(), first = sl_document_segment_id(&segments, 0);
    // None of these bytes is the next segment's.
    sl_remote_kv_pins_note_arriving(fixture->pins, &first, SEGMENT_BYTES, sl_now_ns());
    assert_int_equal(add(fixture, remote_kv, 0), SL_OK);
    int64_t now_ns = sl_now_ns(), most_ns = (1000 + sl_remote_kv_pins_bytes(fixture->pins, NULL) / 16) * SL_NS_PER_MS;
    assert_true(most_ns > 7 * STEP_NS);
    for (size_t n = 1; n < 4; n++) { // 2.7 s for a segment, and some bytes in each second of them
        now_ns += STEP_NS;
        assert_true(stays_at(fixture, n, now_ns));
    }
    assert_true(stays_at(fixture, 1, now_ns + STEP_NS)); // its sender began the segment again
    assert_true(stays_at(fixture, 2, now_ns + 2 * STEP_NS));
    assert_true(stays_at(fixture, 0, now_ns + 3 * STEP_NS)); // no more bytes
    assert_false(stays_at(fixture, 0, now_ns + 4 * STEP_NS));
    assert_int_equal(add(fixture, remote_kv, 1), SL_ERR_PRECONDITION);

    assert_int_equal(add(fixture, remote_kv, 0), SL_OK);
    const int64_t began_ns = sl_now_ns();
    int64_t n = 1;
    while (stays_at(fixture, (size_t)(1 + n % 2), began_ns + n * STEP_NS)) { // a byte a step, twice the same
        assert_true(n * STEP_NS <= most_ns + STEP_NS);
        n++;
    }
    assert_true(n * STEP_NS > most_ns - STEP_NS);
    assert_int_equal(add(fixture, remote_kv, 0), SL_OK);
    assert_int_equal(add(fixture, remote_kv, 1), SL_OK);
    assert_true(stays_at(fixture, 0, sl_now_ns() + 2 * most_ns)); // it is complete
    end(fixture, &family, &remote_kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pins_keep_a_documents_segments, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_take_only_what_a_document_needs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_of_a_slow_sender_stay_while_it_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_segments_of_a_removed_document_end_with_their_last_use, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
