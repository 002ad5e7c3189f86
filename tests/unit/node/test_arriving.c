// SPDX-License-Identifier: Apache-2.0
/*
 * Capsules that arrive in an emulated device's memory: what the network wrote is not there before it was flushed, a wrong byte is found by
 * the device, and what fails there is staged from then on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/node/inbound.h"
#include "net/node/verifier.h"
#include "engine/runtime/transfer.h"
#include "tests/emulator/driver.h"

#define BYTES    ((size_t)2 << 20)
#define BODY     ((size_t)700000)
#define LEASE_MS 60000

struct fixture {
    struct sl_runtime runtime;
    struct sl_fabric *receiver, *sender;
    struct sl_arena *staging, *sessions;
    struct sl_ledger *staged, *promised;
    struct sl_direct direct;
    struct sl_verifier *verifier;
    struct sl_inbound *inbound;
    uint8_t *source;
    void *shared;
    atomic_bool loses; // what arrives in the device
};

static enum sl_status as_it_is(void *arg, enum sl_status status, struct sl_error *err) {
    (void)arg, (void)err;
    return status;
}

static void verify_or_lose(void *arg, struct sl_arrival *arrival) {
    struct fixture *f = arg;
    if (atomic_load(&f->loses)) {
        sl_arrival_end(&arrival, SL_ERR_PEER_LOST, 0);
    } else {
        sl_verifier_take(f->verifier, arrival);
    }
}

static void start(struct fixture *f, const char *transport, const char *inject) {
    const struct sl_runtime_config config = {.device = "emulated", .threads = 1};
    const struct sl_fabric_config to = {.listen = "127.0.0.1:0", .transport = "shm"},
                                  from = {.transport = transport, .inject = inject};
    const struct sl_direct_means means = {
        .wanted = true, .one_device = true, .network_reaches = true, .ordinary = true};
    void *base, *source;
    *f = (struct fixture){0};
    setenv("SLUICE_EMULATED_NETWORK", "1", 1);
    assert_int_equal(sl_runtime_open(&config, &f->runtime, NULL), SL_OK);
    assert_int_equal(sl_fabric_create(&to, &f->receiver, NULL), SL_OK);
    assert_int_equal(sl_fabric_create(&from, &f->sender, NULL), SL_OK);
    assert_int_equal(sl_fabric_region_create(f->receiver, BYTES, 0, &base, NULL), SL_OK);
    assert_int_equal(sl_fabric_region_create(f->sender, BODY, 0, &source, NULL), SL_OK);
    f->shared = base;
    f->source = source;
    for (size_t i = 0; i < BODY; i++) {
        f->source[i] = (uint8_t)(i * 31 >> 3);
    }
    assert_int_equal(sl_arena_create(base, BYTES, &f->staging, NULL), SL_OK);
    assert_int_equal(sl_arena_create_mapped(4 * BYTES, &f->sessions, NULL), SL_OK);
    assert_int_equal(sl_ledger_create(f->staging, &f->staged, NULL), SL_OK);
    assert_int_equal(sl_ledger_create(f->sessions, &f->promised, NULL), SL_OK);
    assert_int_equal(sl_inbound_create(f->receiver, f->staged, f->promised, LEASE_MS, &f->inbound, NULL), SL_OK);
    sl_direct_open(&f->direct, f->receiver, f->runtime.device, BYTES, true, &means);
    assert_non_null(f->direct.arena);
    const struct sl_verifying verifying = {.runtime = &f->runtime, .direct = &f->direct, .check = as_it_is};
    assert_int_equal(sl_verifier_start(&verifying, &f->verifier, NULL), SL_OK);
    sl_inbound_go_straight(f->inbound, f->direct.arena, verify_or_lose, f);
}

static size_t n_blocks(struct sl_arena *arena) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    return stats.n_blocks;
}

// Asserts that nothing is held any more.
static void stop(struct fixture *f) {
    int64_t deadline = sl_deadline_in_ms(20000);
    while ((n_blocks(f->staging) || n_blocks(f->direct.arena)) && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(n_blocks(f->staging) + n_blocks(f->direct.arena), 0);
    assert_int_equal(sl_ledger_promised_bytes(f->promised), 0);
    sl_inbound_close(f->inbound);
    sl_fabric_destroy(&f->sender);
    sl_verifier_stop(f->verifier);
    sl_fabric_destroy(&f->receiver);
    sl_inbound_destroy(&f->inbound);
    sl_verifier_destroy(&f->verifier);
    sl_direct_close(&f->direct);
    sl_ledger_destroy(&f->staged);
    sl_ledger_destroy(&f->promised);
    sl_arena_destroy(&f->staging);
    sl_arena_destroy(&f->sessions);
    sl_runtime_close(&f->runtime);
    unsetenv("SLUICE_EMULATED_NETWORK");
}

static enum sl_status ship(struct fixture *f, const struct sl_inbound_ticket *ticket, size_t bytes) {
    struct sl_ship *ship;
    assert_int_equal(
        sl_ship_open(f->sender, ticket->ticket, ticket->ticket_bytes, sl_deadline_in_ms(LEASE_MS), &ship, NULL), SL_OK);
    sl_ship_piece(ship, 0, f->source, bytes);
    enum sl_status status = bytes == BODY ? sl_ship_finish(ship, "header", 6, NULL) : SL_ERR_CANCELLED;
    sl_ship_close(&ship);
    return status;
}

// The bytes of the device, as kernels have them.
static void expect_in_device(struct fixture *f, const void *body) {
    void *down = sl_device_alloc(f->runtime.device, SL_MEMORY_SHARED, BODY);
    struct sl_mark mark = sl_transfer_out(&f->runtime, down, body, BODY);
    assert_int_equal(sl_mark_wait(&mark, NULL), SL_OK);
    assert_memory_equal(down, f->source, BODY);
    sl_device_free(f->runtime.device, SL_MEMORY_SHARED, down);
}

// A capsule arrives, in the device or not.
static void expect(struct fixture *f, bool in_device) {
    struct sl_inbound_ticket ticket;
    struct sl_capsule_bytes received;
    size_t promised;
    assert_int_equal(sl_inbound_open(f->inbound, "test", BODY, 1000, &ticket, NULL), SL_OK);
    assert_int_equal(ship(f, &ticket, BODY), SL_OK);
    assert_int_equal(sl_inbound_take(f->inbound, ticket.id, sl_deadline_in_ms(LEASE_MS), &received, &promised, NULL),
                     SL_OK);
    assert_int_equal(promised, BODY + 1000);
    assert_int_equal(sl_direct_has(&f->direct, received.body), in_device);
    if (in_device) {
        expect_in_device(f, received.body);
        assert_int_equal(n_blocks(f->staging), 0); // it was not needed
    } else {
        assert_memory_equal(received.body, f->source, BODY);
    }
    sl_capsule_bytes_free(&received, in_device ? f->direct.arena : f->staging);
    sl_ledger_return(f->promised, promised);
    free(ticket.ticket);
}

static void expect_failure(struct fixture *f, size_t bytes, enum sl_status expected) {
    struct sl_inbound_ticket ticket;
    struct sl_capsule_bytes received;
    size_t promised;
    assert_int_equal(sl_inbound_open(f->inbound, "test", BODY, 0, &ticket, NULL), SL_OK);
    assert_int_equal(ship(f, &ticket, bytes), expected);
    assert_int_equal(sl_inbound_take(f->inbound, ticket.id, sl_deadline_in_ms(LEASE_MS), &received, &promised, NULL),
                     expected);
    sl_inbound_release(f->inbound, ticket.id);
    free(ticket.ticket);
}

static void test_capsules_arrive_in_the_device(void **state) {
    struct fixture f;
    (void)state;
    start(&f, "shm", NULL);
    for (int i = 0; i < 3; i++) { // in the memory of the one before
        memset(f.source + 1000, i, 5000);
        expect(&f, true);
    }
    expect_failure(&f, BODY / 2, SL_ERR_CANCELLED); // a cancelled arrival is not a fault of the network
    expect(&f, true);
    stop(&f);
}

static void test_messages_are_staged(void **state) {
    struct fixture f;
    (void)state;
    start(&f, "tcp", NULL);
    expect(&f, false);
    stop(&f);
}

static void test_no_room_in_the_device_is_staged(void **state) {
    struct fixture f;
    (void)state;
    start(&f, "shm", NULL);
    void *block = sl_arena_alloc(f.direct.arena, BYTES - BODY / 2);
    assert_non_null(block);
    expect(&f, false);
    sl_arena_free(f.direct.arena, block);
    expect(&f, true);
    stop(&f);
}

static void test_a_wrong_byte_ends_going_straight(void **state) {
    struct fixture f;
    (void)state;
    start(&f, "shm", "corrupt:12"); // the first segment, of 64 KiB, of the second ship
    expect(&f, true);
    expect_failure(&f, BODY, SL_ERR_PEER_CORRUPT);
    expect(&f, false);
    stop(&f);
}

// Ships whose memory was reserved before the first of them is lost.
static void lose(struct fixture *f, int n_ships) {
    struct sl_inbound_ticket tickets[2];
    struct sl_capsule_bytes received;
    size_t promised;
    for (int i = 0; i < n_ships; i++) {
        assert_int_equal(sl_inbound_open(f->inbound, "test", BODY, 0, &tickets[i], NULL), SL_OK);
    }
    atomic_store(&f->loses, true);
    for (int i = 0; i < n_ships; i++) {
        assert_int_equal(ship(f, &tickets[i], BODY), SL_ERR_PEER_LOST);
        assert_int_equal(
            sl_inbound_take(f->inbound, tickets[i].id, sl_deadline_in_ms(LEASE_MS), &received, &promised, NULL),
            SL_ERR_PEER_LOST);
        sl_inbound_release(f->inbound, tickets[i].id);
        free(tickets[i].ticket);
    }
    atomic_store(&f->loses, false);
}

static void test_losses_in_a_row_end_going_straight(void **state) {
    struct fixture f;
    (void)state;
    start(&f, "shm", NULL);
    lose(&f, 2); // as with one sender: one loss
    lose(&f, 1);
    expect(&f, true); // and the row ends
    lose(&f, 1);
    lose(&f, 1);
    lose(&f, 1);
    expect(&f, false);
    stop(&f);
}

// An arrival that is with the verifier, or comes when it has stopped, ends, and no thread waits for it.
static void test_who_stops_leaves_nothing(void **state) {
    struct fixture f;
    struct sl_inbound_ticket ticket;
    (void)state;
    start(&f, "shm", NULL);
    sl_verifier_stop(f.verifier);
    assert_int_equal(sl_inbound_open(f.inbound, "test", BODY, 0, &ticket, NULL), SL_OK);
    assert_int_equal(ship(&f, &ticket, BODY), SL_ERR_CANCELLED);
    sl_inbound_release(f.inbound, ticket.id);
    free(ticket.ticket);
    stop(&f);
}

// Arrivals cannot be verified, and a thread that stops the verifier does not wait for the device for ever.
static void test_a_device_that_hangs_lets_the_verifier_stop(void **state) {
    static struct sl_device *volatile stays; // reachable: LeakSanitizer must not report what a device in use keeps
    struct fixture f;
    struct sl_inbound_ticket ticket;
    struct sl_capsule_bytes received;
    size_t promised;
    (void)state;
    start(&f, "shm", NULL);
    expect(&f, true);
    stays = f.runtime.device;
    (void)stays;
    sl_device_limit_waits(f.runtime.device, 500);
    sl_emulated_stall_at(0, 1);
    assert_int_equal(sl_inbound_open(f.inbound, "test", BODY, 0, &ticket, NULL), SL_OK);
    assert_int_not_equal(ship(&f, &ticket, BODY), SL_OK);
    int64_t began_ns = sl_now_ns();
    sl_verifier_stop(f.verifier);
    assert_true(sl_now_ns() - began_ns < 10 * SL_NS_PER_S);
    assert_true(sl_device_has_failed(f.runtime.device));
    assert_int_not_equal(sl_inbound_take(f.inbound, ticket.id, sl_deadline_in_ms(LEASE_MS), &received, &promised, NULL),
                         SL_OK);
    sl_inbound_release(f.inbound, ticket.id);
    free(ticket.ticket);
    stop(&f);
    sl_emulated_stall_at(0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capsules_arrive_in_the_device),
        cmocka_unit_test(test_messages_are_staged),
        cmocka_unit_test(test_no_room_in_the_device_is_staged),
        cmocka_unit_test(test_a_wrong_byte_ends_going_straight),
        cmocka_unit_test(test_losses_in_a_row_end_going_straight),
        cmocka_unit_test(test_who_stops_leaves_nothing),
        cmocka_unit_test(test_a_device_that_hangs_lets_the_verifier_stop), // last: its memory stays
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
