// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ships of several threads at once, between the same two fabrics, while pieces are damaged on their way again and again. A ship
 *          either arrives as it was sent, or fails on both sides. No damaged piece is ever delivered, and nothing leaks.
 */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/ship.h"

#define N_THREADS   3
#define N_SHIPS     16 // of each
#define BLOCK_BYTES (3u << 19)
#define EVERY       23 // pieces from a damaged one to the next

extern const struct sl_verb_ops sl_ship_ops;
static const char *transport;
static struct sl_fabric *from, *to;
static uint8_t *source, *target;
static atomic_int n_arrived, n_failed, n_running;

struct shipper {
    pthread_t thread;
    size_t number;
    bool wrong; // cmocka's asserts are for the main thread
};

// Returns whether the ship ended in an allowed way.
static bool ship_one(size_t number, int round) {
    struct receive_buffer receive_buffer;
    struct sl_ship *ship;
    struct sl_error err = {0};
    uint8_t *block = target + number * BLOCK_BYTES;
    const uint8_t *data = source + (size_t)(round % 7) * 4096;
    memset(block, 0, BLOCK_BYTES);
    open_receive_buffer(&receive_buffer, to, block, BLOCK_BYTES, 60000);
    bool fine = sl_ship_open(from, receive_buffer.ticket, receive_buffer.ticket_bytes,
                             sl_deadline_in_ms(30000 * SLOWNESS), &ship, &err) == SL_OK;
    for (size_t at = 0; fine && at < BLOCK_BYTES; at += 65536) {
        (void)sl_ship_piece(ship, at, data + at, 65536); // one that has failed says so at its end
    }
    enum sl_status status = fine ? sl_ship_finish(ship, "h", 1, &err) : SL_ERR_INTERNAL;
    sl_ship_close(&ship);
    fine = fine && wait_receive_buffer(&receive_buffer, 10000);
    if (status == SL_OK) {
        fine = fine && receive_buffer.n_completed == 1 && memcmp(block, data, BLOCK_BYTES) == 0;
        atomic_fetch_add(&n_arrived, 1);
    } else {
        fine = fine && status == SL_ERR_PEER_CORRUPT && receive_buffer.n_completed == 0 &&
               receive_buffer.status == SL_ERR_PEER_CORRUPT;
        atomic_fetch_add(&n_failed, 1);
    }
    close_receive_buffer(&receive_buffer);
    return fine;
}

static void *shipper_main(void *arg) {
    struct shipper *shipper = arg;
    for (int round = 0; round < N_SHIPS && !shipper->wrong; round++) {
        shipper->wrong = !ship_one(shipper->number, round);
    }
    atomic_fetch_sub(&n_running, 1);
    return NULL;
}

// On the progress thread: the next damage, when the last one is done.
struct damage {
    struct sl_command command;
    atomic_bool done;
};

static void run_damage(struct sl_fabric *fabric, struct sl_command *command) {
    struct sl_ships *ships = sl_verb_of_fabric(fabric, &sl_ship_ops);
    ships->corrupt = ships->corrupt == 0 ? EVERY : ships->corrupt;
    atomic_store(&SL_CONTAINER(command, struct damage, command)->done, true);
}

static void test_soak_with_damaged_pieces(void **state) {
    (void)state;
    to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    from = start_fabric(transport, NULL, NULL, CALM_HEARTBEAT_MS);
    target = make_region(to, N_THREADS * BLOCK_BYTES);
    source = make_region(from, BLOCK_BYTES + 7 * 4096);
    fill_pattern(source, BLOCK_BYTES + 7 * 4096, 9);
    struct shipper shippers[N_THREADS];
    atomic_store(&n_running, N_THREADS);
    for (size_t i = 0; i < N_THREADS; i++) {
        shippers[i] = (struct shipper){.number = i};
        assert_int_equal(pthread_create(&shippers[i].thread, NULL, shipper_main, &shippers[i]), 0);
    }
    while (atomic_load(&n_running) > 0) {
        struct damage damage = {.command.run = run_damage};
        sl_fabric_post(from, &damage.command);
        while (!atomic_load(&damage.done)) {
            sl_sleep_ms(1);
        }
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_join(shippers[i].thread, NULL);
        assert_false(shippers[i].wrong);
    }
    assert_int_equal(atomic_load(&n_arrived) + atomic_load(&n_failed), N_THREADS * N_SHIPS);
    assert_in_range(atomic_load(&n_failed), 3, N_THREADS * N_SHIPS - 3); // of both there were many
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(to, &stats);
    assert_int_equal(stats.digests_wrong, atomic_load(&n_failed));
    stop_fabric(&from);
    stop_fabric(&to);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak_with_damaged_pieces)};
    transport = argc > 1 ? argv[1] : "tcp";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
