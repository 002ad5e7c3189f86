// SPDX-License-Identifier: Apache-2.0
// Leases over a real fabric on the loopback interface: what arrives, what expires, what does not fit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/node/adopt.h"
#include "net/node/inbound.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define LEASE_MS    400

struct fixture {
    struct sl_fabric *receiver, *sender;
    struct sl_arena *arena;
    struct sl_ledger *ledger;
    struct sl_inbound *inbound;
    void *source;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct sl_error err = {0};
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "tcp"};
    void *base;
    assert_int_equal(sl_fabric_create(&config, &fixture->receiver, &err), SL_OK);
    assert_int_equal(sl_fabric_create(&config, &fixture->sender, &err), SL_OK);
    assert_int_equal(sl_fabric_region_create(fixture->receiver, ARENA_BYTES, 0, &base, &err), SL_OK);
    assert_int_equal(sl_fabric_region_create(fixture->sender, 1 << 20, 0, &fixture->source, &err), SL_OK);
    assert_int_equal(sl_arena_create(base, ARENA_BYTES, &fixture->arena, &err), SL_OK);
    assert_int_equal(sl_ledger_create(fixture->arena, &fixture->ledger, &err), SL_OK);
    assert_int_equal(
        sl_inbound_create(fixture->receiver, fixture->ledger, fixture->ledger, LEASE_MS, &fixture->inbound, &err),
        SL_OK);
    for (int i = 0; i < 1 << 20; i++) {
        ((unsigned char *)fixture->source)[i] = (unsigned char)(i * 31 >> 3);
    }
    *state = fixture;
    return 0;
}

// Asserts that a test has left nothing.
static int teardown(void **state) {
    struct fixture *fixture = *state;
    int64_t n_leases, deadline = sl_deadline_in_ms(5000);
    size_t promised;
    struct sl_arena_stats stats;
    do {
        n_leases = sl_inbound_count(fixture->inbound);
        promised = sl_ledger_promised_bytes(fixture->ledger);
        sl_arena_get_stats(fixture->arena, &stats);
        sl_sleep_ms(5);
    } while ((n_leases || stats.n_blocks) && sl_now_ns() < deadline);
    assert_int_equal(n_leases, 0);
    assert_int_equal(promised, 0);
    assert_int_equal(stats.n_blocks, 0);
    sl_inbound_destroy(&fixture->inbound);
    assert_null(fixture->inbound);
    sl_ledger_destroy(&fixture->ledger);
    sl_fabric_destroy(&fixture->sender);
    sl_fabric_destroy(&fixture->receiver);
    sl_arena_destroy(&fixture->arena);
    free(fixture);
    return 0;
}

static void ship(struct fixture *fixture, const struct sl_inbound_ticket *ticket, size_t bytes,
                 enum sl_status expected) {
    struct sl_ship *ship;
    struct sl_error err = {0};
    assert_int_equal(
        sl_ship_open(fixture->sender, ticket->ticket, ticket->ticket_bytes, sl_deadline_in_ms(5000), &ship, &err),
        SL_OK);
    sl_ship_piece(ship, 0, fixture->source, bytes);
    assert_int_equal(sl_ship_finish(ship, "header", 6, &err), expected);
    sl_ship_close(&ship);
}

static void test_inbound_what_was_shipped_can_be_taken(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket;
    assert_int_equal(sl_inbound_open(fixture->inbound, "test", 300000, 1000, &ticket, NULL), SL_OK);
    struct sl_capsule_bytes received;
    size_t promised;
    assert_int_equal(sl_inbound_take(fixture->inbound, ticket.id, sl_now_ns(), &received, &promised, NULL), SL_AGAIN);
    ship(fixture, &ticket, 300000, SL_OK);
    assert_int_equal(sl_inbound_take(fixture->inbound, ticket.id, sl_deadline_in_ms(2000), &received, &promised, NULL),
                     SL_OK);
    assert_int_equal(received.body_bytes, 300000);
    assert_int_equal(received.header_bytes, 6);
    assert_memory_equal(received.header, "header", 6);
    assert_memory_equal(received.body, fixture->source, 300000);
    assert_int_equal(promised, 1000);
    assert_int_equal(sl_inbound_take(fixture->inbound, ticket.id, sl_now_ns(), &received, &promised, NULL),
                     SL_ERR_NOT_FOUND);
    sl_ledger_return(fixture->ledger, promised);
    sl_arena_free(fixture->arena, received.body);
    free(received.header);
    free(ticket.ticket);
}

static void test_inbound_ends_by_itself_unless_renewed(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket kept, left;
    int64_t lease_ms;
    bool in_time = false;
    for (int round = 0; !in_time && round < 50; round++) { // where renewals come late nothing is seen: once more
        assert_int_equal(sl_inbound_open(fixture->inbound, "kept", 4096, 0, &kept, NULL), SL_OK);
        assert_int_equal(sl_inbound_open(fixture->inbound, "left", 4096, 0, &left, NULL), SL_OK);
        in_time = true;
        for (int i = 0; i < 8 && in_time; i++) {
            int64_t renewed_ns = sl_now_ns();
            sl_sleep_ms(LEASE_MS / 4);
            enum sl_status status = sl_inbound_renew(fixture->inbound, kept.id, &lease_ms, NULL);
            in_time = sl_now_ns() - renewed_ns < LEASE_MS * SL_NS_PER_MS * 3 / 4;
            assert_true(!in_time || (status == SL_OK && lease_ms == LEASE_MS));
        }
        if (!in_time) {
            sl_inbound_release(fixture->inbound, kept.id);
            sl_inbound_release(fixture->inbound, left.id);
            free(kept.ticket);
            free(left.ticket);
        }
    }
    assert_true(in_time);
    assert_int_equal(sl_inbound_renew(fixture->inbound, left.id, &lease_ms, NULL), SL_ERR_NOT_FOUND);
    // Nothing can be written through a ticket whose lease has ended.
    ship(fixture, &left, 4096, SL_ERR_PEER_STALE);
    ship(fixture, &kept, 4096, SL_OK);
    sl_inbound_release(fixture->inbound, kept.id);
    sl_inbound_release(fixture->inbound, kept.id); // idempotent
    free(kept.ticket);
    free(left.ticket);
}

static void test_inbound_counts_blocks_and_promises(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket first, second;
    struct sl_error err = {0};
    assert_int_equal(sl_inbound_open(fixture->inbound, "first", ARENA_BYTES / 4, ARENA_BYTES / 2, &first, NULL), SL_OK);
    assert_int_equal(sl_inbound_open(fixture->inbound, "second", ARENA_BYTES / 2, 0, &second, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry"));
    sl_inbound_release(fixture->inbound, first.id);
    int64_t deadline = sl_deadline_in_ms(2000);
    enum sl_status status;
    while ((status = sl_inbound_open(fixture->inbound, "second", ARENA_BYTES / 2, 0, &second, &err)) ==
               SL_ERR_EXHAUSTED &&
           sl_now_ns() < deadline) {
        sl_sleep_ms(5);
    }
    assert_int_equal(status, SL_OK);
    sl_inbound_release(fixture->inbound, second.id);
    free(first.ticket);
    free(second.ticket);
}

static void test_inbound_of_an_aborted_ship_fails(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket;
    assert_int_equal(sl_inbound_open(fixture->inbound, "test", 300000, 0, &ticket, NULL), SL_OK);
    struct sl_ship *ship;
    assert_int_equal(
        sl_ship_open(fixture->sender, ticket.ticket, ticket.ticket_bytes, sl_deadline_in_ms(5000), &ship, NULL), SL_OK);
    sl_ship_piece(ship, 0, fixture->source, 1000);
    sl_sleep_ms(50);
    sl_ship_close(&ship);
    struct sl_capsule_bytes received;
    size_t promised;
    struct sl_error err = {0};
    enum sl_status status =
        sl_inbound_take(fixture->inbound, ticket.id, sl_deadline_in_ms(2000), &received, &promised, &err);
    assert_true(status < 0 && status != SL_ERR_DEADLINE);
    sl_inbound_release(fixture->inbound, ticket.id);
    free(ticket.ticket);
}

// A device with memory of its own: blocks are of staging memory, the promise is of both.
static void test_inbound_promises_the_device_what_is_staged(void **state) {
    struct fixture *fixture = *state;
    struct sl_arena *arena;
    struct sl_ledger *sessions;
    struct sl_inbound *inbound;
    struct sl_inbound_ticket first, second;
    struct sl_error err = {0};
    assert_int_equal(sl_arena_create_mapped(3 * ARENA_BYTES, &arena, NULL), SL_OK);
    assert_int_equal(sl_ledger_create(arena, &sessions, NULL), SL_OK);
    assert_int_equal(sl_inbound_create(fixture->receiver, fixture->ledger, sessions, LEASE_MS, &inbound, NULL), SL_OK);

    assert_int_equal(sl_inbound_open(inbound, "large", ARENA_BYTES + 1, 0, &first, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "--staging")); // waiting would not help
    assert_int_equal(sl_inbound_open(inbound, "first", ARENA_BYTES, 1000, &first, NULL), SL_OK);
    assert_int_equal(sl_ledger_promised_bytes(sessions), ARENA_BYTES + 1000);
    assert_int_equal(sl_inbound_open(inbound, "second", 4096, 0, &second, &err), SL_ERR_EXHAUSTED); // of staging memory
    assert_int_equal(sl_inbound_open(inbound, "second", 4096, 2 * ARENA_BYTES, &second, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "the device's arena"));
    assert_int_equal(sl_ledger_promised_bytes(sessions), ARENA_BYTES + 1000);
    sl_inbound_release(inbound, first.id);
    assert_int_equal(sl_ledger_promised_bytes(sessions), 0);

    sl_inbound_destroy(&inbound);
    sl_ledger_destroy(&sessions);
    sl_arena_destroy(&arena);
    free(first.ticket);
}

// ---- what is refused when it has arrived ----------------------------------------------------------------------------

// A capsule of two full pages of one head, as a sender has it: its header, and the bytes of its body.
static size_t make_capsule(struct fixture *fixture, const struct sl_capsule_id *id, uint8_t **header_out,
                           size_t *header_bytes_out) {
    struct sl_page_layout layout;
    struct sl_session *session;
    assert_int_equal(sl_page_layout_init(&layout, SL_KV_F16, 8, 0, false), SL_OK);
    struct sl_session_config config = {.geometry = {1, 1, 8}, .max_slots = 128, .work = &layout, .packed = &layout};
    assert_int_equal(sl_session_create(&config, fixture->arena, &session, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(session, 0, 128), SL_OK);
    sl_session_set_slots(session, 0, 0, 128);
    session->n_tokens = 128;
    size_t bytes = sl_capsule_body_bytes(session);
    assert_int_equal(sl_capsule_write_header(session, id, header_out, header_bytes_out, NULL), SL_OK);
    sl_session_destroy(&session);
    return bytes;
}

struct arrival {
    struct sl_capsule_id expected;
    struct sl_kv_geometry geometry;
    size_t left_out, header_left_out; // of what was announced
    int damaged;                      // a byte of the header, or -1
    enum sl_status status;
};

static void adopt(struct fixture *fixture, const struct arrival *arrival) {
    static const struct sl_capsule_id id = {11, 22, {{33}}};
    uint8_t *header;
    size_t header_bytes, body_bytes = make_capsule(fixture, &id, &header, &header_bytes), promised;
    struct sl_inbound_ticket ticket;
    struct sl_ship *ship;
    struct sl_capsule_bytes received;
    struct sl_session *session = NULL;
    struct sl_error err = {0};
    if (arrival->damaged >= 0) {
        header[arrival->damaged] ^= 0xff;
    }
    assert_int_equal(sl_inbound_open(fixture->inbound, "test", body_bytes, 5000, &ticket, NULL), SL_OK);
    assert_int_equal(
        sl_ship_open(fixture->sender, ticket.ticket, ticket.ticket_bytes, sl_deadline_in_ms(5000), &ship, NULL), SL_OK);
    sl_ship_piece(ship, 0, fixture->source, body_bytes - arrival->left_out);
    assert_int_equal(sl_ship_finish(ship, header, header_bytes - arrival->header_left_out, NULL), SL_OK);
    sl_ship_close(&ship);
    assert_int_equal(sl_inbound_take(fixture->inbound, ticket.id, sl_deadline_in_ms(2000), &received, &promised, NULL),
                     SL_OK);
    struct sl_node node = {.arena = fixture->arena, .staging = fixture->arena, .ledger = fixture->ledger};
    struct sl_expected_capsule expected = {&arrival->geometry, &arrival->expected, 128};
    assert_int_equal(sl_node_adopt(&node, &received, &promised, &expected, &session, &err), arrival->status);
    if (arrival->status == SL_OK) {
        assert_int_equal(session->n_tokens, 128);
        sl_session_destroy(&session);
    } else {
        assert_null(session);
        assert_int_not_equal(err.text[0], '\0');
    }
    sl_ledger_return(fixture->ledger, promised); // the arrival's owner returns its promise, adopted or not
    free(header);
    free(ticket.ticket);
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    assert_int_equal(sl_ledger_promised_bytes(fixture->ledger), 0);
    assert_int_equal(sl_inbound_count(fixture->inbound), 0);
}

static void test_inbound_refused_adoptions_leave_nothing(void **state) {
    struct fixture *fixture = *state;
    static const struct arrival arrivals[] = {
        {{11, 22, {{33}}}, {1, 1, 8}, 0, 0, -1, SL_OK},
        {{12, 22, {{33}}}, {1, 1, 8}, 0, 0, -1, SL_ERR_PRECONDITION}, // another model
        {{11, 23, {{33}}}, {1, 1, 8}, 0, 0, -1, SL_ERR_PRECONDITION}, // another recipe
        {{11, 22, {{34}}}, {1, 1, 8}, 0, 0, -1, SL_ERR_PRECONDITION}, // another prompt
        {{11, 22, {{33}}}, {2, 1, 8}, 0, 0, -1, SL_ERR_PRECONDITION}, // more layers
        {{11, 22, {{33}}}, {1, 1, 8}, 64, 0, -1, SL_ERR_INVALID},     // fewer pages than it says
        {{11, 22, {{33}}}, {1, 1, 8}, 0, 1, -1, SL_ERR_INVALID},      // a header that is cut short
        {{11, 22, {{33}}}, {1, 1, 8}, 0, 0, 0, SL_ERR_INVALID},       // one that is none
    };
    for (size_t i = 0; i < sizeof arrivals / sizeof arrivals[0]; i++) {
        adopt(fixture, &arrivals[i]);
    }
}

static struct sl_inbound *closes; // while a grant is opened

enum sl_status __real_sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan,
                                    struct sl_grant **grant_out, uint8_t **ticket_out, size_t *ticket_bytes_out,
                                    struct sl_error *err);
enum sl_status __wrap_sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan,
                                    struct sl_grant **grant_out, uint8_t **ticket_out, size_t *ticket_bytes_out,
                                    struct sl_error *err);

enum sl_status __wrap_sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan,
                                    struct sl_grant **grant_out, uint8_t **ticket_out, size_t *ticket_bytes_out,
                                    struct sl_error *err) {
    if (closes) {
        sl_inbound_close(closes);
    }
    return __real_sl_grant_open(fabric, plan, grant_out, ticket_out, ticket_bytes_out, err);
}

// A lease that is opened while the table is closed ends at once; teardown finds nothing of it.
static void test_inbound_that_is_closed_meanwhile_leaves_nothing(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket;
    closes = fixture->inbound;
    assert_int_equal(sl_inbound_open(fixture->inbound, "test", 4096, 1000, &ticket, NULL), SL_ERR_PEER_LOST);
    closes = NULL;
    assert_int_equal(sl_inbound_open(fixture->inbound, "test", 4096, 1000, &ticket, NULL), SL_ERR_PEER_LOST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_inbound_what_was_shipped_can_be_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_ends_by_itself_unless_renewed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_counts_blocks_and_promises, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_of_an_aborted_ship_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_promises_the_device_what_is_staged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_refused_adoptions_leave_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inbound_that_is_closed_meanwhile_leaves_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
