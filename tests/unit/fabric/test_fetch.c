// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: fetches from windows, by copies of mapped memory (shm), by messages (tcp) and by gets (as RDMA hardware does, here
 *          over shm): bytes arrive where they belong and nowhere else, forbidden reads are refused, every end is
 *          reported, and nothing is written after sl_fetch_close().
 */
#include "net/fabric/fetch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "net/fabric/core/wire.h"
#include "harness.h"
#include "tests/unit/running_clock.h"

#define MIB          (1u << 20)
#define WINDOW_BYTES (32u * MIB)

static const char *transport; // of the group that runs
static const char *inject;    // of the reader

struct pair {
    struct sl_fabric *reader, *owner;
    struct sl_connection *connection;
    uint8_t *memory; // of the owner; the window begins at 4096
    struct sl_window *window;
    uint8_t *ticket;
    size_t ticket_bytes;
};

static const uint8_t *window_at(const struct pair *pair, uint64_t offset) {
    return pair->memory + 4096 + offset;
}

static void start_pair(struct pair *pair) {
    struct sl_error err = {0};
    pair->owner = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->reader = start_fabric(transport, "127.0.0.1:0", inject, CALM_HEARTBEAT_MS);
    pair->memory = make_region(pair->owner, WINDOW_BYTES + 8192);
    fill_pattern(pair->memory, WINDOW_BYTES + 8192, 3);
    if (sl_window_open(pair->owner, pair->memory + 4096, WINDOW_BYTES, &pair->window, &pair->ticket,
                       &pair->ticket_bytes, &err) != SL_OK ||
        sl_window_show(pair->window, pair->memory + 4096, WINDOW_BYTES, &err) != SL_OK ||
        sl_connection_open(pair->reader, sl_fabric_address(pair->owner), sl_fabric_epoch(pair->owner),
                           &pair->connection, &err) != SL_OK) {
        fail_msg("no pair: %s", err.text);
    }
    assert_true(pair->ticket_bytes <= SL_TICKET_MAX_BYTES);
}

static void stop_pair(struct pair *pair) {
    sl_connection_close(&pair->connection);
    sl_window_close(&pair->window);
    free(pair->ticket);
    assert_idle(pair->owner);
    stop_fabric(&pair->reader);
    stop_fabric(&pair->owner);
}

static struct sl_fetch *open_fetch(const struct pair *pair, const struct sl_fetch_range *ranges, size_t n,
                                   int64_t deadline_ms) {
    struct sl_fetch *fetch = NULL;
    struct sl_error err = {0};
    if (sl_fetch_open(
            pair->connection,
            &(struct sl_fetch_plan){pair->ticket, pair->ticket_bytes, ranges, n, sl_deadline_in_ms(deadline_ms)},
            &fetch, &err) != SL_OK) {
        fail_msg("no fetch: %s", err.text);
    }
    return fetch;
}

static enum sl_status wait_fetch(struct sl_fetch *fetch) {
    struct sl_error err = {0};
    enum sl_status status = sl_fetch_wait(fetch, sl_deadline_in_ms(20000), &err);
    if (status == SL_AGAIN) {
        fail_msg("the fetch neither ends nor fails");
    }
    return status;
}

/*
 * Fetches n ranges of `bytes`, `stride` apart in the window from `offset` on, in reverse order. They go side by side into memory with a gap
 * of `gap` after each. Returns whether everything is right and the gaps are untouched. Any thread may call it, so it asserts nothing.
 */
static bool fetch_strided(const struct pair *pair, size_t n, size_t bytes, size_t offset, size_t stride, size_t gap) {
    struct sl_fetch_range *ranges = calloc(n, sizeof *ranges);
    uint8_t *memory = malloc(n * (bytes + gap) + 1);
    memset(memory, 0xee, n * (bytes + gap));
    for (size_t i = 0; i < n; i++) {
        ranges[i] = (struct sl_fetch_range){offset + (n - 1 - i) * stride, memory + i * (bytes + gap), bytes};
    }
    struct sl_fetch *fetch = NULL;
    struct sl_error err = {0};
    bool right =
        sl_fetch_open(pair->connection,
                      &(struct sl_fetch_plan){pair->ticket, pair->ticket_bytes, ranges, n, sl_deadline_in_ms(30000)},
                      &fetch, &err) == SL_OK &&
        sl_fetch_wait(fetch, sl_deadline_in_ms(20000), &err) == SL_OK;
    if (!right) {
        fprintf(stderr, "fetch: %s\n", err.text);
    }
    sl_fetch_close(&fetch);
    for (size_t i = 0; i < n && right; i++) {
        right = fetch == NULL && memcmp(ranges[i].to, window_at(pair, ranges[i].offset), bytes) == 0;
        for (size_t k = 0; k < gap && right; k++) {
            right = ((uint8_t *)ranges[i].to)[bytes + k] == 0xee;
        }
    }
    free(memory);
    free(ranges);
    return right;
}

static void test_fetch_of_every_shape(void **state) {
    (void)state;
    static const struct {
        size_t n, bytes, offset, stride, gap;
    } shapes[] = {
        {1, 1, 5, 0, 3},
        {1, 100, 7, 0, 3},
        {2000, 1024, 0, 3000, 5},
        {2000, 1024, 0, 1024, 0},
        {64, 131072, 0, 131072, 0},
        {64, 131072, 1, 200000, 7},
        {1, 20 * MIB + 3, 11, 0, 3},
        {700, 1, 0, 4097, 1},
        {300, 65535, 0, 65536, 1},
        {300, 65536, 0, 65537, 1},
        {9, MIB + 1, 3, MIB + 9, 2},
        {1000, 3000, 0, 1000, 1},
        {5, 0, 0, 10, 4},
        {1, 1, WINDOW_BYTES - 1, 0, 1},
    };
    struct pair pair;
    start_pair(&pair);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!fetch_strided(&pair, shapes[i].n, shapes[i].bytes, shapes[i].offset, shapes[i].stride, shapes[i].gap)) {
            fail_msg("shape %zu", i);
        }
    }
    struct sl_fetch *nothing = open_fetch(&pair, NULL, 0, 1000);
    assert_int_equal(wait_fetch(nothing), SL_OK);
    sl_fetch_close(&nothing);
    // Large and small ones in one fetch, the first two neighbours.
    uint8_t *to = malloc(3 * MIB);
    const struct sl_fetch_range mixed[] = {{10, to, 500},
                                           {510, to + 500, 70000},
                                           {MIB, to + 100000, 10},
                                           {2 * MIB, to + 200000, MIB},
                                           {MIB + 5, to + 2 * MIB, 77}};
    struct sl_fetch *fetch = open_fetch(&pair, mixed, 5, 20000);
    assert_int_equal(wait_fetch(fetch), SL_OK);
    for (size_t i = 0; i < 5; i++) {
        assert_memory_equal(mixed[i].to, window_at(&pair, mixed[i].offset), mixed[i].bytes);
    }
    sl_fetch_close(&fetch);
    free(to);
    stop_pair(&pair);
}

struct fetcher {
    const struct pair *pair;
    size_t at;
    int n_wrong;
};

static void *fetch_many(void *arg) {
    struct fetcher *it = arg;
    for (size_t i = 0; i < 40; i++) {
        it->n_wrong += !fetch_strided(it->pair, 60, i % 2 ? 1000 : 70000, it->at + i, 100000 + i, i % 3);
    }
    return NULL;
}

static void test_fetches_at_once_do_not_mix(void **state) {
    (void)state;
    enum { N = 6 };
    struct pair pair;
    start_pair(&pair);
    struct fetcher fetchers[N];
    pthread_t threads[N];
    for (size_t i = 0; i < N; i++) {
        fetchers[i] = (struct fetcher){&pair, i * 1000001, 0};
        assert_int_equal(sl_thread_start("fetcher", fetch_many, &fetchers[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < N; i++) { // all of them, before an assertion leaves what they use
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(fetchers[i].n_wrong, 0);
    }
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.reader, &stats);
    assert_int_equal(stats.peers_connected, 1);
    stop_pair(&pair);
}

static void test_bad_arguments_are_refused(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair);
    uint8_t to[16];
    struct sl_fetch *fetch = NULL;
    static const struct {
        uint64_t offset;
        size_t bytes;
    } outside[] = {{WINDOW_BYTES, 1}, {WINDOW_BYTES - 1, 2}, {UINT64_MAX, 2}, {1, SIZE_MAX}};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        struct sl_fetch_range range = {outside[i].offset, to, outside[i].bytes};
        assert_int_equal(sl_fetch_open(pair.connection,
                                       &(struct sl_fetch_plan){.ticket = pair.ticket,
                                                               .ticket_bytes = pair.ticket_bytes,
                                                               .ranges = &range,
                                                               .n_ranges = 1},
                                       &fetch, NULL),
                         SL_ERR_RANGE);
    }
    struct sl_fetch_range range = {0, to, 1};
    for (size_t i = 0; i < pair.ticket_bytes; i++) { // any damaged byte is noticed
        pair.ticket[i] ^= 1;
        assert_int_equal(sl_fetch_open(pair.connection,
                                       &(struct sl_fetch_plan){.ticket = pair.ticket,
                                                               .ticket_bytes = pair.ticket_bytes,
                                                               .ranges = &range,
                                                               .n_ranges = 1},
                                       &fetch, NULL),
                         SL_ERR_INVALID);
        pair.ticket[i] ^= 1;
    }
    struct receive_buffer receive_buffer; // a grant's ticket is not a window's, and the other way round
    open_receive_buffer(&receive_buffer, pair.owner, pair.memory, 4096, 1000);
    assert_int_equal(sl_fetch_open(pair.connection,
                                   &(struct sl_fetch_plan){.ticket = receive_buffer.ticket,
                                                           .ticket_bytes = receive_buffer.ticket_bytes,
                                                           .ranges = &range,
                                                           .n_ranges = 1},
                                   &fetch, NULL),
                     SL_ERR_INVALID);
    close_receive_buffer(&receive_buffer);
    struct sl_ship *ship = NULL;
    assert_int_equal(sl_ship_open(pair.reader, pair.ticket, pair.ticket_bytes, 0, &ship, NULL), SL_ERR_INVALID);
    struct sl_window *window = NULL;
    uint8_t *ticket = NULL;
    size_t bytes = 0;
    assert_int_equal(sl_window_open(pair.owner, pair.memory + WINDOW_BYTES, 8193, &window, &ticket, &bytes, NULL),
                     SL_ERR_INVALID);
    assert_int_equal(sl_window_open(pair.owner, to, 1, &window, &ticket, &bytes, NULL), SL_ERR_INVALID);
    // A connection to another fabric than the window's.
    uint8_t *mine = make_region(pair.reader, 4096);
    assert_int_equal(sl_window_open(pair.reader, mine, 4096, &window, &ticket, &bytes, NULL), SL_OK);
    assert_int_equal(
        sl_fetch_open(pair.connection,
                      &(struct sl_fetch_plan){.ticket = ticket, .ticket_bytes = bytes, .ranges = &range, .n_ranges = 1},
                      &fetch, NULL),
        SL_ERR_INVALID);
    free(ticket);
    sl_window_close(&window);
    stop_pair(&pair);
}

static bool by_message(void) {
    return is_link(transport);
}

// Adds to fields of the ticket, as its bearer can.
static void forge(struct pair *pair, int more_bytes, int more_generations) {
    struct sl_wire_ticket head;
    memcpy(&head, pair->ticket, sizeof head);
    head.bytes += (uint64_t)more_bytes;
    head.generation += (uint64_t)more_generations;
    memcpy(pair->ticket, &head, sizeof head);
    head.digest = sl_hash(pair->ticket + sizeof head.digest, pair->ticket_bytes - sizeof head.digest, 0);
    memcpy(pair->ticket, &head.digest, sizeof head.digest);
}

// The owner must not rely on what the reader was told about the window.
static void test_owner_checks_what_is_read(void **state) {
    (void)state;
    if (!by_message()) {
        skip();
    }
    struct pair pair;
    start_pair(&pair);
    uint8_t to[4096];
    forge(&pair, 4096, 0);
    const struct sl_fetch_range beyond[] = {{0, to, 16}, {WINDOW_BYTES - 16, to + 16, 17}};
    struct sl_fetch *fetch = open_fetch(&pair, beyond, 2, 20000);
    assert_int_equal(wait_fetch(fetch), SL_ERR_RANGE);
    sl_fetch_close(&fetch);
    static const int generations[] = {0, 1, -1};
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++) { // the secret is right
        forge(&pair, 0, generations[i]);
        fetch = open_fetch(&pair, beyond, 1, 20000);
        assert_int_equal(wait_fetch(fetch), generations[i] == 0 ? SL_OK : SL_ERR_PEER_STALE);
        sl_fetch_close(&fetch);
        forge(&pair, 0, -generations[i]);
    }
    sl_window_close(&pair.window);
    fetch = open_fetch(&pair, beyond, 1, 20000);
    assert_int_equal(wait_fetch(fetch), SL_ERR_PEER_STALE);
    sl_fetch_close(&fetch);
    // Another window in its place is not what was asked for.
    uint8_t *ticket = NULL;
    size_t bytes = 0;
    assert_int_equal(sl_window_open(pair.owner, pair.memory, 4096, &pair.window, &ticket, &bytes, NULL), SL_OK);
    fetch = open_fetch(&pair, beyond, 1, 20000);
    assert_int_equal(wait_fetch(fetch), SL_ERR_PEER_STALE);
    sl_fetch_close(&fetch);
    free(ticket);
    stop_pair(&pair);
}

static bool can_read(struct pair *pair, uint64_t offset, size_t bytes) {
    uint8_t *to = malloc(bytes);
    const struct sl_fetch_range range = {offset, to, bytes};
    struct sl_fetch *fetch = open_fetch(pair, &range, 1, 20000);
    enum sl_status status = wait_fetch(fetch);
    sl_fetch_close(&fetch);
    assert_true(status == SL_OK || status == SL_ERR_RANGE);
    if (status == SL_OK) {
        assert_memory_equal(to, window_at(pair, offset), bytes);
    }
    free(to);
    return status == SL_OK;
}

// A window shows only what was added: nothing at first, and not a byte beside it later.
static void test_owner_shows_what_it_says(void **state) {
    (void)state;
    if (!by_message()) {
        skip();
    }
    struct pair pair;
    start_pair(&pair);
    sl_window_close(&pair.window);
    free(pair.ticket);
    assert_int_equal(sl_window_open(pair.owner, pair.memory + 4096, WINDOW_BYTES, &pair.window, &pair.ticket,
                                    &pair.ticket_bytes, NULL),
                     SL_OK);
    assert_false(can_read(&pair, 0, 1));
    static const struct {
        uint64_t offset;
        size_t bytes;
    } shown[] = {{8192, 4096}, {0, 100}, {20000, 1}, {12288, 4096}, {100, 28}, {16384, 1000}, {8200, 8000}};
    uint8_t *expected = calloc(1, 24000);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        assert_int_equal(sl_window_show(pair.window, window_at(&pair, shown[i].offset), shown[i].bytes, NULL), SL_OK);
        memset(expected + shown[i].offset, 1, shown[i].bytes);
    }
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 400; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        static const uint64_t edges[] = {0,     99,    100,   127,   128,   8191,  8192,
                                         12287, 16384, 17383, 17384, 19999, 20000, 20001};
        uint64_t begin = edges[x % (sizeof edges / sizeof *edges)];
        size_t bytes = 1 + (size_t)((x >> 20) % 3 == 0 ? (x >> 24) % 3000 : (x >> 24) % 3);
        bool all = true;
        for (size_t k = 0; k < bytes; k++) {
            all &= expected[begin + k] == 1;
        }
        assert_int_equal(can_read(&pair, begin, bytes), all);
    }
    assert_int_equal(sl_window_show(pair.window, window_at(&pair, WINDOW_BYTES - 1), 2, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_window_show(pair.window, window_at(&pair, 0) - 1, 1, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_window_show(pair.window, window_at(&pair, 0), 0, NULL), SL_ERR_INVALID);
    assert_false(can_read(&pair, WINDOW_BYTES - 1, 1));
    free(expected);
    stop_pair(&pair);
}

// Closed at every moment: the memory is the caller's again.
static void test_closed_fetch_writes_no_more(void **state) {
    (void)state;
    enum { N = 40, BYTES = 200000 };
    struct pair pair;
    start_pair(&pair);
    uint8_t *to = malloc(N * BYTES);
    struct sl_fetch_range ranges[N];
    for (size_t round = 0; round < 60; round++) {
        size_t bytes = round % 2 ? BYTES : 5000;
        for (size_t i = 0; i < N; i++) {
            ranges[i] = (struct sl_fetch_range){i * 300000, to + i * bytes, bytes};
        }
        struct sl_fetch *fetch = open_fetch(&pair, ranges, N, 20000);
        int64_t until = sl_now_ns() + (int64_t)(round * round % 97) * 20000;
        while (sl_now_ns() < until) {
        }
        sl_fetch_close(&fetch);
        memset(to, (int)round, N * BYTES);
        sl_sleep_ms(round % 5 == 0 ? 5 : 0);
        for (size_t k = 0; k < N * BYTES; k += 61) {
            assert_int_equal(to[k], (uint8_t)round);
        }
    }
    assert_true(fetch_strided(&pair, 100, 10000, 0, 10001, 1)); // and the connection is as good as before
    free(to);
    stop_pair(&pair);
}

static void test_deadline_line_and_destroy_end_a_fetch(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair);
    uint8_t *to = malloc(WINDOW_BYTES);
    struct sl_fetch_range all = {0, to, WINDOW_BYTES};
    struct sl_fetch *fetch = open_fetch(&pair, &all, 1, 0);
    assert_int_equal(wait_fetch(fetch), SL_ERR_DEADLINE);
    sl_fetch_close(&fetch);
    struct sl_connection *other = NULL;
    assert_int_equal(
        sl_connection_open(pair.reader, sl_fabric_address(pair.owner), sl_fabric_epoch(pair.owner), &other, NULL),
        SL_OK);
    assert_int_equal(sl_fetch_open(other,
                                   &(struct sl_fetch_plan){pair.ticket, pair.ticket_bytes, &all, 1, SL_NO_DEADLINE},
                                   &fetch, NULL),
                     SL_OK);
    assert_int_equal(sl_fetch_wait(fetch, 0, NULL), SL_AGAIN);
    sl_connection_close(&other);
    assert_int_equal(wait_fetch(fetch), SL_ERR_CANCELLED);
    sl_fetch_close(&fetch);
    fetch = open_fetch(&pair, &all, 1, 20000);
    sl_fabric_destroy(&pair.reader); // connections and fetches outlive it
    enum sl_status status = wait_fetch(fetch);
    assert_true(status == SL_ERR_CANCELLED || status == SL_OK);
    sl_fetch_close(&fetch);
    fetch = open_fetch(&pair, &all, 1, 20000);
    assert_int_equal(wait_fetch(fetch), SL_ERR_CANCELLED);
    sl_fetch_close(&fetch);
    sl_connection_close(&pair.connection);
    sl_fabric_destroy(&pair.owner); // and so do windows
    sl_window_close(&pair.window);
    free(pair.ticket);
    free(to);
}

// ---- two processes -----------------------------------------------------------------------------------------------

struct place {
    char address[64];
    uint64_t epoch;
    uint8_t ticket[SL_TICKET_MAX_BYTES];
    size_t ticket_bytes;
};

// Child: a window for ever.
static void open_for_ever(void) {
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    uint8_t *memory = make_region(fabric, WINDOW_BYTES);
    fill_pattern(memory, WINDOW_BYTES, 1);
    struct place place = {.epoch = sl_fabric_epoch(fabric)};
    snprintf(place.address, sizeof place.address, "%s", sl_fabric_address(fabric));
    struct sl_window *window = NULL;
    uint8_t *ticket = NULL;
    sl_window_open(fabric, memory, WINDOW_BYTES, &window, &ticket, &place.ticket_bytes, NULL);
    sl_window_show(window, memory, WINDOW_BYTES, NULL);
    memcpy(place.ticket, ticket, place.ticket_bytes);
    write_all(4, &place, sizeof place);
    sl_sleep_ms(60000);
}

static void test_killed_owner_is_noticed(void **state) {
    (void)state;
    struct child child = start_child(transport, "open");
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", inject, QUICK_HEARTBEAT_MS);
    struct place place;
    read_all(child.from, &place, sizeof place);
    struct pair pair = {.reader = fabric, .ticket = place.ticket, .ticket_bytes = place.ticket_bytes};
    assert_int_equal(sl_connection_open(fabric, place.address, place.epoch, &pair.connection, NULL), SL_OK);
    uint8_t *to = malloc(WINDOW_BYTES);
    uint8_t *expected = malloc(WINDOW_BYTES);
    fill_pattern(expected, WINDOW_BYTES, 1);
    struct sl_fetch_range all = {0, to, WINDOW_BYTES};
    struct sl_fetch *fetch = open_fetch(&pair, &all, 1, 30000);
    assert_int_equal(wait_fetch(fetch), SL_OK); // of another process's memory
    assert_memory_equal(to, expected, WINDOW_BYTES);
    sl_fetch_close(&fetch);
    kill(child.pid, SIGKILL);
    int64_t start = running_ns();
    enum sl_status status = SL_OK;
    while (status == SL_OK && running_ns() - start < 20 * SL_NS_PER_S) { // what is mapped can be read for a while
        fetch = open_fetch(&pair, &all, 1, 30000);
        status = wait_fetch(fetch);
        sl_fetch_close(&fetch);
    }
    assert_int_equal(status, SL_ERR_PEER_LOST);
    assert_in_range((running_ns() - start) / SL_NS_PER_MS, 0, 10 * QUICK_HEARTBEAT_MS);
    sl_connection_close(&pair.connection);
    end_child(&child);
    stop_fabric(&fabric);
    free(expected);
    free(to);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fetch_of_every_shape),
        cmocka_unit_test(test_fetches_at_once_do_not_mix),
        cmocka_unit_test(test_bad_arguments_are_refused),
        cmocka_unit_test(test_owner_checks_what_is_read),
        cmocka_unit_test(test_owner_shows_what_it_says),
        cmocka_unit_test(test_closed_fetch_writes_no_more),
        cmocka_unit_test(test_deadline_line_and_destroy_end_a_fetch),
        cmocka_unit_test(test_killed_owner_is_noticed),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2 && strcmp(argv[2], "open") == 0) {
        open_for_ever();
    } else if (argc > 2 && strcmp(argv[2], "get") == 0) {
        inject = "get:1";
    } else if (argc > 2) {
        cmocka_set_test_filter(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
