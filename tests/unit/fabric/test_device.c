// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: pieces that leave from memory which this process cannot read at its own address, as a device's, and which the network sees at
 *          another: they arrive, with the digests that came with them; wrong ones are found; a put that fails ends going straight.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "tests/unit/fabric/harness.h"

enum { BYTES = 3 << 20, N_PIECES = BYTES / (512 << 10) };

struct straight {
    struct sl_fabric *from, *to;
    char *device, *seen; // the same pages: closed, and as the network sees them
    uint8_t *target;
    uint64_t digests[N_PIECES];
};

static void start(struct straight *s, const char *inject) {
    int file = memfd_create("device", MFD_CLOEXEC);
    assert_true(file >= 0 && ftruncate(file, BYTES) == 0);
    s->device = mmap(NULL, BYTES, PROT_NONE, MAP_SHARED, file, 0);
    s->seen = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    assert_true(s->device != MAP_FAILED && s->seen != MAP_FAILED);
    fill_pattern((uint8_t *)s->seen, BYTES, 7);
    for (int i = 0; i < N_PIECES; i++) {
        s->digests[i] = sl_hash(s->seen + i * SL_DIGESTED_MAX_BYTES, SL_DIGESTED_MAX_BYTES, 0);
    }
    s->to = start_fabric("shm", "127.0.0.1:0", NULL, 0);
    s->from = start_fabric("shm", NULL, inject, 0);
    s->target = make_region(s->to, BYTES);
    const struct sl_device_region device = {.base = s->device, .bytes = BYTES, .seen = s->seen};
    assert_int_equal(sl_fabric_region_add(s->from, &device, NULL), SL_OK);
}

static void stop(struct straight *s) {
    stop_fabric(&s->from);
    stop_fabric(&s->to);
    munmap(s->device, BYTES);
    munmap(s->seen, BYTES);
}

static enum sl_ship_straight way_of(const struct sl_ship *ship, const void *data) {
    enum sl_ship_straight way;
    int64_t until = sl_deadline_in_ms(30000);
    while ((way = sl_ship_straight(ship, data)) == SL_STRAIGHT_UNKNOWN && sl_now_ns() < until) {
        sl_sleep_ms(1);
    }
    return way;
}

static struct sl_ship *open_ship(struct straight *s, struct receive_buffer *receive_buffer) {
    struct sl_ship *ship;
    open_receive_buffer(receive_buffer, s->to, s->target, BYTES, 60000);
    assert_int_equal(sl_ship_open(s->from, receive_buffer->ticket, receive_buffer->ticket_bytes,
                                  sl_deadline_in_ms(60000), &ship, NULL),
                     SL_OK);
    return ship;
}

// Everything that is there, and how the ship ended.
static enum sl_status ship_all(struct straight *s, struct sl_ship *ship) {
    assert_int_equal(way_of(ship, s->device), SL_STRAIGHT_YES);
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < N_PIECES && status == SL_OK; i++) {
        size_t at = i * SL_DIGESTED_MAX_BYTES;
        status = sl_ship_digested(ship, at, s->device + at, SL_DIGESTED_MAX_BYTES, s->digests[i]);
    }
    return status == SL_OK ? sl_ship_finish(ship, "h", 1, NULL) : status;
}

static void expect(struct straight *s, enum sl_status expected, enum sl_status landed) {
    struct receive_buffer receive_buffer;
    struct sl_ship *ship = open_ship(s, &receive_buffer);
    assert_int_equal(ship_all(s, ship), expected);
    sl_ship_close(&ship);
    assert_true(wait_receive_buffer(&receive_buffer, 30000));
    assert_int_equal(receive_buffer.status, landed);
    close_receive_buffer(&receive_buffer);
}

static void test_pieces_of_a_device_arrive(void **state) {
    struct straight s;
    (void)state;
    start(&s, NULL);
    expect(&s, SL_OK, SL_OK);
    assert_memory_equal(s.target, s.seen, BYTES);
    s.digests[3] ^= 1; // or a byte of it, on its way
    expect(&s, SL_ERR_PEER_CORRUPT, SL_ERR_PEER_CORRUPT);
    s.digests[3] ^= 1;
    s.seen[BYTES / 2] ^= 0x10;
    expect(&s, SL_ERR_PEER_CORRUPT, SL_ERR_PEER_CORRUPT);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(s.to, &stats);
    assert_int_equal(stats.digests_wrong, 2);
    stop(&s);
}

static void test_corruption_is_injected_into_pieces_of_a_device(void **state) {
    struct straight s;
    (void)state;
    start(&s, "corrupt:2");
    expect(&s, SL_ERR_PEER_CORRUPT, SL_ERR_PEER_CORRUPT);
    expect(&s, SL_OK, SL_OK);
    stop(&s);
}

// The ship ends as if its receiver were lost; the next are not sent from there, and a piece of the host's memory goes as ever.
static void test_put_that_fails_ends_going_straight(void **state) {
    struct straight s;
    struct receive_buffer receive_buffer;
    (void)state;
    start(&s, "device_put:2");
    expect(&s, SL_ERR_PEER_LOST, SL_ERR_PEER_LOST);
    struct sl_ship *ship = open_ship(&s, &receive_buffer);
    assert_int_equal(way_of(ship, s.device), SL_STRAIGHT_NO);
    assert_int_equal(sl_ship_digested(ship, 0, s.device, 4096, s.digests[0]), SL_ERR_PEER_LOST);
    assert_int_equal(sl_ship_piece(ship, 0, s.seen, BYTES), SL_OK);
    assert_int_equal(sl_ship_finish(ship, NULL, 0, NULL), SL_OK);
    sl_ship_close(&ship);
    close_receive_buffer(&receive_buffer);
    assert_memory_equal(s.target, s.seen, BYTES);
    stop(&s);
}

// Memory that the host cannot touch is not granted. A digested piece lies in a device's memory, and within its bounds.
static void test_bounds_of_a_device_region(void **state) {
    struct straight s;
    struct receive_buffer receive_buffer;
    struct sl_grant *grant;
    uint8_t *ticket;
    size_t n;
    (void)state;
    start(&s, NULL);
    const struct sl_device_region device = {.base = s.device, .bytes = BYTES, .seen = s.seen};
    assert_int_equal(sl_fabric_region_add(s.to, &device, NULL), SL_OK);
    const struct sl_grant_events events = {0};
    assert_int_equal(sl_grant_open(s.to, &(struct sl_grant_plan){.block = s.device, .bytes = 4096, .events = &events},
                                   &grant, &ticket, &n, NULL),
                     SL_ERR_INVALID);
    struct sl_ship *ship = open_ship(&s, &receive_buffer);
    assert_int_equal(way_of(ship, s.seen), SL_STRAIGHT_NO);
    assert_int_equal(way_of(ship, s.device), SL_STRAIGHT_YES);
    assert_int_equal(sl_ship_digested(ship, 0, s.device, SL_DIGESTED_MAX_BYTES + 1, 0), SL_ERR_RANGE);
    assert_int_equal(sl_ship_digested(ship, 0, s.device + BYTES - 10, 11, 0), SL_ERR_RANGE); // past its end
    assert_int_equal(sl_ship_digested(ship, BYTES, s.device, 1, 0), SL_ERR_RANGE);           // of the grant
    sl_ship_close(&ship);
    close_receive_buffer(&receive_buffer);
    stop(&s);
    struct sl_fabric *tcp = start_fabric("tcp", NULL, NULL, 0);
    int x = 0;
    const struct sl_device_region small = {.base = &x, .bytes = sizeof x, .seen = &x}, none = {.bytes = 1, .seen = &x};
    assert_int_equal(sl_fabric_region_add(tcp, &small, NULL), SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_fabric_region_add(tcp, &none, NULL), SL_ERR_INVALID);
    stop_fabric(&tcp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_a_device_arrive),
        cmocka_unit_test(test_corruption_is_injected_into_pieces_of_a_device),
        cmocka_unit_test(test_put_that_fails_ends_going_straight),
        cmocka_unit_test(test_bounds_of_a_device_region),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
