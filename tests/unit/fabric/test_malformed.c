// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: messages that no fabric would send, of every kind, over a real connection. They are counted, nothing is written outside of the
 *          grant, and ships to and from their sender still work.
 *
 * Design: the sender is a fabric too, whose progress thread is given a command that sends random bytes as messages.
 *         Half of them begin with the key of a grant that is really open and claimed, so that the checks after the first one are reached.
 *         The seed is fixed: a failure comes again.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/core/core.h"
#include "net/fabric/grant.h"

#define MIB         (1u << 20)
#define BLOCK_BYTES (256u << 10)
#define GUARD_BYTES 4096
#define N_MESSAGES  400
#define HEADER_MAX  1500
#define PAYLOAD_MAX (96u << 10) // some by rendezvous
#define LONG_ENOUGH 256         // no message's struct is longer

static const char *transport;

struct random {
    uint64_t x;
};

static uint64_t draw(struct random *random) {
    random->x ^= random->x << 13;
    random->x ^= random->x >> 7;
    random->x ^= random->x << 17;
    return random->x;
}

// ---- on the progress threads -------------------------------------------------------------------------------------

struct call {
    struct sl_command command;
    atomic_bool done;
    enum sl_wire_id id;
    size_t n, least;         // messages to send, with headers of at least so many bytes
    struct sl_wire_key *key; // that some of them begin with; NULL: none do
    struct sl_wire_secret secret;
    struct random *random;
    const struct sl_grant *grant;
    uint64_t n_dropped; // answers
    bool claimed;
};

static void call(struct sl_fabric *fabric, struct call *it, void (*run)(struct sl_fabric *, struct sl_command *)) {
    it->command.run = run;
    sl_fabric_post(fabric, &it->command);
    while (!atomic_load(&it->done)) {
        sl_sleep_ms(1);
    }
}

static struct sl_peer *connected(struct sl_fabric *fabric) {
    struct sl_peer *peer = fabric->peers;
    while (peer && !(peer->connector && peer->state == PEER_UP)) {
        peer = peer->next;
    }
    return peer;
}

static void run_send(struct sl_fabric *fabric, struct sl_command *command) {
    struct call *it = (struct call *)command;
    struct sl_peer *peer = connected(fabric);
    for (size_t i = 0; peer && i < it->n; i++) {
        uint8_t header[HEADER_MAX];
        size_t header_bytes = it->least + draw(it->random) % (HEADER_MAX - it->least);
        if (it->least == 0 && draw(it->random) % 2) {
            header_bytes %= 64; // around the lengths that matter
        }
        fill_pattern(header, header_bytes, draw(it->random));
        if (it->key && header_bytes >= sizeof *it->key && draw(it->random) % 2) {
            memcpy(header, it->key, sizeof *it->key);
        }
        struct sl_peer_send *send = sl_peer_send_create(peer, header, header_bytes);
        size_t payload_bytes = draw(it->random) % 3 ? 0 : draw(it->random) % PAYLOAD_MAX;
        send->buffer = sl_fabric_take_buffer(fabric);
        fill_pattern(send->buffer, payload_bytes, draw(it->random));
        sl_peer_send_start(send, it->id, send->buffer, payload_bytes);
    }
    atomic_store(&it->done, true);
}

static void run_claim(struct sl_fabric *fabric, struct sl_command *command) {
    struct call *it = (struct call *)command;
    struct sl_wire_claim claim = {.key = *it->key, .secret = it->secret};
    struct sl_peer *peer = connected(fabric);
    if (peer) {
        sl_peer_tell(peer, SL_WIRE_CLAIM, &claim, sizeof claim);
    }
    atomic_store(&it->done, true);
}

static void run_look(struct sl_fabric *fabric, struct sl_command *command) {
    (void)fabric;
    struct call *it = (struct call *)command;
    it->claimed = it->grant->writer != NULL;
    atomic_store(&it->done, true);
}

// A ship says nothing more before its claim is answered: what follows may come by another way, and sooner.
static void wait_claimed(struct sl_fabric *fabric, const struct sl_grant *grant) {
    int64_t deadline = sl_deadline_in_ms(10000);
    struct call look;
    do {
        look = (struct call){.grant = grant};
        call(fabric, &look, run_look);
    } while (!look.claimed && sl_now_ns() < deadline);
    assert_true(look.claimed);
}

static void run_count(struct sl_fabric *fabric, struct sl_command *command) {
    struct call *it = (struct call *)command;
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(fabric, &stats);
    it->n_dropped = fabric->n_unexpected + stats.stale_refused;
    atomic_store(&it->done, true);
}

static uint64_t dropped(struct sl_fabric *fabric) {
    struct call it = {0};
    call(fabric, &it, run_count);
    return it.n_dropped;
}

// ---- the tests -----------------------------------------------------------------------------------------------------

struct pair {
    struct sl_fabric *from, *to;
    uint8_t *source, *target; // the target's block lies between two guards
};

static void ship_well(struct pair *pair) {
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair->to, pair->target + GUARD_BYTES, BLOCK_BYTES, 30000);
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    if (sl_ship_open(pair->from, receive_buffer.ticket, receive_buffer.ticket_bytes, sl_deadline_in_ms(30000), &ship,
                     &err) != SL_OK ||
        sl_ship_piece(ship, 0, pair->source, BLOCK_BYTES) != SL_OK || sl_ship_finish(ship, "h", 1, &err) != SL_OK) {
        fail_msg("no ship: %s", err.text);
    }
    sl_ship_close(&ship);
    assert_memory_equal(pair->target + GUARD_BYTES, pair->source, BLOCK_BYTES);
    close_receive_buffer(&receive_buffer);
}

static void start_pair(struct pair *pair) {
    pair->to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->target = make_region(pair->to, BLOCK_BYTES + 2 * GUARD_BYTES);
    pair->source = make_region(pair->from, BLOCK_BYTES);
    fill_pattern(pair->source, BLOCK_BYTES, 7);
    memset(pair->target, 0xee, BLOCK_BYTES + 2 * GUARD_BYTES);
    ship_well(pair); // which connects them
}

static void stop_pair(struct pair *pair) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(pair->target[i], 0xee);
        assert_int_equal(pair->target[GUARD_BYTES + BLOCK_BYTES + i], 0xee);
    }
    assert_idle(pair->to);
    stop_fabric(&pair->from);
    stop_fabric(&pair->to);
}

static void expect_dropped(struct sl_fabric *fabric, uint64_t before, uint64_t n, enum sl_wire_id id) {
    int64_t deadline = sl_deadline_in_ms(20000);
    while (dropped(fabric) - before < n && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    if (dropped(fabric) - before != n) {
        fail_msg("message %d: %llu of %llu were counted", (int)id, (unsigned long long)(dropped(fabric) - before),
                 (unsigned long long)n);
    }
}

// Random bytes name no grant: each one is dropped or refused, and counted.
static void test_random_messages_are_counted(void **state) {
    (void)state;
    static const enum sl_wire_id ids[] = {SL_WIRE_HELLO, SL_WIRE_CLAIM,      SL_WIRE_SEGMENT,
                                          SL_WIRE_FINAL, SL_WIRE_QUERY,      SL_WIRE_REQUEST,
                                          SL_WIRE_READ,  SL_WIRE_READ_REPLY, SL_WIRE_LOOK};
    struct pair pair;
    start_pair(&pair);
    struct random random = {0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        uint64_t before = dropped(pair.to);
        struct call it = {.id = ids[i], .n = N_MESSAGES, .random = &random};
        call(pair.from, &it, run_send);
        expect_dropped(pair.to, before, N_MESSAGES, ids[i]);
    }
    ship_well(&pair);
    stop_pair(&pair);
}

// Messages about something that is already over are not faults, and nothing happens.
static void test_late_messages_are_ignored(void **state) {
    (void)state;
    static const enum sl_wire_id ids[] = {SL_WIRE_BEAT,   SL_WIRE_ABORT, SL_WIRE_ANSWER,    SL_WIRE_REPLY,
                                          SL_WIRE_CANCEL, SL_WIRE_PLACE, SL_WIRE_LOOK_REPLY};
    struct pair pair;
    start_pair(&pair);
    struct random random = {0xd1b54a32d192ed03u};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        uint64_t before = dropped(pair.to);
        struct call it = {.id = ids[i], .n = N_MESSAGES, .least = LONG_ENOUGH, .random = &random};
        call(pair.from, &it, run_send);
        ship_well(&pair); // after all of them
        assert_int_equal(dropped(pair.to), before);
    }
    struct call bye = {.id = SL_WIRE_BYE, .n = 1, .random = &random};
    call(pair.from, &bye,
         run_send); // it need not say anything: the connection is over, and the next ship makes another
    struct sl_fabric_stats stats;
    int64_t deadline = sl_deadline_in_ms(10000);
    do {
        sl_fabric_get_stats(pair.from, &stats);
    } while (stats.peers_connected > 0 && sl_now_ns() < deadline);
    assert_int_equal(stats.peers_connected, 0);
    ship_well(&pair);
    stop_pair(&pair);
}

// The key is right, the rest is not: the grant fails or stays open, and nothing outside of it is ever written.
static void test_messages_of_a_claimed_grant_are_checked(void **state) {
    (void)state;
    static const enum sl_wire_id ids[] = {SL_WIRE_SEGMENT, SL_WIRE_FINAL, SL_WIRE_QUERY, SL_WIRE_ABORT, SL_WIRE_CLAIM};
    struct pair pair;
    start_pair(&pair);
    struct random random = {0x2545f4914f6cdd1du};
    for (size_t round = 0; round < 60; round++) {
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 30000);
        struct sl_wire_ticket ticket;
        memcpy(&ticket, receive_buffer.ticket, sizeof ticket);
        struct sl_wire_key key = {ticket.generation, 1000000 + round, ticket.id, 0};
        struct call claim = {.key = &key, .secret = ticket.secret};
        call(pair.from, &claim, run_claim);
        wait_claimed(pair.to, receive_buffer.grant);
        enum sl_wire_id id = ids[round % (sizeof ids / sizeof *ids)];
        struct call it = {.id = id, .n = 20, .least = LONG_ENOUGH, .key = &key, .random = &random};
        call(pair.from, &it, run_send);
        // A random length of FINAL is wrong, and an ABORT is one whatever it says; the other ids leave the grant open.
        if (id == SL_WIRE_FINAL || id == SL_WIRE_ABORT) {
            assert_true(wait_receive_buffer(&receive_buffer, 10000));
        }
        assert_int_equal(receive_buffer.n_completed, 0);
        close_receive_buffer(&receive_buffer);
    }
    ship_well(&pair);
    stop_pair(&pair);
}

struct final_call {
    struct call call;
    struct sl_wire_final final;
    size_t payload_bytes;
    bool wrong_digest; // else that of what comes
};

static void run_final(struct sl_fabric *fabric, struct sl_command *command) {
    struct final_call *it = (struct final_call *)command;
    struct sl_peer *peer = connected(fabric);
    if (peer) {
        void *buffer = sl_fabric_take_buffer(fabric);
        fill_pattern(buffer, it->payload_bytes, 3);
        it->final.header_digest = sl_hash(buffer, it->payload_bytes, 0) + it->wrong_digest;
        struct sl_peer_send *send = sl_peer_send_create(peer, &it->final, sizeof it->final);
        send->buffer = buffer;
        sl_peer_send_start(send, SL_WIRE_FINAL, send->buffer, it->payload_bytes);
    }
    atomic_store(&it->call.done, true);
}

// The grant fails, and a header or a body that was not announced is never passed on.
static void test_finals_that_lie_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *what;
        uint64_t n_segments, body_bytes, header_bytes;
        size_t payload_bytes;
        bool wrong_digest;
    } lies[] = {
        {"a header longer than what came", 0, 0, 101, 100, false},
        {"a header shorter than what came", 0, 0, 99, 100, false},
        {"a header that did not come", 0, 0, 100, 0, false},
        {"a header of nothing, and one came", 0, 0, 0, 100, false},
        {"a header of all there is", 0, 0, UINT64_MAX, 100, false},
        {"a header of 64 KiB, on its way, that is shorter", 0, 0, 65536, 65535, false},
        {"a body larger than the grant", 1, BLOCK_BYTES + 1, 100, 100, false},
        {"a body of all there is", 1, UINT64_MAX, 100, 100, false},
        {"the wrong digest of a header", 0, 0, 100, 100, true},
    };
    struct pair pair;
    start_pair(&pair);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 30000);
        struct sl_wire_ticket ticket;
        memcpy(&ticket, receive_buffer.ticket, sizeof ticket);
        struct sl_wire_key key = {ticket.generation, 2000000 + i, ticket.id, 0};
        struct call claim = {.key = &key, .secret = ticket.secret};
        call(pair.from, &claim, run_claim);
        wait_claimed(pair.to, receive_buffer.grant);
        struct final_call it = {.final = {.key = key,
                                          .n_segments = lies[i].n_segments,
                                          .body_bytes = lies[i].body_bytes,
                                          .header_bytes = lies[i].header_bytes},
                                .payload_bytes = lies[i].payload_bytes,
                                .wrong_digest = lies[i].wrong_digest};
        call(pair.from, &it.call, run_final);
        if (!wait_receive_buffer(&receive_buffer, 10000) || receive_buffer.n_completed != 0) {
            fail_msg("%s: %s", lies[i].what, receive_buffer.n_completed ? "accepted" : "nothing happened");
        }
        close_receive_buffer(&receive_buffer);
    }
    ship_well(&pair);
    stop_pair(&pair);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_messages_are_counted),
        cmocka_unit_test(test_late_messages_are_ignored),
        cmocka_unit_test(test_messages_of_a_claimed_grant_are_checked),
        cmocka_unit_test(test_finals_that_lie_are_refused),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
