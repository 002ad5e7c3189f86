// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: two processes, one of which is killed or stopped in the middle of a ship: the other notices in time, ends
 *          what was under way, and works on. The child is this program again, started before UCX is, so that nothing of
 *          UCX is inherited; parent and child speak through two pipes.
 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/running_clock.h"

#define BLOCK_BYTES (64u << 20)

static const char *transport;

struct ticket {
    size_t bytes;
    uint8_t at[SL_TICKET_MAX_BYTES];
};

// Child: open grants for ever, one after the other, and hand out their tickets.
static void receive_for_ever(void) {
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, BLOCK_BYTES);
    for (;;) {
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, fabric, block, BLOCK_BYTES, 60000);
        struct ticket ticket = {.bytes = receive_buffer.ticket_bytes};
        memcpy(ticket.at, receive_buffer.ticket, receive_buffer.ticket_bytes);
        write_all(4, &ticket, sizeof ticket);
        wait_receive_buffer(&receive_buffer, 60000);
        close_receive_buffer(&receive_buffer);
    }
}

// Child: ship into the first ticket, half of it, and wait for the end.
static void ship_half(void) {
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, BLOCK_BYTES);
    struct ticket ticket;
    read_all(3, &ticket, sizeof ticket);
    struct sl_ship *ship = NULL;
    sl_ship_open(fabric, ticket.at, ticket.bytes, sl_deadline_in_ms(60000), &ship, NULL);
    sl_ship_piece(ship, 0, block, BLOCK_BYTES / 2);
    while (sl_ship_progress(ship, NULL) < BLOCK_BYTES / 2) {
        sl_sleep_ms(1);
    }
    write_all(4, "x", 1);
    sl_sleep_ms(60000);
}

static struct sl_ship *open_ship(struct sl_fabric *fabric, const struct child *child) {
    struct ticket ticket;
    read_all(child->from, &ticket, sizeof ticket);
    struct sl_ship *ship = NULL;
    assert_int_equal(sl_ship_open(fabric, ticket.at, ticket.bytes, sl_deadline_in_ms(30000), &ship, NULL), SL_OK);
    return ship;
}

static void lose_receiver(int signal_number, int64_t within_ms) {
    struct child child = start_child(transport, "receive");
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, BLOCK_BYTES);
    struct sl_ship *ship = open_ship(fabric, &child);
    sl_ship_piece(ship, 0, block, BLOCK_BYTES / 2);
    while (sl_ship_progress(ship, NULL) < BLOCK_BYTES / 4) {
        sl_sleep_ms(1);
    }
    int64_t start = running_ns();
    kill(child.pid, signal_number);
    enum sl_status status = SL_OK;
    while (status == SL_OK && running_ns() - start < 20 * SL_NS_PER_S) {
        sl_ship_piece(ship, BLOCK_BYTES / 2, block, 1 << 20); // it is in the middle of something
        sl_ship_progress(ship, &status);
        sl_sleep_ms(5);
    }
    int64_t took_ms = (running_ns() - start) / SL_NS_PER_MS;
    assert_int_equal(status, SL_ERR_PEER_LOST);
    assert_in_range(took_ms, 0, within_ms);
    struct sl_error err = {0};
    assert_int_equal(sl_ship_finish(ship, NULL, 0, &err), SL_ERR_PEER_LOST);
    sl_ship_close(&ship);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(fabric, &stats);
    assert_int_equal(stats.peers_lost, 1);
    end_child(&child);
    // And with the next process everything works.
    child = start_child(transport, "receive");
    ship = open_ship(fabric, &child);
    sl_ship_piece(ship, 0, block, BLOCK_BYTES);
    if (sl_ship_finish(ship, NULL, 0, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    sl_ship_close(&ship);
    end_child(&child);
    stop_fabric(&fabric);
}

static void lose_sender(int signal_number, int64_t within_ms, bool quarantine) {
    struct child child = start_child(transport, "ship");
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, BLOCK_BYTES);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, fabric, block, BLOCK_BYTES, 30000);
    struct ticket ticket = {.bytes = receive_buffer.ticket_bytes};
    memcpy(ticket.at, receive_buffer.ticket, receive_buffer.ticket_bytes);
    write_all(child.to, &ticket, sizeof ticket);
    char ready;
    read_all(child.from, &ready, 1);
    int64_t start = running_ns();
    kill(child.pid, signal_number);
    assert_true(wait_receive_buffer(&receive_buffer, 20000));
    assert_in_range((running_ns() - start) / SL_NS_PER_MS, 0, within_ms);
    assert_int_equal(receive_buffer.status, SL_ERR_PEER_LOST);
    sl_grant_close(&receive_buffer.grant);
    if (quarantine) { // a stopped process may wake up in the middle of a put
        assert_false(wait_released(&receive_buffer, 300));
        struct sl_fabric_stats stats;
        sl_fabric_get_stats(fabric, &stats);
        assert_int_equal(stats.grants_quarantined, 1);
        sl_fabric_destroy(&fabric);
        assert_int_equal(receive_buffer.n_released, 1);
        free(receive_buffer.ticket);
    } else {
        close_receive_buffer(&receive_buffer);
        stop_fabric(&fabric);
    }
    end_child(&child);
}

static void test_killed_receiver_is_noticed(void **state) {
    (void)state;
    lose_receiver(SIGKILL, 10 * QUICK_HEARTBEAT_MS);
}

static void test_stopped_receiver_is_noticed(void **state) {
    (void)state;
    lose_receiver(SIGSTOP, 15 * QUICK_HEARTBEAT_MS);
}

static void test_killed_sender_is_noticed(void **state) {
    (void)state;
    lose_sender(SIGKILL, 10 * QUICK_HEARTBEAT_MS, false);
}

static void test_stopped_sender_is_noticed(void **state) {
    (void)state;
    lose_sender(SIGSTOP, 15 * QUICK_HEARTBEAT_MS, strcmp(transport, "shm") == 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_receiver_is_noticed),
        cmocka_unit_test(test_stopped_receiver_is_noticed),
        cmocka_unit_test(test_killed_sender_is_noticed),
        cmocka_unit_test(test_stopped_sender_is_noticed),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2 && strcmp(argv[2], "receive") == 0) {
        receive_for_ever();
    } else if (argc > 2 && strcmp(argv[2], "ship") == 0) {
        ship_half();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
