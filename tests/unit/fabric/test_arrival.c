// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: grants in memory that the receiver cannot touch at its own address, such as a device's. A sender that can write there does, and
 *          the grant's owner verifies the bytes. A sender with messages alone gets host memory. The memory is released, however the ship
 *          ends, once no thread writes or reads it any more.
 */
#include "harness.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "net/fabric/core/core.h"
#include "net/fabric/ship.h"

enum { BYTES = 3 << 20, PIECE_BYTES = 512 << 10, GUARD_BYTES = 64 << 10, WAIT_MS = 30000 };

struct arriving {
    struct sl_fabric *from, *to;
    char *device;         // closed; the block lies between two guards
    uint8_t *host, *seen; // of one region: for messages, and what the network sees of the device
    uint8_t *source;
    struct receive_buffer receive_buffer;
    pthread_mutex_t lock; // over what follows
    pthread_cond_t changed;
    bool holding;            // arrivals are kept for the test to end
    struct sl_arrival *held; // NULL: none
    uint32_t n_arrived;      // segments
};

// Verifies the bytes as a device sees them. SL_OK, or which one is wrong.
static enum sl_status verify(const struct arriving *a, const struct sl_arrival *arrival, uint32_t *which_out) {
    for (uint32_t i = 0; i < arrival->n; i++) {
        const uint8_t *at = a->seen + ((const char *)arrival->at[i].data - a->device);
        uint64_t digest = 0;
        for (uint32_t part = 0; part < arrival->at[i].n_parts; part++) {
            digest = sl_hash(at, arrival->at[i].part_bytes[part], digest);
            at += arrival->at[i].part_bytes[part];
        }
        *which_out = i;
        if (digest != arrival->at[i].digest) {
            return SL_ERR_PEER_CORRUPT;
        }
    }
    return SL_OK;
}

static void on_arrived(void *arg, struct sl_arrival *arrival) {
    struct arriving *a = SL_CONTAINER(arg, struct arriving, receive_buffer);
    uint32_t which = 0;
    pthread_mutex_lock(&a->lock);
    a->n_arrived += arrival->n;
    bool holding = a->holding;
    if (holding) {
        assert_null(a->held); // one at a time
        a->held = arrival;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    if (!holding) {
        enum sl_status status = verify(a, arrival, &which);
        sl_arrival_end(&arrival, status, which);
    }
}

static struct sl_arrival *wait_held(struct arriving *a) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    pthread_mutex_lock(&a->lock);
    while (!a->held && sl_cond_wait_until(&a->changed, &a->lock, deadline) == SL_OK) {
    }
    struct sl_arrival *held = a->held;
    a->held = NULL;
    pthread_mutex_unlock(&a->lock);
    assert_non_null(held);
    return held;
}

static void start(struct arriving *a, const char *transport, const char *inject) {
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    sl_cond_init(&a->changed);
    a->to = start_fabric("shm", "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    a->host = make_region(a->to, 2 * BYTES + 2 * GUARD_BYTES);
    a->seen = a->host + BYTES;
    memset(a->host, 0xee, 2 * BYTES + 2 * GUARD_BYTES);
    a->device = mmap(NULL, BYTES + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(a->device != MAP_FAILED);
    const struct sl_device_region region = {
        .base = a->device, .bytes = BYTES + 2 * GUARD_BYTES, .seen = a->seen, .arrives = true};
    assert_int_equal(sl_fabric_region_add(a->to, &region, NULL), SL_OK);
    if (transport) {
        a->from = start_fabric(transport, NULL, inject, QUICK_HEARTBEAT_MS);
        a->source = make_region(a->from, BYTES);
        fill_pattern(a->source, BYTES, 11);
    }
}

static void stop(struct arriving *a) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_true(a->seen[i] == 0xee && a->seen[GUARD_BYTES + BYTES + i] == 0xee);
    }
    if (a->from) {
        stop_fabric(&a->from);
    }
    stop_fabric(&a->to);
    munmap(a->device, BYTES + 2 * GUARD_BYTES);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
}

static uint8_t *landed(const struct arriving *a) {
    return a->seen + GUARD_BYTES;
}

static void open_grant(struct arriving *a) {
    init_receive_buffer(&a->receive_buffer);
    assert_int_equal(sl_grant_open(a->to,
                                   &(struct sl_grant_plan){.block = a->host,
                                                           .bytes = BYTES,
                                                           .deadline_ns = sl_deadline_in_ms(60000),
                                                           .events = &receive_buffer_events,
                                                           .arg = &a->receive_buffer,
                                                           .device_block = a->device + GUARD_BYTES,
                                                           .on_arrived = on_arrived},
                                   &a->receive_buffer.grant, &a->receive_buffer.ticket, &a->receive_buffer.ticket_bytes,
                                   NULL),
                     SL_OK);
}

static struct sl_ship *open_ship(struct arriving *a) {
    struct sl_ship *ship;
    assert_int_equal(sl_ship_open(a->from, a->receive_buffer.ticket, a->receive_buffer.ticket_bytes,
                                  sl_deadline_in_ms(60000), &ship, NULL),
                     SL_OK);
    return ship;
}

static void expect(struct arriving *a, enum sl_status expected) {
    open_grant(a);
    struct sl_ship *ship = open_ship(a);
    assert_int_equal(sl_ship_piece(ship, 0, a->source, BYTES), SL_OK);
    assert_int_equal(sl_ship_finish(ship, "h", 1, NULL), expected);
    sl_ship_close(&ship);
    assert_true(wait_receive_buffer(&a->receive_buffer, WAIT_MS));
    assert_int_equal(a->receive_buffer.status, expected);
    assert_true(expected != SL_OK || (a->receive_buffer.body_bytes == BYTES && a->receive_buffer.header[0] == 'h'));
    close_receive_buffer(&a->receive_buffer);
}

static void test_pieces_arrive_in_a_device(void **state) {
    struct arriving a;
    (void)state;
    start(&a, "shm", "corrupt:9");
    expect(&a, SL_OK);
    assert_int_equal(a.n_arrived, BYTES / PIECE_BYTES);
    assert_memory_equal(landed(&a), a.source, BYTES);
    assert_true(a.host[0] == 0xee && a.host[BYTES - 1] == 0xee);
    expect(&a, SL_ERR_PEER_CORRUPT); // a byte of it on its way
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(a.to, &stats);
    assert_int_equal(stats.digests_wrong, 1);
    expect(&a, SL_OK);
    stop(&a);
}

// A paced ship takes at least the time of its bytes: a network can be imitated that is slower than this machine's memory.
static void test_a_paced_ship_takes_its_time(void **state) {
    struct arriving a;
    (void)state;
    start(&a, "shm", "pace:200"); // 25 bytes a us
    int64_t begin_ns = sl_now_ns();
    expect(&a, SL_OK);
    assert_true(sl_now_ns() - begin_ns >= (int64_t)(BYTES - 65536) * 1000 / 25);
    assert_memory_equal(landed(&a), a.source, BYTES);
    stop(&a);
}

enum { SHARING = 4, FIRST_BYTES = 64 << 10 };

// Sends from all ships at once. Returns false if this thread was late, so that one had too much of the network for itself.
static bool share_network(struct sl_fabric *from, struct sl_fabric *to, uint8_t *landed, const uint8_t *source) {
    struct receive_buffer buffers[SHARING];
    struct sl_ship *ships[SHARING];
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    size_t least = BYTES, most = 0, late = 0;
    for (int i = 0; i < SHARING; i++) {
        open_receive_buffer(&buffers[i], to, landed + i * BYTES, BYTES, 60000);
        assert_int_equal(
            sl_ship_open(from, buffers[i].ticket, buffers[i].ticket_bytes, sl_deadline_in_ms(60000), &ships[i], NULL),
            SL_OK);
        assert_int_equal(sl_ship_piece(ships[i], 0, source, FIRST_BYTES), SL_OK);
        while (sl_ship_progress(ships[i], NULL) < FIRST_BYTES && sl_now_ns() < deadline) { // it is connected
            sl_sleep_ms(1);
        }
    }
    for (int i = 0; i < SHARING; i++) {
        assert_int_equal(sl_ship_piece(ships[i], FIRST_BYTES, source + FIRST_BYTES, BYTES - FIRST_BYTES), SL_OK);
    }
    for (int i = 0; i < SHARING; i++) {
        size_t sent = sl_ship_progress(ships[i], NULL);
        late = sent > late ? sent : late;
    }
    while (most < BYTES && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
        for (int i = 0; i < SHARING; i++) {
            size_t sent = sl_ship_progress(ships[i], NULL);
            most = sent > most ? sent : most;
        }
    }
    for (int i = 0; i < SHARING; i++) {
        size_t sent = sl_ship_progress(ships[i], NULL);
        least = sent < least ? sent : least;
    }
    for (int i = 0; i < SHARING; i++) {
        assert_int_equal(sl_ship_finish(ships[i], "h", 1, NULL), SL_OK);
        sl_ship_close(&ships[i]);
        assert_true(wait_receive_buffer(&buffers[i], WAIT_MS));
        close_receive_buffer(&buffers[i]);
    }
    assert_true(late > BYTES / 2 || least > BYTES / 4); // when the first one had sent all
    return late <= BYTES / 2;
}

// Ships share a paced network: when one has sent all, every other has sent much.
static void test_paced_ships_share_the_network(void **state) {
    (void)state;
    struct sl_fabric *to = start_fabric("shm", "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    struct sl_fabric *from = start_fabric("shm", NULL, "pace:2000", CALM_HEARTBEAT_MS); // 2 ms a segment
    uint8_t *landed = make_region(to, SHARING * BYTES), *source = make_region(from, BYTES);
    fill_pattern(source, BYTES, 11);
    bool shared = false;
    for (int i = 0; i < 50 && !shared; i++) {
        shared = share_network(from, to, landed, source);
    }
    assert_true(shared);
    stop_fabric(&from);
    stop_fabric(&to);
}

// Also where both ends are a device's.
static void test_pieces_go_from_device_to_device(void **state) {
    struct arriving a;
    (void)state;
    start(&a, "shm", NULL);
    uint8_t *closed = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(closed != MAP_FAILED);
    const struct sl_device_region region = {.base = closed, .bytes = BYTES, .seen = a.source};
    assert_int_equal(sl_fabric_region_add(a.from, &region, NULL), SL_OK);
    open_grant(&a);
    struct sl_ship *ship = open_ship(&a);
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while (sl_ship_straight(ship, closed) == SL_STRAIGHT_UNKNOWN && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    for (size_t at = 0; at < BYTES; at += PIECE_BYTES) {
        uint64_t digest = sl_hash(a.source + at, PIECE_BYTES, 0);
        assert_int_equal(sl_ship_digested(ship, at, closed + at, PIECE_BYTES, digest), SL_OK);
    }
    assert_int_equal(sl_ship_finish(ship, NULL, 0, NULL), SL_OK);
    sl_ship_close(&ship);
    close_receive_buffer(&a.receive_buffer);
    assert_memory_equal(landed(&a), a.source, BYTES);
    stop(&a);
    munmap(closed, BYTES);
}

static void test_messages_land_in_the_hosts_memory(void **state) {
    struct arriving a;
    (void)state;
    start(&a, "tcp", NULL);
    expect(&a, SL_OK);
    assert_int_equal(a.n_arrived, 0);
    assert_memory_equal(a.host, a.source, BYTES);
    assert_true(landed(&a)[0] == 0xee && landed(&a)[BYTES - 1] == 0xee);
    stop(&a);
}

// Nothing is complete before it is verified, and what comes meanwhile is the next batch.
static void test_arrivals_are_verified_in_batches(void **state) {
    struct arriving a;
    (void)state;
    start(&a, "shm", NULL);
    open_grant(&a);
    a.holding = true;
    struct sl_ship *ship = open_ship(&a);
    assert_int_equal(sl_ship_piece(ship, 0, a.source, PIECE_BYTES), SL_OK);
    struct sl_arrival *first = wait_held(&a), *second;
    assert_int_equal(first->n, 1);
    assert_int_equal(sl_ship_piece(ship, PIECE_BYTES, a.source + PIECE_BYTES, BYTES - PIECE_BYTES), SL_OK);
    while (sl_ship_progress(ship, NULL) < BYTES) {
        sl_sleep_ms(1);
    }
    assert_false(wait_receive_buffer(&a.receive_buffer, 50));
    sl_arrival_end(&first, SL_OK, 0);
    assert_null(first);
    for (uint32_t n = 1; n < BYTES / PIECE_BYTES; n += second->n, sl_arrival_end(&second, SL_OK, 0)) {
        second = wait_held(&a);
        assert_true(n + second->n <= BYTES / PIECE_BYTES);
        if (n + second->n == BYTES / PIECE_BYTES) {
            sl_arrival_end(&second, SL_ERR_INTERNAL, 0); // the device has failed at the last
            break;
        }
    }
    assert_int_equal(sl_ship_finish(ship, NULL, 0, NULL), SL_ERR_INTERNAL);
    sl_ship_close(&ship);
    assert_true(wait_receive_buffer(&a.receive_buffer, WAIT_MS));
    assert_int_equal(a.receive_buffer.status, SL_ERR_INTERNAL);
    close_receive_buffer(&a.receive_buffer);
    stop(&a);
}

// A ship that is cut short: the memory stays until no thread reads it.
static void test_memory_stays_while_it_is_verified(void **state) {
    struct arriving a;
    struct sl_fabric_stats stats;
    (void)state;
    start(&a, "shm", NULL);
    open_grant(&a);
    a.holding = true;
    struct sl_ship *ship = open_ship(&a);
    assert_int_equal(sl_ship_piece(ship, 0, a.source, PIECE_BYTES), SL_OK);
    struct sl_arrival *held = wait_held(&a);
    sl_ship_close(&ship);
    assert_true(wait_receive_buffer(&a.receive_buffer, WAIT_MS));
    assert_int_equal(a.receive_buffer.status, SL_ERR_CANCELLED);
    sl_grant_close(&a.receive_buffer.grant);
    assert_false(wait_released(&a.receive_buffer, 100));
    sl_fabric_get_stats(a.to, &stats);
    assert_int_equal(stats.grants_quarantined, 1);
    sl_arrival_end(&held, SL_OK, 0);
    close_receive_buffer(&a.receive_buffer);
    stop(&a);
}

// ---- lost senders ----------------------------------------------------------------------------------------------------

struct ticket {
    size_t bytes;
    uint8_t at[SL_TICKET_MAX_BYTES];
};

static void ship_half(const char *transport) {
    struct sl_fabric *fabric = start_fabric(transport, NULL, NULL, QUICK_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, BYTES);
    struct ticket ticket;
    struct sl_ship *ship;
    read_all(3, &ticket, sizeof ticket);
    assert_int_equal(sl_ship_open(fabric, ticket.at, ticket.bytes, sl_deadline_in_ms(60000), &ship, NULL), SL_OK);
    sl_ship_piece(ship, 0, block, BYTES / 2);
    while (sl_ship_progress(ship, NULL) < BYTES / 2) {
        sl_sleep_ms(1);
    }
    write_all(4, "x", 1);
    sl_sleep_ms(60000);
}

static void lose(int signal_number) {
    struct arriving a;
    struct ticket ticket;
    char ready;
    struct child child = start_child("shm", "ship");
    start(&a, NULL, NULL);
    open_grant(&a);
    ticket.bytes = a.receive_buffer.ticket_bytes;
    memcpy(ticket.at, a.receive_buffer.ticket, a.receive_buffer.ticket_bytes);
    write_all(child.to, &ticket, sizeof ticket);
    read_all(child.from, &ready, 1);
    kill(child.pid, signal_number);
    assert_true(wait_receive_buffer(&a.receive_buffer, WAIT_MS));
    assert_int_equal(a.receive_buffer.status, SL_ERR_PEER_LOST);
    sl_grant_close(&a.receive_buffer.grant);
    if (signal_number == SIGSTOP) { // it may wake up in the middle of a put
        struct sl_fabric_stats stats;
        assert_false(wait_released(&a.receive_buffer, 100));
        sl_fabric_get_stats(a.to, &stats);
        assert_int_equal(stats.grants_quarantined, 1);
        end_child(&child);
        sl_fabric_destroy(&a.to);
        assert_int_equal(a.receive_buffer.n_released, 1);
        free(a.receive_buffer.ticket);
        return;
    }
    close_receive_buffer(&a.receive_buffer);
    end_child(&child);
    stop(&a);
}

static void test_killed_sender_gives_the_memory_back(void **state) {
    (void)state;
    lose(SIGKILL);
}

static void test_stopped_sender_leaves_it_in_quarantine(void **state) {
    (void)state;
    lose(SIGSTOP);
}

// ---- lies ------------------------------------------------------------------------------------------------------------

struct lie {
    struct sl_command command;
    const struct sl_ship *ship;
    struct sl_wire_segment segment;
    uint32_t parts[2];
    atomic_bool told;
};

static void run_lie(struct sl_fabric *fabric, struct sl_command *command) {
    struct lie *lie = SL_CONTAINER(command, struct lie, command);
    uint8_t message[SL_SEGMENT_HEADER_BYTES(2)];
    (void)fabric;
    lie->segment.key =
        (struct sl_wire_key){lie->ship->ticket.head.generation, lie->ship->id, lie->ship->ticket.head.id, 0};
    memcpy(message, &lie->segment, sizeof lie->segment);
    memcpy(message + sizeof lie->segment, lie->parts, sizeof lie->parts);
    sl_peer_tell(lie->ship->peer, SL_WIRE_SEGMENT, message, SL_SEGMENT_HEADER_BYTES(lie->segment.n_parts));
    atomic_store(&lie->told, true);
}

// Announced to a grant in which so many bytes have arrived; how it fails.
static enum sl_status announce(struct lie *lie, size_t bytes) {
    struct arriving a;
    start(&a, "shm", NULL);
    open_grant(&a);
    struct sl_ship *ship = open_ship(&a);
    assert_int_equal(sl_ship_piece(ship, 0, a.source, bytes), SL_OK);
    while (sl_ship_progress(ship, NULL) < bytes) {
        sl_sleep_ms(1);
    }
    lie->ship = ship;
    lie->command.run = run_lie;
    sl_fabric_post(a.from, &lie->command);
    while (!atomic_load(&lie->told)) {
        sl_sleep_ms(1);
    }
    assert_true(wait_receive_buffer(&a.receive_buffer, WAIT_MS));
    enum sl_status status = a.receive_buffer.status;
    sl_ship_close(&ship);
    close_receive_buffer(&a.receive_buffer);
    stop(&a);
    return status;
}

static void test_announcements_are_checked(void **state) {
    (void)state;
    struct lie behind = {.segment = {.offset = BYTES - 10, .bytes = 20, .n_parts = 1}, .parts = {20}};
    assert_int_equal(announce(&behind, PIECE_BYTES), SL_ERR_RANGE);
    struct lie empty = {.segment = {.offset = 0, .bytes = 20, .n_parts = 2}, .parts = {20, 0}};
    assert_int_equal(announce(&empty, PIECE_BYTES), SL_ERR_RANGE);
    struct lie other = {.segment = {.offset = 0, .bytes = 20, .n_parts = 1}, .parts = {21}};
    assert_int_equal(announce(&other, PIECE_BYTES), SL_ERR_RANGE);
    struct lie wrong = {.segment = {.offset = 0, .bytes = 20, .n_parts = 2}, .parts = {19, 1}};
    assert_int_equal(announce(&wrong, PIECE_BYTES), SL_ERR_PEER_CORRUPT);
    struct lie again = {.segment = {.offset = 0, .bytes = 1, .n_parts = 1}, .parts = {1}}; // everything has arrived
    assert_int_equal(announce(&again, BYTES), SL_ERR_RANGE);
}

static void test_device_grants_lie_in_memory_for_them(void **state) {
    struct arriving a;
    struct sl_grant *grant;
    uint8_t *ticket;
    size_t n;
    const struct sl_grant_events events = {0};
    (void)state;
    start(&a, "shm", NULL);
    char *sending = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const struct sl_device_region leaving = {.base = sending, .bytes = BYTES, .seen = a.host};
    assert_int_equal(sl_fabric_region_add(a.to, &leaving, NULL), SL_OK);
    void *const wrong[] = {sending, a.host, a.device + BYTES + 2 * GUARD_BYTES - 4095, &a};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(sl_grant_open(a.to,
                                       &(struct sl_grant_plan){.block = a.host,
                                                               .bytes = 4096,
                                                               .events = &events,
                                                               .device_block = wrong[i],
                                                               .on_arrived = on_arrived},
                                       &grant, &ticket, &n, NULL),
                         SL_ERR_INVALID);
    }
    // And no messages land there.
    assert_int_equal(sl_grant_open(a.to,
                                   &(struct sl_grant_plan){.block = a.device,
                                                           .bytes = 4096,
                                                           .events = &events,
                                                           .device_block = a.device,
                                                           .on_arrived = on_arrived},
                                   &grant, &ticket, &n, NULL),
                     SL_ERR_INVALID);
    struct sl_device_region beside = {.base = &a, .bytes = sizeof a, .seen = a.source, .arrives = true};
    assert_int_equal(sl_fabric_region_add(a.to, &beside, NULL), SL_ERR_INVALID);
    stop(&a);
    munmap(sending, BYTES);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        ship_half(argv[1]);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_arrive_in_a_device),
        cmocka_unit_test(test_pieces_go_from_device_to_device),
        cmocka_unit_test(test_a_paced_ship_takes_its_time),
        cmocka_unit_test(test_paced_ships_share_the_network),
        cmocka_unit_test(test_messages_land_in_the_hosts_memory),
        cmocka_unit_test(test_arrivals_are_verified_in_batches),
        cmocka_unit_test(test_memory_stays_while_it_is_verified),
        cmocka_unit_test(test_killed_sender_gives_the_memory_back),
        cmocka_unit_test(test_stopped_sender_leaves_it_in_quarantine),
        cmocka_unit_test(test_announcements_are_checked),
        cmocka_unit_test(test_device_grants_lie_in_memory_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
