// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: connections that close at random moments of a transfer, from either side or both, ships and grants that are cancelled. No
 *          process crashes, every grant is released, and after that nothing writes to its memory. Usage: test_closes TRANSPORT ROUNDS
 *          [SEED].
 */
#include "harness.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/core/core.h"

#define BLOCK_BYTES (2u << 20)

static const char *transport;
static int n_rounds = 600;
static uint64_t seed = 1;

static uint64_t draw(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

struct closing {
    struct sl_command command;
    atomic_bool done;
};

static void run_close_peers(struct sl_fabric *fabric, struct sl_command *command) {
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        sl_peer_close(peer, SL_ERR_PEER_LOST, "the test closes it");
    }
    atomic_store(&((struct closing *)command)->done, true);
}

static void close_peers(struct sl_fabric *fabric) {
    struct closing it = {.command.run = run_close_peers};
    sl_fabric_post(fabric, &it.command);
    while (!atomic_load(&it.done)) {
        sched_yield();
    }
}

static void wait_a_moment(void) {
    int64_t until = sl_now_ns() + (int64_t)(draw() % 1500000); // a ship takes about a millisecond
    while (sl_now_ns() < until) {
        sched_yield();
    }
}

// Counts the sender's bytes, which are all 0xff, that have arrived. Samples one byte a page, which is faster than they are written.
static size_t n_written(const uint8_t *target) {
    size_t n = 0;
    for (size_t i = 0; i < BLOCK_BYTES; i += 4096) {
        n += ((const volatile uint8_t *)target)[i] == 0xff;
    }
    return n;
}

static void test_closes_at_random_moments(void **state) {
    (void)state;
    struct sl_fabric *to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS),
                     *from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    uint8_t *target = make_region(to, BLOCK_BYTES), *source = make_region(from, BLOCK_BYTES);
    memset(source, 0xff, BLOCK_BYTES);
    int n_completed = 0;
    for (int round = 1; round <= n_rounds; round++) {
        struct receive_buffer receive_buffer;
        struct sl_ship *ship = NULL;
        struct sl_error err = {0};
        memset(target, 0, BLOCK_BYTES);
        open_receive_buffer(&receive_buffer, to, target, BLOCK_BYTES, 20000);
        assert_int_equal(sl_ship_open(from, receive_buffer.ticket, receive_buffer.ticket_bytes,
                                      sl_deadline_in_ms(20000), &ship, &err),
                         SL_OK);
        (void)sl_ship_piece(ship, 0, source, BLOCK_BYTES); // it may have failed already: finish says so
        wait_a_moment();
        switch (draw() % 6) {
        case 0:
            close_peers(from);
            break;
        case 1:
            close_peers(to);
            break;
        case 2:
            close_peers(from);
            close_peers(to);
            break;
        case 3:
            sl_ship_close(&ship);
            break;
        case 4:
            sl_grant_close(&receive_buffer.grant);
            break;
        default:
            break; // this one is let live
        }
        bool owner_first = draw() % 2; // its memory is released while the sender may not know of anything
        if (!owner_first) {
            n_completed += ship && sl_ship_finish(ship, "h", 1, &err) == SL_OK;
            sl_ship_close(&ship);
        }
        close_receive_buffer(&receive_buffer);
        size_t n = n_written(target); // it is ours again
        wait_a_moment();
        sl_ship_close(&ship);
        if (n_written(target) != n) {
            fail_msg("round %d: %zu pages were written after the release", round, n_written(target) - n);
        }
    }
    assert_true(n_completed > n_rounds / 30); // it is not all about failures
    stop_fabric(&from);
    stop_fabric(&to);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_closes_at_random_moments)};
    transport = argc > 1 ? argv[1] : "tcp";
    n_rounds = argc > 2 ? atoi(argv[2]) : n_rounds;
    seed = argc > 3 ? (uint64_t)atoi(argv[3]) | 1 : seed;
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
