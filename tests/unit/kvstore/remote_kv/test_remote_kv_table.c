// SPDX-License-Identifier: Apache-2.0
// Remote KVs over a real fabric on the loopback interface: how they grow, what is reused, promised, evicted, and when
// it ends.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/fetch.h"
#include "kvstore/remote_kv/remote_kv_table.h"

#define ARENA_BYTES ((size_t)8 << 20)
#define LEASE_MS    30000
#define KEEP_MS     60000

struct fixture {
    struct parts parts;
    struct sl_remote_kv_table *remote_kvs;
};

static const struct sl_capsule_id no_capsule;

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, LEASE_MS, KEEP_MS);
    struct sl_remote_kv_table_config config = {
        .room = &fixture->parts.room, .lease_ms = LEASE_MS, .fabric = fixture->parts.receiver};
    assert_int_equal(sl_ops_select("auto", &config.ops, NULL), SL_OK);
    assert_int_equal(sl_remote_kv_table_create(&config, &fixture->remote_kvs, NULL), SL_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_remote_kv_table_destroy(&fixture->remote_kvs);
    close_parts(&fixture->parts);
    free(fixture);
    return 0;
}

static bool yes(void *arg) {
    (void)arg;
    return true;
}

static struct sl_remote_kv_lease open_annex(struct fixture *fixture, const struct prompt *prompt) {
    struct sl_remote_kv_lease lease;
    struct sl_error err = {0};
    if (sl_remote_kv_table_open(fixture->remote_kvs, "test", &test_family, &prompt->hashes, &no_capsule, &lease,
                                &err) != SL_OK) {
        fail_msg("not opened: %s", err.text);
    }
    assert_int_equal(strlen(lease.lease_id), strlen("annex-") + 32); // also where all of it is stored already
    return lease;
}

static struct sl_inbound_ticket grant(struct fixture *fixture, const struct sl_remote_kv_lease *lease, int64_t begin,
                                      int64_t end) {
    struct sl_inbound_ticket ticket;
    size_t capacity;
    struct sl_error err = {0};
    if (sl_remote_kv_table_grant(fixture->remote_kvs, lease->lease_id, begin, end - begin, &ticket, &capacity, &err) !=
        SL_OK) {
        fail_msg("not granted: %s", err.text);
    }
    struct sl_kv_segment_config config;
    assert_int_equal(sl_kv_family_config(&test_family, begin, end, &config, NULL), SL_OK);
    assert_int_equal(capacity, sl_kv_segment_block_bytes(&config));
    return ticket;
}

static enum sl_status grant_refused(struct fixture *fixture, const char *lease_id, int64_t begin, int64_t end) {
    struct sl_inbound_ticket ticket;
    size_t capacity;
    enum sl_status status =
        sl_remote_kv_table_grant(fixture->remote_kvs, lease_id, begin, end - begin, &ticket, &capacity, NULL);
    assert_int_not_equal(status, SL_OK);
    return status;
}

static enum sl_status await_within(struct fixture *fixture, const struct sl_remote_kv_lease *lease, int64_t n_tokens,
                                   int64_t ms, int64_t *n_out, struct sl_error *err) {
    struct sl_remote_kv_wait wait = {lease->lease_id, n_tokens, sl_deadline_in_ms(ms), yes, NULL};
    return sl_remote_kv_table_await(fixture->remote_kvs, &wait, n_out, err);
}

static enum sl_status await_tokens(struct fixture *fixture, const struct sl_remote_kv_lease *lease, int64_t n_tokens,
                                   struct sl_error *err) {
    int64_t n;
    enum sl_status status = await_within(fixture, lease, n_tokens, 5000, &n, err);
    if (status == SL_OK) {
        assert_true(n >= n_tokens);
    }
    return status;
}

static void grow(struct fixture *fixture, const struct sl_remote_kv_lease *lease, int64_t begin, int64_t end,
                 int seed) {
    struct sl_inbound_ticket ticket = grant(fixture, lease, begin, end);
    ship_block(&fixture->parts, &ticket, begin, end, seed, true);
    free(ticket.ticket);
    assert_int_equal(await_tokens(fixture, lease, end, NULL), SL_OK);
}

static int64_t n_segments(struct fixture *fixture) {
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(fixture->parts.segments, &stats);
    return stats.n_segments;
}

// Returns where the pages or the key indexes of the remote KV's i-th segment lie in a window.
static struct sl_fetch_range place_of(struct fixture *fixture, const struct sl_remote_kv_lease *lease, int i,
                                      bool indexes) {
    struct sl_held_remote_kv *held = sl_remote_kv_table_borrow(fixture->remote_kvs, lease->remote_kv_id);
    assert_non_null(held);
    const struct sl_kv_segment *segment = sl_remote_kv_segment(sl_held_remote_kv_get(held), i);
    size_t stride;
    const uint8_t *at = indexes ? sl_kv_segment_key_indexes(segment, &stride) : sl_kv_segment_pages(segment, &stride);
    struct sl_fetch_range range = {.offset = (uint64_t)(at - (uint8_t *)sl_arena_base(fixture->parts.arena)),
                                   .bytes = stride * (size_t)test_family.n_offloaded_heads};
    sl_remote_kv_table_return(fixture->remote_kvs, &held);
    return range;
}

static enum sl_status read_range(struct fixture *fixture, const struct sl_remote_kv_lease *lease,
                                 struct sl_fetch_range range) {
    struct sl_connection *connection = NULL;
    struct sl_fetch *fetch = NULL;
    struct sl_error err = {0};
    struct sl_fabric *owner = fixture->parts.receiver;
    assert_int_equal(
        sl_connection_open(fixture->parts.sender, sl_fabric_address(owner), sl_fabric_epoch(owner), &connection, &err),
        SL_OK);
    assert_true(range.bytes <= fixture->parts.source_bytes);
    range.to = fixture->parts.source;
    enum sl_status status = sl_fetch_open(
        connection, &(struct sl_fetch_plan){lease->window, lease->window_bytes, &range, 1, sl_deadline_in_ms(10000)},
        &fetch, &err);
    assert_int_equal(status, SL_OK);
    do {
        status = sl_fetch_wait(fetch, sl_deadline_in_ms(10000), &err);
    } while (status == SL_AGAIN);
    sl_fetch_close(&fetch);
    sl_connection_close(&connection);
    if (status == SL_OK) {
        const uint8_t *base = sl_arena_base(fixture->parts.arena);
        assert_memory_equal(fixture->parts.source, base + range.offset, range.bytes);
    }
    return status;
}

// A process that opens a remote KV can read that remote KV, and nothing of any other, whatever it sends.
static void test_window_shows_its_remote_kv_alone(void **state) {
    struct fixture *fixture = *state;
    struct prompt first, second, other, made_up;
    make_prompt(&first, 1, 256, 384);
    make_prompt(&second, 2, 256, 384); // begins like the first
    make_prompt(&other, 3, 0, 256);
    make_prompt(&made_up, 4, 0, 256);
    struct sl_remote_kv_lease one = open_annex(fixture, &first);
    assert_true(one.window_bytes > 0);
    grow(fixture, &one, 0, 256, 1);
    grow(fixture, &one, 256, 384, 1);
    struct sl_remote_kv_lease two = open_annex(fixture, &second), three = open_annex(fixture, &other);
    grow(fixture, &two, 256, 384, 2);
    grow(fixture, &three, 0, 256, 3);
    struct sl_remote_kv_lease four = open_annex(fixture, &made_up);
    assert_int_equal(two.n_tokens, 256);
    assert_int_equal(four.n_tokens, 0);

    for (int indexes = 0; indexes < 2; indexes++) {
        struct sl_fetch_range shared = place_of(fixture, &one, 0, indexes), own = place_of(fixture, &one, 1, indexes),
                              seconds = place_of(fixture, &two, 1, indexes),
                              third = place_of(fixture, &three, 0, indexes);
        assert_int_equal(read_range(fixture, &one, shared), SL_OK);
        assert_int_equal(read_range(fixture, &one, own), SL_OK);
        assert_int_equal(read_range(fixture, &two, shared), SL_OK);
        assert_int_equal(read_range(fixture, &two, seconds), SL_OK);
        assert_int_equal(read_range(fixture, &one, seconds), SL_ERR_RANGE);
        assert_int_equal(read_range(fixture, &two, own), SL_ERR_RANGE);
        assert_int_equal(read_range(fixture, &one, third), SL_ERR_RANGE);
        assert_int_equal(read_range(fixture, &four, shared), SL_ERR_RANGE);
        assert_int_equal(read_range(fixture, &four, third), SL_ERR_RANGE);
    }
    struct sl_fetch_range own = place_of(fixture, &one, 0, false);
    for (uint64_t offset = 0; offset < ARENA_BYTES; offset += ARENA_BYTES / 64) { // without a remote KV, no read
        assert_int_equal(read_range(fixture, &four, (struct sl_fetch_range){.offset = offset, .bytes = 64}),
                         SL_ERR_RANGE);
    }
    sl_remote_kv_table_release(fixture->remote_kvs, one.lease_id);
    assert_int_equal(read_range(fixture, &one, own), SL_ERR_PEER_STALE);
    assert_int_equal(read_range(fixture, &two, own), SL_OK); // its own as well
    sl_remote_kv_table_release(fixture->remote_kvs, two.lease_id);
    sl_remote_kv_table_release(fixture->remote_kvs, three.lease_id);
    sl_remote_kv_table_release(fixture->remote_kvs, four.lease_id);
}

static void test_remote_kv_grows_and_the_next_job_reuses_it(void **state) {
    struct fixture *fixture = *state;
    struct prompt first, second;
    make_prompt(&first, 1, 256, 300);
    make_prompt(&second, 2, 256, 400);
    struct sl_remote_kv_lease one = open_annex(fixture, &first);
    assert_int_equal(one.n_tokens, 0);
    assert_true(promised_bytes(&fixture->parts) > 0);
    grow(fixture, &one, 0, 128, 1);
    grow(fixture, &one, 128, 256, 1);
    grow(fixture, &one, 256, 300, 1);
    assert_int_equal(promised_bytes(&fixture->parts), 0); // all of it is there
    assert_int_equal(n_segments(fixture), 3);

    struct sl_remote_kv_lease two = open_annex(fixture, &second), again = open_annex(fixture, &first);
    assert_int_equal(two.n_tokens, 256);
    assert_int_equal(again.n_tokens, 300);
    assert_int_equal(await_tokens(fixture, &two, 256, NULL), SL_OK);
    sl_remote_kv_table_release(fixture->remote_kvs, one.lease_id);
    sl_remote_kv_table_release(fixture->remote_kvs, one.lease_id); // idempotent
    assert_int_equal(n_segments(fixture), 3);                      // as cache
    assert_int_equal(sl_remote_kv_table_count(fixture->remote_kvs), 2);
    assert_false(sl_remote_kv_table_renew(fixture->remote_kvs, one.lease_id));

    struct sl_held_remote_kv *held = sl_remote_kv_table_borrow(fixture->remote_kvs, two.remote_kv_id);
    assert_non_null(held);
    assert_int_equal(sl_remote_kv_n_tokens(sl_held_remote_kv_get(held)), 256);
    sl_remote_kv_table_release(fixture->remote_kvs, two.lease_id); // ends now, goes when it is given back
    assert_int_equal(sl_remote_kv_n_tokens(sl_held_remote_kv_get(held)), 256);
    sl_remote_kv_table_return(fixture->remote_kvs, &held);
    assert_null(sl_remote_kv_table_borrow(fixture->remote_kvs, two.remote_kv_id));
}

static void test_remote_kv_two_segments_land_in_the_other_order(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 256);
    struct sl_remote_kv_lease lease = open_annex(fixture, &prompt);
    struct sl_inbound_ticket first = grant(fixture, &lease, 0, 128), second = grant(fixture, &lease, 128, 256);
    ship_block(&fixture->parts, &second, 128, 256, 1, true);
    int64_t n;
    assert_int_equal(await_within(fixture, &lease, 1, 100, &n, NULL), SL_ERR_DEADLINE);
    ship_block(&fixture->parts, &first, 0, 128, 1, true);
    assert_int_equal(await_tokens(fixture, &lease, 256, NULL), SL_OK);
    free(first.ticket);
    free(second.ticket);
}

static void test_remote_kv_refuses_what_does_not_fit_on(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 300);
    struct sl_remote_kv_lease lease = open_annex(fixture, &prompt);
    assert_int_equal(grant_refused(fixture, "annex-0-0", 0, 64), SL_ERR_NOT_FOUND);
    assert_int_equal(grant_refused(fixture, lease.lease_id, 64, 128), SL_ERR_INVALID); // a gap
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 100), SL_ERR_INVALID);  // not whole pages
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 320), SL_ERR_INVALID);  // beyond the prompt
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 0), SL_ERR_INVALID);    // nothing
    assert_int_equal(grant_refused(fixture, lease.lease_id, -64, 64), SL_ERR_INVALID);
    int64_t huge = INT64_MAX / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    struct sl_inbound_ticket none;
    size_t capacity;
    assert_int_equal(sl_remote_kv_table_grant(fixture->remote_kvs, lease.lease_id, huge, 128, &none, &capacity, NULL),
                     SL_ERR_INVALID);
    grow(fixture, &lease, 0, 128, 1);
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 128), SL_ERR_EXISTS);
    grow(fixture, &lease, 128, 300, 1);
    int64_t n;
    assert_int_equal(await_within(fixture, &lease, 301, 100, &n, NULL), SL_ERR_INVALID);
}

static void test_remote_kv_takes_what_another_job_has_stored_meanwhile(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 256);
    struct sl_remote_kv_lease one = open_annex(fixture, &prompt), two = open_annex(fixture, &prompt);
    struct sl_inbound_ticket late = grant(fixture, &two, 0, 128);
    grow(fixture, &one, 0, 128, 1);
    grow(fixture, &one, 128, 256, 1);
    assert_int_equal(grant_refused(fixture, two.lease_id, 128, 256), SL_ERR_EXISTS); // waits for the one before it
    ship_block(&fixture->parts, &late, 0, 128, 1, true);
    free(late.ticket);
    assert_int_equal(await_tokens(fixture, &two, 256, NULL), SL_OK);
    assert_int_equal(n_segments(fixture), 2); // of two equals one stays
    assert_int_equal(promised_bytes(&fixture->parts), 0);
}

static void test_remote_kv_a_failed_ship_is_told_and_can_be_repeated(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 256);
    struct sl_remote_kv_lease lease = open_annex(fixture, &prompt);
    struct sl_inbound_ticket first = grant(fixture, &lease, 0, 128), second = grant(fixture, &lease, 128, 256);
    ship_block(&fixture->parts, &first, 0, 128, 1, false);
    struct sl_error err = {0};
    assert_true(await_tokens(fixture, &lease, 128, &err) < 0);
    assert_int_not_equal(err.status, SL_ERR_DEADLINE);
    free(first.ticket);
    free(second.ticket);
    grow(fixture, &lease, 0, 128, 1);
    grow(fixture, &lease, 128, 256, 1);
}

static void test_remote_kv_ends_unless_renewed_or_asked(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 256);
    struct sl_remote_kv_lease renewed = open_annex(fixture, &prompt), asked = open_annex(fixture, &prompt),
                              left = open_annex(fixture, &prompt);
    struct sl_inbound_ticket ticket = grant(fixture, &left, 0, 128);
    free(ticket.ticket);
    int64_t later_ns = sl_now_ns() + LEASE_MS * SL_NS_PER_MS;
    sl_remote_kv_table_reap(fixture->remote_kvs, sl_now_ns());
    assert_int_equal(sl_remote_kv_table_count(fixture->remote_kvs), 3);
    sl_sleep_ms(20);
    assert_true(sl_remote_kv_table_renew(fixture->remote_kvs, renewed.lease_id));
    struct sl_held_remote_kv *held = sl_remote_kv_table_borrow(fixture->remote_kvs, asked.remote_kv_id);
    sl_remote_kv_table_return(fixture->remote_kvs, &held);
    sl_remote_kv_table_reap(fixture->remote_kvs, later_ns);
    assert_int_equal(sl_remote_kv_table_count(fixture->remote_kvs), 2);
    assert_int_equal(grant_refused(fixture, left.lease_id, 0, 128), SL_ERR_NOT_FOUND);
    sl_remote_kv_table_reap(fixture->remote_kvs, later_ns + LEASE_MS * SL_NS_PER_MS);
    assert_int_equal(sl_remote_kv_table_count(fixture->remote_kvs), 0);
    assert_int_equal(promised_bytes(&fixture->parts), 0);
}

// A prompt of the size that fills the arena to `percent`.
static int64_t tokens_for(int percent) {
    struct sl_kv_segment_config config;
    assert_int_equal(sl_kv_family_config(&test_family, 0, MAX_PROMPT, &config, NULL), SL_OK);
    return (int64_t)(ARENA_BYTES / 100 * (size_t)percent / (sl_kv_segment_bytes(&config) / MAX_PROMPT)) /
           SL_PAGE_SLOTS * SL_PAGE_SLOTS;
}

static void test_remote_kv_promises_what_is_to_come(void **state) {
    struct fixture *fixture = *state;
    // Hashes of a long prompt: what they are of does not matter here.
    int64_t n_tokens = tokens_for(60);
    struct sl_hash128 *prefixes = calloc((size_t)(n_tokens / SL_PAGE_SLOTS), sizeof *prefixes);
    for (int64_t i = 0; i < n_tokens / SL_PAGE_SLOTS; i++) {
        memcpy(&prefixes[i], &(uint64_t){(uint64_t)i + 1}, sizeof(uint64_t));
    }
    struct sl_prompt_hashes prompt = {n_tokens, prefixes, prefixes[n_tokens / SL_PAGE_SLOTS - 1]};
    struct sl_remote_kv_lease first, second;
    struct sl_error err = {0};
    assert_int_equal(
        sl_remote_kv_table_open(fixture->remote_kvs, "first", &test_family, &prompt, &no_capsule, &first, &err), SL_OK);
    size_t promised = promised_bytes(&fixture->parts);
    assert_in_range(promised, ARENA_BYTES / 100 * 55, ARENA_BYTES / 100 * 65);
    assert_int_equal(
        sl_remote_kv_table_open(fixture->remote_kvs, "second", &test_family, &prompt, &no_capsule, &second, &err),
        SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "second"));
    assert_non_null(strstr(err.text, "retry"));
    assert_int_equal(promised_bytes(&fixture->parts), promised);
    // Granted memory is taken from the promise: used and promised together do not grow.
    struct sl_inbound_ticket ticket;
    size_t capacity;
    assert_int_equal(sl_remote_kv_table_grant(fixture->remote_kvs, first.lease_id, 0, 1024, &ticket, &capacity, &err),
                     SL_OK);
    struct sl_arena_stats arena;
    sl_arena_get_stats(fixture->parts.arena, &arena);
    assert_in_range(arena.used_bytes + promised_bytes(&fixture->parts), promised - 4096, promised + 4096);
    free(ticket.ticket);
    sl_remote_kv_table_release(fixture->remote_kvs, first.lease_id);
    assert_int_equal(promised_bytes(&fixture->parts), 0);
    free(prefixes);
}

static void test_remote_kv_takes_the_room_of_what_nobody_uses(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    // Segments that no job has released, those that one has, and one that is used: each a sixth of the arena or so.
    int64_t n_tokens = tokens_for(16) < MAX_PROMPT ? tokens_for(16) : MAX_PROMPT;
    struct sl_remote_kv_lease kept, used;
    for (int seed = 1; seed <= 4; seed++) {
        make_prompt(&prompt, seed, 0, n_tokens);
        struct sl_kv_segment *segment = make_segment(fixture->parts.arena, &test_family, 0, n_tokens, seed);
        assert_int_equal(sl_kv_segments_put(fixture->parts.segments, &test_family, prompt.hashes.whole, &segment, NULL),
                         SL_OK);
        sl_kv_segment_unref(&segment);
    }
    make_prompt(&prompt, 1, 0, n_tokens);
    used = open_annex(fixture, &prompt);
    assert_int_equal(used.n_tokens, n_tokens);
    make_prompt(&prompt, 2, 0, n_tokens);
    kept = open_annex(fixture, &prompt);
    assert_int_equal(kept.n_tokens, n_tokens);
    sl_remote_kv_table_release(fixture->remote_kvs, kept.lease_id);

    struct sl_kv_segment_config config;
    assert_int_equal(sl_kv_family_config(&test_family, 0, n_tokens, &config, NULL), SL_OK);
    size_t each = sl_kv_segment_bytes(&config), high = ARENA_BYTES / 100 * 90, low = ARENA_BYTES / 100 * 85;
    struct sl_error err = {0};
    // Beyond 90%: the two that no lease holds go as far as 85% demands, the kept one stays.
    size_t wanted = high - 4 * each + 1;
    assert_int_equal(sl_room_promise(&fixture->parts.room, "test", wanted, &err), SL_OK);
    assert_int_equal(n_segments(fixture), 4 - (int64_t)((4 * each + wanted - low + each - 1) / each));
    sl_ledger_return(fixture->parts.ledger, wanted);
    // No segment larger than the rest of the arena fits in addition to the used one: it is refused, and none is evicted.
    int64_t before = n_segments(fixture);
    assert_int_equal(sl_room_promise(&fixture->parts.room, "test", ARENA_BYTES - each / 2, &err), SL_ERR_EXHAUSTED);
    assert_int_equal(n_segments(fixture), before);
    // All but the used one goes when there is no other way.
    wanted = ARENA_BYTES - each - 65536;
    assert_int_equal(sl_room_promise(&fixture->parts.room, "test", wanted, &err), SL_OK);
    assert_int_equal(n_segments(fixture), 1);
    sl_ledger_return(fixture->parts.ledger, wanted);
    make_prompt(&prompt, 1, 0, n_tokens);
    struct sl_kv_segment *segment =
        sl_kv_segments_find(fixture->parts.segments, &test_family, &prompt.hashes, 0, n_tokens);
    assert_non_null(segment);
    sl_kv_segment_unref(&segment);
}

// Pages that are kept in int8 need memory in addition to what has arrived: it is promised as well, and released.
static void test_remote_kv_keeps_rows_in_eight_bits_and_searches_by_signs(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 300);
    struct sl_kv_family family = test_family;
    family.rows = SL_KV_INT8;
    family.scan = SL_KV_INT1;
    struct sl_remote_kv_lease small, same;
    assert_int_equal(
        sl_remote_kv_table_open(fixture->remote_kvs, "test", &family, &prompt.hashes, &no_capsule, &small, NULL),
        SL_OK);
    struct sl_kv_segment_config full, partial;
    assert_int_equal(sl_kv_family_config(&family, 0, 256, &full, NULL), SL_OK);
    assert_int_equal(sl_kv_family_config(&family, 256, 300, &partial, NULL), SL_OK);
    assert_int_equal(promised_bytes(&fixture->parts),
                     sl_kv_segment_bytes(&full) + sl_kv_segment_bytes(&partial) + sl_kv_segment_block_bytes(&full));
    assert_true(sl_kv_segment_bytes(&full) < sl_kv_segment_block_bytes(&full));
    grow(fixture, &small, 0, 256, 1);
    grow(fixture, &small, 256, 300, 1);
    struct sl_kv_segments_stats stats;
    struct sl_arena_stats arena;
    sl_kv_segments_get_stats(fixture->parts.segments, &stats);
    int64_t deadline = sl_deadline_in_ms(5000);
    do { // the grant releases its block a moment later
        sl_arena_get_stats(fixture->parts.arena, &arena);
    } while (arena.used_bytes != stats.bytes && sl_now_ns() < deadline);
    assert_int_equal(arena.used_bytes, stats.bytes);
    assert_int_equal(promised_bytes(&fixture->parts), 0);
    assert_int_equal(
        sl_remote_kv_table_open(fixture->remote_kvs, "test", &family, &prompt.hashes, &no_capsule, &same, NULL), SL_OK);
    assert_int_equal(same.n_tokens, 300);
    assert_int_equal(open_annex(fixture, &prompt).n_tokens, 0); // as shipped: another family
}

// With every byte of the arena promised or used, a remote KV whose rows are packed still grows to its end, though what
// is shipped is larger than what is kept; and what a failed ship was granted is there for the next one.
static void test_remote_kv_grows_where_everything_is_promised(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 300);
    struct sl_kv_family family = test_family;
    family.rows = SL_KV_INT8;
    family.scan = SL_KV_INT1;
    struct sl_remote_kv_lease lease;
    assert_int_equal(
        sl_remote_kv_table_open(fixture->remote_kvs, "test", &family, &prompt.hashes, &no_capsule, &lease, NULL),
        SL_OK);
    struct sl_arena_stats arena;
    sl_arena_get_stats(fixture->parts.arena, &arena);
    size_t promised = promised_bytes(&fixture->parts), others = arena.capacity_bytes - arena.used_bytes - promised;
    assert_int_equal(sl_ledger_try_promise(fixture->parts.ledger, others), SL_OK);
    assert_int_equal(sl_ledger_try_promise(fixture->parts.ledger, 1), SL_AGAIN);

    struct sl_inbound_ticket ticket = grant(fixture, &lease, 0, 256);
    ship_block(&fixture->parts, &ticket, 0, 256, 1, false);
    struct sl_error err = {0};
    assert_true(await_tokens(fixture, &lease, 256, &err) < 0);
    free(ticket.ticket);
    int64_t deadline = sl_deadline_in_ms(5000);
    do { // the grant releases its block a moment later
        sl_arena_get_stats(fixture->parts.arena, &arena);
    } while (arena.used_bytes + promised_bytes(&fixture->parts) != promised + others && sl_now_ns() < deadline);
    assert_int_equal(arena.used_bytes + promised_bytes(&fixture->parts), promised + others);
    grow(fixture, &lease, 0, 256, 1);
    grow(fixture, &lease, 256, 300, 1);
    assert_int_equal(promised_bytes(&fixture->parts), others);
    sl_ledger_return(fixture->parts.ledger, others);
}

// A refused grant leaves every gauge as it was, also when memory is missing; when the remote KV goes, all gauges are
// zero.
static void test_remote_kv_refused_grants_hold_nothing(void **state) {
    struct fixture *fixture = *state;
    struct parts *parts = &fixture->parts;
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, 300);
    struct sl_remote_kv_lease lease = open_annex(fixture, &prompt);
    const size_t promised = promised_bytes(parts);
    const int64_t ranges[][2] = {{64, 128}, {0, 100}, {0, 320}, {0, 0}, {-64, 64}};
    assert_true(promised > 0);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        assert_int_equal(grant_refused(fixture, lease.lease_id, ranges[i][0], ranges[i][1]), SL_ERR_INVALID);
        assert_int_equal(promised_bytes(parts), promised);
        assert_int_equal(sl_inbound_count(parts->inbound), 0);
    }
    struct sl_arena_stats stats;
    sl_arena_get_stats(parts->arena, &stats);
    void *others = sl_arena_alloc(parts->arena, stats.largest_free_bytes); // nothing is left, whatever was promised
    assert_non_null(others);
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 128), SL_ERR_EXHAUSTED);
    assert_int_equal(promised_bytes(parts), promised);
    assert_int_equal(sl_inbound_count(parts->inbound), 0);
    sl_arena_free(parts->arena, others);
    struct sl_inbound_ticket ticket = grant(fixture, &lease, 0, 128);
    assert_int_equal(sl_inbound_count(parts->inbound), 1);
    assert_int_equal(grant_refused(fixture, lease.lease_id, 64, 128), SL_ERR_INVALID); // that one stands
    assert_int_equal(sl_inbound_count(parts->inbound), 1);
    free(ticket.ticket);
    sl_remote_kv_table_release(fixture->remote_kvs, lease.lease_id);
    assert_int_equal(grant_refused(fixture, lease.lease_id, 0, 128), SL_ERR_NOT_FOUND);
    assert_int_equal(promised_bytes(parts), 0);
    assert_int_equal(sl_inbound_count(parts->inbound), 0);
    assert_int_equal(sl_remote_kv_table_count(fixture->remote_kvs), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_remote_kv_grows_and_the_next_job_reuses_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_window_shows_its_remote_kv_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_two_segments_land_in_the_other_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_refuses_what_does_not_fit_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_takes_what_another_job_has_stored_meanwhile, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_a_failed_ship_is_told_and_can_be_repeated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_ends_unless_renewed_or_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_keeps_rows_in_eight_bits_and_searches_by_signs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_grows_where_everything_is_promised, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_promises_what_is_to_come, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_takes_the_room_of_what_nobody_uses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remote_kv_refused_grants_hold_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
