// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a peer that restarts at its address again and again, while threads of another process's fabric ship to it and fetch from it,
 *          with current tickets and with old ones. Its memory, and with it the keys that UCX has unpacked, go each time: no thread uses
 *          them after the end of its connection. Every transfer ends with a status that is_right_end() allows, and what arrived is right.
 *          test_restarts TRANSPORT [ROUNDS].
 */
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "net/fabric/fetch.h"
#include "tests/unit/running_clock.h"

#define N_GRANTS     6
#define N_SHIPPERS   2
#define GRANT_BYTES  ((size_t)1 << 20)
#define WINDOW_BYTES ((size_t)1 << 20)
#define REGION_BYTES (N_GRANTS * GRANT_BYTES + WINDOW_BYTES)
#define WAIT_MS      20000

static const char *transport;
static int n_rounds = 12;

// Data that one side shows the other: of this life, and of the one before it.
struct life {
    uint64_t epoch;
    size_t n_bytes[N_GRANTS], window_bytes;
    uint8_t tickets[N_GRANTS][SL_TICKET_MAX_BYTES], window[SL_TICKET_MAX_BYTES];
    int n_used; // grants that a thread has taken
};

struct play {
    char address[64];
    struct sl_fabric *from;
    uint8_t *source, *expected;
    pthread_mutex_t mutex; // over what follows
    struct life now, before;
    bool over;
    int64_t n_shipped, n_refused, n_fetched, n_not_fetched;
    char wrong[256];
};

static void complain(struct play *play, const char *what, enum sl_status status, const char *text) {
    pthread_mutex_lock(&play->mutex);
    if (!play->wrong[0]) {
        snprintf(play->wrong, sizeof play->wrong, "%s: %s: %.150s", what, sl_status_text(status), text);
    }
    pthread_mutex_unlock(&play->mutex);
}

// Returns whether a transfer may end so while its owner comes and goes.
static bool is_right_end(enum sl_status status) {
    return status == SL_OK || status == SL_ERR_PEER_LOST || status == SL_ERR_PEER_STALE || status == SL_ERR_CANCELLED ||
           status == SL_ERR_NOT_FOUND;
}

// Draws a current ticket that no thread has taken, or an old one. False: none is left.
static bool draw_ticket(struct play *play, int turn, uint8_t *ticket_out, size_t *bytes_out) {
    bool drawn = false;
    pthread_mutex_lock(&play->mutex);
    struct life *life = turn % 4 == 3 && play->before.epoch ? &play->before : &play->now;
    int i = life == &play->now ? life->n_used++ : turn % N_GRANTS;
    if (i < N_GRANTS) {
        memcpy(ticket_out, life->tickets[i], life->n_bytes[i]);
        *bytes_out = life->n_bytes[i];
        drawn = true;
    }
    pthread_mutex_unlock(&play->mutex);
    return drawn;
}

static bool is_over(struct play *play) {
    pthread_mutex_lock(&play->mutex);
    bool over = play->over;
    pthread_mutex_unlock(&play->mutex);
    return over;
}

static void *ship_often(void *arg) {
    struct play *play = arg;
    for (int turn = 0; !is_over(play); turn++) {
        uint8_t ticket[SL_TICKET_MAX_BYTES];
        size_t bytes;
        struct sl_ship *ship;
        struct sl_error err = {0};
        if (!draw_ticket(play, turn, ticket, &bytes)) {
            sl_sleep_ms(1);
            continue;
        }
        enum sl_status status = sl_ship_open(play->from, ticket, bytes, sl_deadline_in_ms(WAIT_MS), &ship, &err);
        if (status == SL_OK) {
            (void)sl_ship_piece(ship, 0, play->source, GRANT_BYTES / 2); // finish says what became of them
            (void)sl_ship_piece(ship, GRANT_BYTES / 2, play->source + GRANT_BYTES / 2, GRANT_BYTES / 2);
            status = sl_ship_finish(ship, "h", 1, &err);
            sl_ship_close(&ship);
        }
        if (!is_right_end(status)) {
            complain(play, "ship", status, err.text);
        }
        pthread_mutex_lock(&play->mutex);
        play->n_shipped += status == SL_OK;
        play->n_refused += status != SL_OK;
        pthread_mutex_unlock(&play->mutex);
    }
    return NULL;
}

static enum sl_status fetch_once(struct play *play, struct sl_connection *connection, const struct life *life,
                                 uint8_t *to, struct sl_error *err) {
    struct sl_fetch_range all = {0, to, WINDOW_BYTES};
    struct sl_fetch *fetch;
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    enum sl_status status = sl_fetch_open(
        connection, &(struct sl_fetch_plan){life->window, life->window_bytes, &all, 1, deadline_ns}, &fetch, err);
    if (status == SL_OK) {
        status = sl_fetch_wait(fetch, deadline_ns, err);
        sl_fetch_close(&fetch);
    }
    if (status == SL_OK && memcmp(to, play->expected, WINDOW_BYTES) != 0) {
        complain(play, "fetch", SL_ERR_PEER_CORRUPT, "other bytes than the window shows");
    }
    return status;
}

static void *fetch_often(void *arg) {
    struct play *play = arg;
    uint8_t *to = malloc(WINDOW_BYTES);
    while (!is_over(play)) {
        pthread_mutex_lock(&play->mutex);
        struct life life = play->now;
        pthread_mutex_unlock(&play->mutex);
        struct sl_connection *connection;
        struct sl_error err = {0};
        enum sl_status status = sl_connection_open(play->from, play->address, life.epoch, &connection, &err);
        for (int i = 0; status == SL_OK && i < 20; i++) { // over one connection, until its other end goes
            memset(to, 0, WINDOW_BYTES);
            status = fetch_once(play, connection, &life, to, &err);
            pthread_mutex_lock(&play->mutex);
            play->n_fetched += status == SL_OK;
            play->n_not_fetched += status != SL_OK;
            pthread_mutex_unlock(&play->mutex);
        }
        sl_connection_close(&connection);
        if (!is_right_end(status)) {
            complain(play, "fetch", status, err.text);
        }
    }
    free(to);
    return NULL;
}

// One life: memory, grants and a window, told to the others; then some milliseconds; then the end of all of it.
static void live(struct play *play, struct sl_fabric *fabric, int round) {
    uint8_t *base = make_region(fabric, REGION_BYTES), *shown = base + N_GRANTS * GRANT_BYTES, *ticket;
    struct receive_buffer receive_buffers[N_GRANTS];
    struct sl_window *window;
    struct life life = {.epoch = sl_fabric_epoch(fabric)};
    memcpy(shown, play->expected, WINDOW_BYTES);
    for (int i = 0; i < N_GRANTS; i++) {
        open_receive_buffer(&receive_buffers[i], fabric, base + (size_t)i * GRANT_BYTES, GRANT_BYTES, WAIT_MS);
        life.n_bytes[i] = receive_buffers[i].ticket_bytes;
        memcpy(life.tickets[i], receive_buffers[i].ticket, receive_buffers[i].ticket_bytes);
    }
    assert_int_equal(sl_window_open(fabric, shown, WINDOW_BYTES, &window, &ticket, &life.window_bytes, NULL), SL_OK);
    assert_int_equal(sl_window_show(window, shown, WINDOW_BYTES, NULL), SL_OK);
    memcpy(life.window, ticket, life.window_bytes);
    free(ticket);
    pthread_mutex_lock(&play->mutex);
    play->before = play->now;
    play->now = life;
    pthread_mutex_unlock(&play->mutex);
    sl_sleep_ms(5 + round * 7 % 40); // from the first bytes of a connection on to long after the last grant
    for (int i = 0; i < N_GRANTS; i++) {
        pthread_mutex_lock(&receive_buffers[i].lock);
        if (receive_buffers[i].n_completed > 0) {
            assert_memory_equal(receive_buffers[i].block, play->source, GRANT_BYTES);
        }
        pthread_mutex_unlock(&receive_buffers[i].lock);
    }
    int64_t began_ns = running_ns();
    sl_fabric_destroy(&fabric);
    assert_in_range((running_ns() - began_ns) / SL_NS_PER_MS, 0,
                    4000); // ships that come meanwhile do not delay the end
    for (int i = 0; i < N_GRANTS; i++) {
        assert_int_equal(receive_buffers[i].n_released, 1);
        assert_true(receive_buffers[i].n_completed + receive_buffers[i].n_failed <= 1);
        free(receive_buffers[i].ticket);
    }
    sl_window_close(&window);
}

// Something has arrived of each kind, or is wrong.
static bool has_met(struct play *play) {
    pthread_mutex_lock(&play->mutex);
    bool met = play->wrong[0] || (play->n_shipped > 0 && play->n_fetched > 0);
    pthread_mutex_unlock(&play->mutex);
    return met;
}

static void test_restarts_under_ships_and_fetches(void **state) {
    (void)state;
    struct play play = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    snprintf(play.address, sizeof play.address, "%s", sl_fabric_address(fabric));
    play.from = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    play.source = make_region(play.from, GRANT_BYTES);
    play.expected = malloc(WINDOW_BYTES);
    fill_pattern(play.source, GRANT_BYTES, 1);
    fill_pattern(play.expected, WINDOW_BYTES, 2);
    pthread_t threads[N_SHIPPERS + 1];
    for (int round = 0; round < n_rounds || !has_met(&play); round++) {
        assert_true(round < 20 * n_rounds); // else it has never been there for long enough
        if (round > 0) {
            fabric = start_fabric(transport, play.address, NULL, QUICK_HEARTBEAT_MS);
        }
        live(&play, fabric, round);
        for (int i = 0; round == 0 && i <= N_SHIPPERS; i++) { // the first life is over when they begin
            assert_int_equal(pthread_create(&threads[i], NULL, i < N_SHIPPERS ? ship_often : fetch_often, &play), 0);
        }
    }
    pthread_mutex_lock(&play.mutex);
    play.over = true;
    pthread_mutex_unlock(&play.mutex);
    for (int i = 0; i <= N_SHIPPERS; i++) {
        pthread_join(threads[i], NULL);
    }
    if (play.wrong[0]) {
        fail_msg("%s", play.wrong);
    }
    assert_true(play.n_refused > 0 && play.n_not_fetched > 0);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(play.from, &stats);
    assert_true(stats.peers_lost > 0);
    stop_fabric(&play.from);
    free(play.expected);
}

int main(int argc, char **argv) {
    transport = argc > 1 ? argv[1] : "tcp";
    n_rounds = argc > 2 ? atoi(argv[2]) : n_rounds;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restarts_under_ships_and_fetches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
