// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: two fabrics in one process, over every transport that needs no hardware: what is shipped arrives, what must
 *          not arrive is refused, both sides learn of every end, and nothing leaks.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tests/unit/running_clock.h"

#define MIB (1u << 20)

static const char *transport; // of the group that runs

struct pair {
    struct sl_fabric *from, *to;
    uint8_t *source, *target;
};

static void start_pair(struct pair *pair, size_t bytes, const char *inject_from) {
    pair->to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->from = start_fabric(transport, "127.0.0.1:0", inject_from, CALM_HEARTBEAT_MS);
    pair->target = make_region(pair->to, bytes);
    pair->source = make_region(pair->from, bytes);
}

static void stop_pair(struct pair *pair) {
    assert_idle(pair->to);
    stop_fabric(&pair->from);
    stop_fabric(&pair->to);
}

static struct sl_ship *open_ship(struct pair *pair, const struct receive_buffer *receive_buffer, int64_t deadline_ms) {
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    if (sl_ship_open(pair->from, receive_buffer->ticket, receive_buffer->ticket_bytes, sl_deadline_in_ms(deadline_ms),
                     &ship, &err) != SL_OK) {
        fail_msg("no ship: %s", err.text);
    }
    return ship;
}

static void test_ship_arrives_at_every_size(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 7, 4095, 8193, 65537, 262145, MIB, 3 * MIB + 5, 64 * MIB};
    struct pair pair;
    start_pair(&pair, 65 * MIB, NULL);
    fill_pattern(pair.source, 65 * MIB, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i], source_at = i * 13, target_at = i * 29;
        memset(pair.target, 0xee, target_at + n + 64);
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, pair.to, pair.target + target_at, n, 30000);
        struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
        assert_int_equal(sl_ship_piece(ship, 0, pair.source + source_at, n), SL_OK);
        struct sl_error err = {0};
        if (sl_ship_finish(ship, "header", 6, &err) != SL_OK) {
            fail_msg("%zu bytes: %s", n, err.text);
        }
        char mode[16];
        snprintf(mode, sizeof mode, "am %s", transport);
        assert_non_null(strstr(sl_ship_mode(ship), is_link(transport) ? mode : "put posix"));
        assert_int_equal(sl_ship_progress(ship, NULL), n);
        sl_ship_close(&ship);
        assert_true(wait_receive_buffer(&receive_buffer, 1000));
        assert_int_equal(receive_buffer.n_completed, 1);
        assert_int_equal(receive_buffer.body_bytes, n);
        assert_int_equal(receive_buffer.header_bytes, 6);
        assert_memory_equal(receive_buffer.header, "header", 6);
        assert_memory_equal(pair.target + target_at, pair.source + source_at, n);
        for (size_t k = 0; k < 64; k++) { // not a byte beyond
            assert_int_equal(pair.target[target_at + n + k], 0xee);
        }
        close_receive_buffer(&receive_buffer);
    }
    stop_pair(&pair);
}

static void test_ship_gathers_scattered_pieces(void **state) {
    (void)state;
    enum { PIECE = 4096 + 32, N = 1500 };
    struct pair pair;
    start_pair(&pair, (size_t)PIECE * N, NULL);
    uint8_t *outside = malloc((size_t)PIECE * N); // not registered, and in reverse order
    fill_pattern(outside, (size_t)PIECE * N, 2);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, (size_t)PIECE * N, 30000);
    struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(sl_ship_piece(ship, i * PIECE, outside + (N - 1 - i) * PIECE, PIECE), SL_OK);
    }
    struct sl_error err = {0};
    if (sl_ship_finish(ship, NULL, 0, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < N; i++) {
        assert_memory_equal(pair.target + i * PIECE, outside + (N - 1 - i) * PIECE, PIECE);
    }
    sl_ship_close(&ship);
    close_receive_buffer(&receive_buffer);
    free(outside);
    stop_pair(&pair);
}

static void test_ship_carries_a_large_header(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, MIB, NULL);
    fill_pattern(pair.source, MIB, 3);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 4096, 30000);
    struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
    assert_int_equal(sl_ship_piece(ship, 0, pair.source, 4096), SL_OK);
    struct sl_error err = {0};
    assert_int_equal(sl_ship_finish(ship, pair.source, 700001, &err), SL_OK);
    assert_true(wait_receive_buffer(&receive_buffer, 1000));
    assert_int_equal(receive_buffer.header_bytes, 700001);
    assert_memory_equal(receive_buffer.header, pair.source, sizeof receive_buffer.header);
    assert_int_equal(sl_ship_finish(ship, NULL, 0, &err), SL_ERR_PRECONDITION); // at most once
    sl_ship_close(&ship);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

static void test_ship_end_does_not_wait(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, "stall:2");
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
    sl_ship_piece(ship, 0, pair.source, 8 * MIB);
    struct sl_error err = {0};
    assert_int_equal(sl_ship_end(ship, "header", 6, &err), SL_OK);
    assert_int_equal(sl_ship_end(ship, "header", 6, &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_ship_piece(ship, 0, pair.source, 1), SL_ERR_PRECONDITION);
    for (int i = 0; i < 3; i++) { // it stalls, so it cannot end
        int64_t begin_ns = sl_now_ns();
        assert_int_equal(sl_ship_await(ship, sl_deadline_in_ms(30), &err), SL_AGAIN);
        assert_true(sl_now_ns() - begin_ns >= 25 * SL_NS_PER_MS);
    }
    sl_ship_close(&ship); // while it is wanted: its receiver is told
    assert_true(wait_receive_buffer(&receive_buffer, 5000));
    assert_int_equal(receive_buffer.status, SL_ERR_CANCELLED);
    close_receive_buffer(&receive_buffer);

    struct receive_buffer next; // nothing stalls any more
    open_receive_buffer(&next, pair.to, pair.target, 8 * MIB, 30000);
    ship = open_ship(&pair, &next, 30000);
    sl_ship_piece(ship, 0, pair.source, 8 * MIB);
    assert_int_equal(sl_ship_end(ship, "header", 6, &err), SL_OK);
    enum sl_status status;
    while ((status = sl_ship_await(ship, sl_deadline_in_ms(1), &err)) == SL_AGAIN) {
    }
    assert_int_equal(status, SL_OK);
    assert_int_equal(sl_ship_await(ship, 0, &err), SL_OK); // and stays so
    sl_ship_close(&ship);
    close_receive_buffer(&next);
    stop_pair(&pair);
}

struct shipper {
    struct pair *pair;
    size_t at, bytes;
    int n_rounds;
    int n_wrong;
};

static void *ship_many(void *arg) {
    struct shipper *it = arg;
    for (int round = 0; round < it->n_rounds; round++) {
        struct receive_buffer receive_buffer;
        size_t n = it->bytes - (size_t)round * 1021;
        fill_pattern(it->pair->source + it->at, n, it->at + (uint64_t)round);
        open_receive_buffer(&receive_buffer, it->pair->to, it->pair->target + it->at, it->bytes, 60000);
        struct sl_ship *ship = open_ship(it->pair, &receive_buffer, 60000);
        for (size_t at = 0; at < n; at += 100000) {
            sl_ship_piece(ship, at, it->pair->source + it->at + at, n - at < 100000 ? n - at : 100000);
        }
        struct sl_error err = {0};
        if (sl_ship_finish(ship, &round, sizeof round, &err) != SL_OK) {
            fprintf(stderr, "round %d: %s\n", round, err.text);
            it->n_wrong++;
        } else {
            it->n_wrong += memcmp(it->pair->source + it->at, it->pair->target + it->at, n) != 0;
        }
        sl_ship_close(&ship);
        close_receive_buffer(&receive_buffer);
    }
    return NULL;
}

static void test_ships_at_once_do_not_mix(void **state) {
    (void)state;
    enum { N = 8 };
    struct pair pair;
    start_pair(&pair, N * 2 * MIB, NULL);
    struct shipper shippers[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        shippers[i] = (struct shipper){&pair, (size_t)i * 2 * MIB, 2 * MIB - 777 * (size_t)i, 12, 0};
        assert_int_equal(sl_thread_start("shipper", ship_many, &shippers[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < N; i++) { // all of them, before an assertion leaves what they use
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(shippers[i].n_wrong, 0);
    }
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.from, &stats);
    assert_int_equal(stats.peers_connected, 1); // one connection carries all of them
    stop_pair(&pair);
}

// A ship of 8 MiB whose end is expected to be `expected` at the sender.
static void expect_end(struct pair *pair, struct receive_buffer *receive_buffer, enum sl_status expected,
                       int64_t deadline_ms) {
    struct sl_ship *ship = open_ship(pair, receive_buffer, deadline_ms);
    sl_ship_piece(ship, 0, pair->source, 8 * MIB);
    struct sl_error err = {0};
    enum sl_status status = sl_ship_finish(ship, "h", 1, &err);
    if (status != expected) {
        fail_msg("status %d (%s), expected %d", status, err.text, expected);
    }
    sl_ship_close(&ship);
}

static void test_corrupt_piece_fails_both_sides(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, "corrupt:3");
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    expect_end(&pair, &receive_buffer, SL_ERR_PEER_CORRUPT, 30000);
    assert_true(wait_receive_buffer(&receive_buffer, 1000));
    assert_int_equal(receive_buffer.status, SL_ERR_PEER_CORRUPT);
    close_receive_buffer(&receive_buffer);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.to, &stats);
    assert_int_equal(stats.digests_wrong, 1);
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    expect_end(&pair, &receive_buffer, SL_OK, 30000); // the connection is as good as before
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

static void test_lost_final_is_asked_for_again(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, "drop_final:1");
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    expect_end(&pair, &receive_buffer, SL_OK, 30000);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

static void test_stale_ticket_is_refused(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, NULL);
    memset(pair.target, 0x11, 8 * MIB);
    memset(pair.source, 0x22, 8 * MIB);
    struct receive_buffer old, successor;
    open_receive_buffer(&old, pair.to, pair.target, 8 * MIB, 30000);
    uint8_t ticket[SL_TICKET_MAX_BYTES];
    size_t ticket_bytes = old.ticket_bytes;
    memcpy(ticket, old.ticket, ticket_bytes);
    close_receive_buffer(&old);
    open_receive_buffer(&successor, pair.to, pair.target, 8 * MIB, 30000); // the same block in the same slot
    struct receive_buffer stale = {.ticket = ticket, .ticket_bytes = ticket_bytes};
    expect_end(&pair, &stale, SL_ERR_PEER_STALE, 5000);
    for (size_t i = 0; i < 8 * MIB; i += 511) {
        assert_int_equal(pair.target[i], 0x11);
    }
    expect_end(&pair, &successor, SL_OK, 30000);
    expect_end(&pair, &successor, SL_ERR_PEER_STALE, 5000); // one ship a grant
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.to, &stats);
    assert_in_range(stats.stale_refused, 2, 100);
    close_receive_buffer(&successor);
    // Another sender counts its ships from 1, too: its second one is not told how the successor's ended.
    struct pair other = {.to = pair.to, .from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS)};
    other.source = make_region(other.from, 8 * MIB);
    expect_end(&other, &stale, SL_ERR_PEER_STALE, 5000);
    expect_end(&other, &stale, SL_ERR_PEER_STALE, 5000);
    stop_fabric(&other.from);
    stop_pair(&pair);
}

static void test_bad_arguments_are_refused(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, MIB, NULL);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 1000, 30000);
    struct sl_ship *ship = open_ship(&pair, &receive_buffer, 5000);
    assert_int_equal(sl_ship_piece(ship, 1, pair.source, 1000), SL_ERR_RANGE);
    assert_int_equal(sl_ship_piece(ship, SIZE_MAX, pair.source, 2), SL_ERR_RANGE);
    assert_int_equal(sl_ship_piece(ship, 1000, pair.source, 0), SL_OK);
    sl_ship_close(&ship);
    assert_true(wait_receive_buffer(&receive_buffer, 5000)); // the sender said that it gave up
    assert_int_equal(receive_buffer.status, SL_ERR_CANCELLED);
    for (size_t i = 0; i < receive_buffer.ticket_bytes; i++) { // any damaged byte is noticed
        receive_buffer.ticket[i] ^= 1;
        assert_int_equal(sl_ship_open(pair.from, receive_buffer.ticket, receive_buffer.ticket_bytes, 0, &ship, NULL),
                         SL_ERR_INVALID);
        receive_buffer.ticket[i] ^= 1;
    }
    assert_int_equal(sl_ship_open(pair.from, receive_buffer.ticket, receive_buffer.ticket_bytes - 1, 0, &ship, NULL),
                     SL_ERR_INVALID);
    struct sl_grant *grant;
    uint8_t *ticket;
    size_t n;
    assert_int_equal(sl_grant_open(pair.to, &(struct sl_grant_plan){.block = pair.target + MIB - 1, .bytes = 2}, &grant,
                                   &ticket, &n, NULL),
                     SL_ERR_INVALID);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

static void test_deadline_ends_both_sides(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, "stall:3");
    struct receive_buffer receive_buffer;
    int64_t start = sl_now_ns(), running = running_ns();
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 300);
    expect_end(&pair, &receive_buffer, SL_ERR_DEADLINE, 5000); // the receiver's comes first, and reaches the sender
    assert_true(sl_now_ns() - start >= 250 * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 2500);
    assert_true(wait_receive_buffer(&receive_buffer, 1000));
    assert_int_equal(receive_buffer.status, SL_ERR_DEADLINE);
    close_receive_buffer(&receive_buffer);
    struct receive_buffer late;
    open_receive_buffer(&late, pair.to, pair.target, 8 * MIB, 30000);
    sl_grant_renew(late.grant, sl_deadline_in_ms(100));
    assert_true(wait_receive_buffer(&late, 2000)); // no ship ever came
    assert_int_equal(late.status, SL_ERR_DEADLINE);
    close_receive_buffer(&late);
    stop_pair(&pair);
}

static void test_sender_deadline_reaches_the_receiver(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, "stall:2");
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    expect_end(&pair, &receive_buffer, SL_ERR_DEADLINE, 300);
    assert_true(wait_receive_buffer(&receive_buffer, 1000));
    assert_int_equal(receive_buffer.status, SL_ERR_DEADLINE);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

static void test_receiver_closes_in_flight(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 64 * MIB, NULL);
    for (int round = 0; round < 10; round++) {
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, pair.to, pair.target, 64 * MIB, 30000);
        struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
        sl_ship_piece(ship, 0, pair.source, 64 * MIB);
        while (sl_ship_progress(ship, NULL) < (size_t)round * MIB) {
            sched_yield();
        }
        sl_grant_close(&receive_buffer.grant);
        assert_true(wait_released(&receive_buffer, 5000));
        memset(pair.target, round, 64 * MIB); // ours again: nothing may write here any more
        struct sl_error err = {0};
        enum sl_status status = sl_ship_finish(ship, NULL, 0, &err);
        assert_true(status == SL_ERR_CANCELLED || status == SL_ERR_PEER_STALE);
        for (size_t i = 0; i < 64 * MIB; i += 4093) {
            assert_int_equal(pair.target[i], round);
        }
        sl_ship_close(&ship);
        close_receive_buffer(&receive_buffer);
    }
    stop_pair(&pair);
}

static void test_destroy_ends_everything(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 64 * MIB, "stall:5");
    struct receive_buffer receive_buffer, unused;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 32 * MIB, 30000);
    open_receive_buffer(&unused, pair.to, pair.target + 32 * MIB, 32 * MIB, 30000);
    struct sl_ship *ship = open_ship(&pair, &receive_buffer, 30000);
    sl_ship_piece(ship, 0, pair.source, 32 * MIB);
    while (sl_ship_progress(ship, NULL) < MIB) {
        sched_yield();
    }
    sl_fabric_destroy(&pair.to);
    assert_int_equal(receive_buffer.n_released, 1);
    assert_int_equal(receive_buffer.n_failed, 1);
    assert_int_equal(receive_buffer.status, SL_ERR_CANCELLED);
    assert_int_equal(unused.n_released, 1);
    struct sl_error err = {0};
    enum sl_status status = sl_ship_finish(ship, NULL, 0, &err);
    if (status != SL_ERR_CANCELLED && status != SL_ERR_PEER_LOST) {
        fail_msg("%d: %s", (int)status, err.text);
    }
    sl_ship_close(&ship);
    free(receive_buffer.ticket);
    free(unused.ticket);
    stop_fabric(&pair.from);
}

static void test_port_in_use_is_told(void **state) {
    (void)state;
    struct sl_fabric *first = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    struct sl_fabric_config config = {.listen = sl_fabric_address(first),
                                      .transport = is_link(transport) ? "tcp" : transport};
    struct sl_fabric *second = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_fabric_create(&config, &second, &err), SL_ERR_EXISTS);
    assert_null(second);
    char address[64];
    snprintf(address, sizeof address, "%s", sl_fabric_address(first));
    uint64_t epoch = sl_fabric_epoch(first);
    stop_fabric(&first);
    second = start_fabric(transport, address, NULL, CALM_HEARTBEAT_MS); // at once, at the same port
    assert_string_equal(sl_fabric_address(second), address);
    assert_true(sl_fabric_epoch(second) != epoch);
    stop_fabric(&second);
}

static void test_restarted_receiver_is_another_peer(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 8 * MIB, NULL);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    uint8_t ticket[SL_TICKET_MAX_BYTES];
    size_t ticket_bytes = receive_buffer.ticket_bytes;
    memcpy(ticket, receive_buffer.ticket, ticket_bytes);
    expect_end(&pair, &receive_buffer, SL_OK, 30000);
    close_receive_buffer(&receive_buffer);
    char address[64];
    snprintf(address, sizeof address, "%s", sl_fabric_address(pair.to));
    sl_fabric_destroy(&pair.to);
    pair.to = start_fabric(transport, address, NULL, CALM_HEARTBEAT_MS);
    pair.target = make_region(pair.to, 8 * MIB);
    struct receive_buffer stale = {.ticket = ticket, .ticket_bytes = ticket_bytes};
    expect_end(&pair, &stale, SL_ERR_PEER_STALE, 10000);
    open_receive_buffer(&receive_buffer, pair.to, pair.target, 8 * MIB, 30000);
    expect_end(&pair, &receive_buffer, SL_OK, 30000);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

// The quick side waits for three beats of the slow one, whichever side connected.
static void test_slow_and_fast_beats_keep_a_connection(void **state) {
    (void)state;
    for (int slow_sender = 0; slow_sender < 2; slow_sender++) {
        int64_t quick_ms = QUICK_HEARTBEAT_MS, slow_ms = 8 * quick_ms;
        struct pair pair;
        pair.to = start_fabric(transport, "127.0.0.1:0", NULL, slow_sender ? quick_ms : slow_ms);
        pair.from = start_fabric(transport, "127.0.0.1:0", NULL, slow_sender ? slow_ms : quick_ms);
        pair.target = make_region(pair.to, MIB);
        pair.source = make_region(pair.from, MIB);
        struct receive_buffer receive_buffer;
        for (int i = 0; i < 2; i++) {
            open_receive_buffer(&receive_buffer, pair.to, pair.target, MIB, 30000);
            expect_end(&pair, &receive_buffer, SL_OK, 30000);
            close_receive_buffer(&receive_buffer);
            sl_sleep_ms(i == 0 ? 7 * quick_ms : 0); // between two beats of the slow side
        }
        struct sl_fabric_stats from, to;
        sl_fabric_get_stats(pair.from, &from);
        sl_fabric_get_stats(pair.to, &to);
        assert_int_equal(from.peers_lost + to.peers_lost, 0);
        assert_int_equal(from.peers_connected, 1);
        stop_pair(&pair);
    }
}

static void test_config_is_checked(void **state) {
    (void)state;
    struct sl_fabric *fabric = NULL;
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "pigeon"};
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_ERR_INVALID);
    config = (struct sl_fabric_config){.listen = "127.0.0.1", .transport = "tcp"};
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_ERR_INVALID);
    config = (struct sl_fabric_config){.listen = "127.0.0.1:0", .transport = "tcp", .inject = "corrupt:x"};
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_ERR_INVALID);
    config.inject = "nope:1";
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_ERR_INVALID);
    fabric = start_fabric("tcp", NULL, NULL, 0);
    assert_string_equal(sl_fabric_address(fabric), "");
    uint8_t *base = make_region(fabric, 4096);
    struct sl_grant *grant;
    uint8_t *ticket;
    size_t n;
    assert_int_equal(
        sl_grant_open(fabric, &(struct sl_grant_plan){.block = base, .bytes = 10}, &grant, &ticket, &n, NULL),
        SL_ERR_PRECONDITION);
    stop_fabric(&fabric);
}

static size_t free_huge_pages(void) {
    FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "r");
    size_t n = 0;
    if (file) {
        assert_int_equal(fscanf(file, "%zu", &n), 1);
        fclose(file);
    }
    return n;
}

// Huge pages are used where enough of them are reserved; else the error names the setting.
static void test_huge_pages_are_taken_or_named(void **state) {
    (void)state;
    struct sl_error err;
    void *base = NULL;
    struct sl_fabric *shm = start_fabric("shm", NULL, NULL, 0), *tcp = start_fabric("tcp", NULL, NULL, 0);
    assert_int_equal(sl_fabric_region_create(shm, MIB, SL_REGION_HUGE_PAGES, &base, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "tcp"));
    size_t n = free_huge_pages();
    assert_int_equal(sl_fabric_region_create(tcp, (n + 1) * 2 * MIB, SL_REGION_HUGE_PAGES, &base, &err),
                     SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "vm.nr_hugepages"));
    if (n > 0) {
        assert_int_equal(sl_fabric_region_create(tcp, MIB, SL_REGION_HUGE_PAGES, &base, &err), SL_OK);
        assert_int_equal(free_huge_pages(), n - 1);
        memset(base, 1, 2 * MIB);
    }
    stop_fabric(&tcp);
    stop_fabric(&shm);
    assert_int_equal(free_huge_pages(), n);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ship_arrives_at_every_size),
        cmocka_unit_test(test_ship_gathers_scattered_pieces),
        cmocka_unit_test(test_ship_carries_a_large_header),
        cmocka_unit_test(test_ship_end_does_not_wait),
        cmocka_unit_test(test_ships_at_once_do_not_mix),
        cmocka_unit_test(test_corrupt_piece_fails_both_sides),
        cmocka_unit_test(test_lost_final_is_asked_for_again),
        cmocka_unit_test(test_stale_ticket_is_refused),
        cmocka_unit_test(test_bad_arguments_are_refused),
        cmocka_unit_test(test_deadline_ends_both_sides),
        cmocka_unit_test(test_sender_deadline_reaches_the_receiver),
        cmocka_unit_test(test_receiver_closes_in_flight),
        cmocka_unit_test(test_destroy_ends_everything),
        cmocka_unit_test(test_port_in_use_is_told),
        cmocka_unit_test(test_restarted_receiver_is_another_peer),
        cmocka_unit_test(test_slow_and_fast_beats_keep_a_connection),
        cmocka_unit_test(test_huge_pages_are_taken_or_named),
        cmocka_unit_test(test_config_is_checked),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    if (argc > 2) {
        cmocka_set_test_filter(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
