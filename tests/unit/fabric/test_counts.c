// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counts, not timings. Memory is registered once, however much is moved. Scattered pages travel in few segments. A start of UCX
 *          that hangs is given up, and one that fails is reported. A grant without memory leaves no directory entry. A connection that was
 *          idle for many beats carries the next ship, and so does one whose process stood still.
 *
 * Design: the linker puts this file between the fabric and what it calls (--wrap).
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "net/fabric/core/ucx.h"
#include "net/fabric/fetch.h"
#include "tests/unit/scarce.h"

#define N_PAGES    256
#define PAGE_BYTES 16384
#define N_ROUNDS   5
#define N_REFUSED  40

static const char *transport;
static atomic_int n_maps, n_segments, n_gets;
static atomic_bool hangs, fails;

enum sl_status __real_sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region,
                                 struct sl_error *err);
enum sl_status __wrap_sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region,
                                 struct sl_error *err);
enum sl_status __wrap_sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region,
                                 struct sl_error *err) {
    atomic_fetch_add(&n_maps, 1);
    return __real_sl_ucx_map(fabric, bytes, region, err);
}

void __real_sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes);
void __wrap_sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes);
void __wrap_sl_peer_send_start(struct sl_peer_send *send, enum sl_wire_id id, const void *data, size_t bytes) {
    atomic_fetch_add(&n_segments, id == SL_WIRE_SEGMENT);
    __real_sl_peer_send_start(send, id, data, bytes);
}

enum sl_status __real_sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data,
                                  size_t bytes, uint64_t remote);
enum sl_status __wrap_sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data,
                                  size_t bytes, uint64_t remote);
enum sl_status __wrap_sl_peer_get(struct sl_peer_op *op, const struct sl_remote_region *region, void *data,
                                  size_t bytes, uint64_t remote) {
    atomic_fetch_add(&n_gets, 1);
    return __real_sl_peer_get(op, region, data, bytes, remote);
}

enum sl_status __real_sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err);
enum sl_status __wrap_sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err);
enum sl_status __wrap_sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err) {
    while (atomic_load(&hangs)) {
        sl_sleep_ms(1);
    }
    if (atomic_load(&fails)) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no such device");
    }
    return __real_sl_ucx_start(fabric, events, err);
}

// While UCX hangs its creator's timeout passes at once.
static _Atomic int64_t waited_ms;
enum sl_status __real_sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);
enum sl_status __wrap_sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);
enum sl_status __wrap_sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns) {
    if (atomic_load(&hangs)) {
        atomic_store(&waited_ms, sl_deadline_left_ms(deadline_ns));
        deadline_ns = sl_deadline_in_ms(20);
    }
    return __real_sl_cond_wait_until(cond, mutex, deadline_ns);
}

// A machine that stands still is a clock that jumps.
static _Atomic int64_t stood_ns;
int64_t __real_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void) {
    return __real_sl_now_ns() + atomic_load(&stood_ns);
}

// Adds the same: it calls sl_now_ns() from its own file, where the linker puts nothing between.
int64_t __real_sl_deadline_in_ms(int64_t ms);
int64_t __wrap_sl_deadline_in_ms(int64_t ms);
int64_t __wrap_sl_deadline_in_ms(int64_t ms) {
    int64_t deadline_ns = __real_sl_deadline_in_ms(ms);
    return deadline_ns == SL_NO_DEADLINE ? deadline_ns : deadline_ns + atomic_load(&stood_ns);
}

// Ships every second page of the source; they are side by side at the target.
static void ship_pages(struct sl_fabric *from, struct sl_fabric *to, const uint8_t *source, uint8_t *target) {
    struct receive_buffer receive_buffer;
    struct sl_ship *ship;
    struct sl_error err = {0};
    open_receive_buffer(&receive_buffer, to, target, N_PAGES * PAGE_BYTES, 30000);
    assert_int_equal(
        sl_ship_open(from, receive_buffer.ticket, receive_buffer.ticket_bytes, sl_deadline_in_ms(20000), &ship, &err),
        SL_OK);
    for (size_t i = 0; i < N_PAGES; i++) {
        assert_int_equal(sl_ship_piece(ship, i * PAGE_BYTES, source + 2 * i * PAGE_BYTES, PAGE_BYTES), SL_OK);
    }
    if (sl_ship_finish(ship, "h", 1, &err) != SL_OK) {
        fail_msg("not shipped: %s", err.text);
    }
    sl_ship_close(&ship);
    for (size_t i = 0; i < N_PAGES; i++) {
        assert_memory_equal(target + i * PAGE_BYTES, source + 2 * i * PAGE_BYTES, PAGE_BYTES);
    }
    close_receive_buffer(&receive_buffer);
}

static void test_memory_is_registered_once_and_pages_travel_together(void **state) {
    (void)state;
    struct sl_fabric *to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    struct sl_fabric *from = start_fabric(transport, NULL, NULL, CALM_HEARTBEAT_MS);
    atomic_store(&n_maps, 0);
    uint8_t *target = make_region(to, N_PAGES * PAGE_BYTES), *source = make_region(from, 2 * N_PAGES * PAGE_BYTES);
    fill_pattern(source, 2 * N_PAGES * PAGE_BYTES, 5);
    int n_regions = is_link(transport) ? 0 : 2; // of those that UCX has to know
    assert_int_equal(atomic_load(&n_maps), n_regions);
    for (int round = 0; round < N_ROUNDS; round++) {
        atomic_store(&n_segments, 0);
        memset(target, 0, N_PAGES * PAGE_BYTES);
        ship_pages(from, to, source, target);
        int fewest = N_PAGES * PAGE_BYTES / (int)SL_SEGMENT_MAX_BYTES;
        // Pieces that come while the first ones leave may find them gone: some more than the fewest, never one a page.
        assert_in_range(atomic_load(&n_segments), fewest, N_PAGES / 4);
    }
    assert_int_equal(atomic_load(&n_maps), n_regions);
    stop_fabric(&from);
    stop_fabric(&to);
}

static void test_idle_connection_lives_and_carries(void **state) {
    (void)state;
    struct sl_fabric *to = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    struct sl_fabric *from = start_fabric(transport, NULL, NULL, QUICK_HEARTBEAT_MS);
    uint8_t *target = make_region(to, N_PAGES * PAGE_BYTES), *source = make_region(from, 2 * N_PAGES * PAGE_BYTES);
    struct sl_fabric_stats stats;
    for (int i = 0; i < 2; i++) {
        ship_pages(from, to, source, target);
        sl_sleep_ms(6 * QUICK_HEARTBEAT_MS); // silence would be a loss twice over
        sl_fabric_get_stats(from, &stats);
        assert_int_equal(stats.peers_connected, 1);
        assert_int_equal(stats.peers_lost, 0);
    }
    ship_pages(from, to, source, target);
    sl_fabric_get_stats(to, &stats);
    assert_int_equal(stats.peers_lost, 0);
    stop_fabric(&from);
    stop_fabric(&to);
}

static void test_machine_that_stood_still_has_lost_nobody(void **state) {
    (void)state;
    struct sl_fabric *to = start_fabric(transport, "127.0.0.1:0", NULL, 1000);
    struct sl_fabric *from = start_fabric(transport, NULL, NULL, 1000);
    uint8_t *target = make_region(to, N_PAGES * PAGE_BYTES), *source = make_region(from, 2 * N_PAGES * PAGE_BYTES);
    struct sl_fabric_stats stats;
    ship_pages(from, to, source, target);
    atomic_fetch_add(&stood_ns, 5 * SL_NS_PER_S); // longer than three beats
    sl_sleep_ms(200);                             // in which both check for silent peers
    for (int i = 0; i < 2; i++) {
        sl_fabric_get_stats(i == 0 ? from : to, &stats);
        assert_int_equal(stats.peers_connected, 1);
        assert_int_equal(stats.peers_lost, 0);
    }
    ship_pages(from, to, source, target);
    stop_fabric(&from);
    int64_t deadline = sl_deadline_in_ms(5000);
    for (sl_fabric_get_stats(to, &stats); stats.peers_connected > 0 && sl_now_ns() < deadline;) {
        sl_sleep_ms(1);
        sl_fabric_get_stats(to, &stats);
    }
    assert_int_equal(stats.peers_connected, 0);
    assert_int_equal(stats.peers_lost, 0); // the other one had the time to say goodbye
    stop_fabric(&to);
    atomic_store(&stood_ns, 0);
}

static void test_start_of_ucx_that_hangs_is_given_up(void **state) {
    (void)state;
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "tcp", .insecure = true};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    atomic_store(&hangs, true);
    assert_int_equal(sl_fabric_create(&config, &fabric, &err), SL_ERR_DEADLINE);
    assert_null(fabric);
    assert_non_null(strstr(err.text, "UCX has not started"));
    assert_in_range(atomic_load(&waited_ms), 15000, 20000);
    atomic_store(&hangs, false); // its thread comes back, finds that no caller waits, and frees what it has
    fabric = start_fabric("tcp", "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    stop_fabric(&fabric);
}

static void test_start_of_ucx_that_fails_is_told(void **state) {
    (void)state;
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "tcp", .insecure = true};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    atomic_store(&fails, true);
    assert_int_equal(sl_fabric_create(&config, &fabric, &err), SL_ERR_UNSUPPORTED);
    atomic_store(&fails, false);
    assert_null(fabric);
    assert_non_null(strstr(err.text, "no such device"));
}

// Returns how many gets a fetch of a window of one region takes.
static int gets_of_a_fetch(const char *inject) {
    struct sl_fabric *owner = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    struct sl_fabric *reader = start_fabric(transport, "127.0.0.1:0", inject, CALM_HEARTBEAT_MS);
    uint8_t *memory = make_region(owner, N_PAGES * PAGE_BYTES), *ticket, *to = malloc(N_PAGES * PAGE_BYTES);
    struct sl_window *window;
    struct sl_connection *connection;
    struct sl_fetch *fetch;
    struct sl_fetch_range all = {0, to, N_PAGES * PAGE_BYTES};
    size_t bytes;
    fill_pattern(memory, N_PAGES * PAGE_BYTES, 7);
    assert_int_equal(sl_window_open(owner, memory, N_PAGES * PAGE_BYTES, &window, &ticket, &bytes, NULL), SL_OK);
    assert_int_equal(sl_window_show(window, memory, N_PAGES * PAGE_BYTES, NULL), SL_OK);
    assert_int_equal(sl_connection_open(reader, sl_fabric_address(owner), sl_fabric_epoch(owner), &connection, NULL),
                     SL_OK);
    atomic_store(&n_gets, 0);
    assert_int_equal(sl_fetch_open(connection,
                                   &(struct sl_fetch_plan){ticket, bytes, &all, 1, sl_deadline_in_ms(20000)}, &fetch,
                                   NULL),
                     SL_OK);
    assert_int_equal(sl_fetch_wait(fetch, sl_deadline_in_ms(20000), NULL), SL_OK);
    assert_memory_equal(to, memory, N_PAGES * PAGE_BYTES);
    sl_fetch_close(&fetch);
    sl_connection_close(&connection);
    sl_window_close(&window);
    free(ticket);
    free(to);
    stop_fabric(&reader);
    stop_fabric(&owner);
    return atomic_load(&n_gets);
}

// Memory mapped here is copied. UCX is used where the caller sets it, which stands for a network's hardware.
static void test_mapped_memory_is_copied_and_not_got(void **state) {
    (void)state;
    assert_int_equal(gets_of_a_fetch(NULL), 0);
    assert_int_equal(gets_of_a_fetch("get:1") > 0, !is_link(transport));
}

static uint64_t id_of(const struct receive_buffer *receive_buffer) {
    struct sl_ticket ticket;
    assert_int_equal(
        sl_ticket_unpack(&ticket, SL_WIRE_MAGIC, "grant", receive_buffer->ticket, receive_buffer->ticket_bytes, NULL),
        SL_OK);
    return ticket.head.id;
}

// A grant that lacks memory at any point leaves no directory entry that could be taken for it.
static void test_grants_without_memory_leave_no_place_behind(void **state) {
    (void)state;
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    uint8_t *block = make_region(fabric, 4096);
    static const struct sl_grant_events events; // no peer ships into them
    struct sl_grant *grant;
    uint8_t *ticket;
    size_t bytes;
    struct receive_buffer before, after;
    scarce_begin(1); // what the first of all places lie in
    assert_int_equal(sl_grant_open(fabric,
                                   &(struct sl_grant_plan){
                                       .block = block, .bytes = 64, .deadline_ns = SL_NO_DEADLINE, .events = &events},
                                   &grant, &ticket, &bytes, NULL),
                     SL_ERR_EXHAUSTED);
    assert_true(scarce_end());
    open_receive_buffer(&before, fabric, block, 64, 30000);
    for (int i = 0; i < N_REFUSED; i++) {
        struct sl_error err = {0};
        scarce_begin(i % 2);
        enum sl_status status = sl_grant_open(
            fabric,
            &(struct sl_grant_plan){.block = block, .bytes = 64, .deadline_ns = SL_NO_DEADLINE, .events = &events},
            &grant, &ticket, &bytes, &err);
        assert_true(scarce_end());
        assert_int_equal(status, SL_ERR_EXHAUSTED);
    }
    open_receive_buffer(&after, fabric, block + 64, 64, 30000);
    assert_true(id_of(&after) - id_of(&before) < N_REFUSED / 2);
    sl_grant_close(&before.grant);
    sl_grant_close(&after.grant);
    close_receive_buffer(&before);
    close_receive_buffer(&after);
    stop_fabric(&fabric);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_registered_once_and_pages_travel_together),
        cmocka_unit_test(test_idle_connection_lives_and_carries),
        cmocka_unit_test(test_machine_that_stood_still_has_lost_nobody),
        cmocka_unit_test(test_start_of_ucx_that_hangs_is_given_up),
        cmocka_unit_test(test_start_of_ucx_that_fails_is_told),
        cmocka_unit_test(test_grants_without_memory_leave_no_place_behind),
        cmocka_unit_test(test_mapped_memory_is_copied_and_not_got),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
