// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what TLS under links promises. A man in the middle changes, repeats, drops, swaps and cuts records: the link ends, its receive
 *          fails, and no byte comes out of a record that is not as it was sent.
 *
 * Design: two sets of links of this process, and two sockets between them. Bytes of the sender are held until a record is whole, so that
 *         one can be told from the next. All of it over both ways to do AES where there are two (net/fabric/link/crypto.h). One thread.
 */
#include "harness.h"

#include <arpa/inet.h>
#include <openssl/provider.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/fabric/link/crypto.h"
#include "net/fabric/link/link_internal.h"
#include "tests/certificates.h"

#define FRAME_BYTES  ((size_t)128 << 10) // eight records, after one of its header
#define RECORD_BYTES ((size_t)16 << 10)
#define HEADER_BYTES ((size_t)5) // of a record: type, version, length
#define TAG_BYTES    ((size_t)16)

enum what { NOTHING, FLIP, REPLAY, DROP, SWAP, CUT, END };

struct tamper {
    const char *name;
    enum what what;
    size_t record; // which, from 0
    ptrdiff_t at;  // FLIP, CUT: where in it; negative: from its end
    uint8_t bits;  // FLIP
    enum sl_status status;
};

static bool is_plain; // OpenSSL's own AES alone

int __real_OSSL_PROVIDER_add_builtin(OSSL_LIB_CTX *library, const char *name, OSSL_provider_init_fn *init);
int __wrap_OSSL_PROVIDER_add_builtin(OSSL_LIB_CTX *library, const char *name, OSSL_provider_init_fn *init);
int __wrap_OSSL_PROVIDER_add_builtin(OSSL_LIB_CTX *library, const char *name, OSSL_provider_init_fn *init) {
    return is_plain ? 0 : __real_OSSL_PROVIDER_add_builtin(library, name, init);
}

// ---- the two ends ----------------------------------------------------------------------------------------------------

struct end {
    struct sl_links *links;
    struct sl_link *link;
    enum sl_status lost; // SL_OK: not
    int n_frames, n_received;
    enum sl_status received;
    uint8_t *to; // [FRAME_BYTES]
};

static void *on_accepted(void *arg, struct sl_link *link, const char *from) {
    struct end *end = arg;
    (void)from;
    end->link = link;
    return end;
}

static void on_received(void *arg, enum sl_status status, size_t bytes) {
    struct end *end = arg;
    assert_int_equal(bytes, status == SL_OK ? FRAME_BYTES : 0);
    end->n_received++;
    end->received = status;
}

static void on_frame(void *owner, struct sl_link *link, const struct sl_link_frame *frame) {
    struct end *end = owner;
    assert_int_equal(frame->bytes, FRAME_BYTES);
    end->n_frames++;
    sl_link_receive(link, end->to, on_received, end);
}

static void on_lost(void *owner, enum sl_status status, const char *text) {
    struct end *end = owner;
    assert_true(status < 0 && text[0]);
    end->lost = status;
}

static void on_sent(struct sl_link_send *send, enum sl_status status) {
    (void)send, (void)status; // the kernel has it; what becomes of it is the other side's to tell
}

static void start_end(struct end *end, bool plain) {
    static const struct sl_link_events events = {on_accepted, on_frame, on_lost};
    struct test_files at;
    struct sl_error err = {0};
    *end = (struct end){.to = calloc(1, FRAME_BYTES)};
    assert_non_null(end->to);
    const char *dir = test_certificates("worker/kvstore/a");
    assert_non_null(dir);
    is_plain = plain;
    assert_int_equal(sl_links_create(test_files_of(dir, "worker-kvstore-a", &at), &events, end, &end->links, &err),
                     SL_OK);
}

static void stop_end(struct end *end) {
    sl_link_close(&end->link);
    sl_links_destroy(&end->links);
    free(end->to);
}

// ---- between them ----------------------------------------------------------------------------------------------------

struct between {
    struct end from, to;
    int listener, near, far; // near: of the sender
    struct tamper tamper;    // when the handshake is over
    bool armed, done;
    int room; // in the sockets from the sender here; 0: the kernel's usual
    size_t n_records;
    size_t n_held;
    uint8_t held[1 << 20];
    size_t n_late;
    uint8_t late[1 << 16]; // SWAP: the one that comes after its successor
};

static void pass(int fd, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            return; // it has ended
        }
        bytes += sent;
        n -= (size_t)sent;
    }
}

// One record of the sender. False: the connection ends with it.
static bool pass_record(struct between *b, uint8_t *record, size_t bytes) {
    const struct tamper *t = &b->tamper;
    size_t at = t->at < 0 ? (size_t)((ptrdiff_t)bytes + t->at) : (size_t)t->at;
    bool mine = b->armed && t->what != NOTHING && b->n_records == t->record;
    b->n_records += b->armed;
    if (b->n_late > 0) {
        pass(b->far, record, bytes);
        pass(b->far, b->late, b->n_late);
        b->n_late = 0;
        return true;
    }
    if (!mine) {
        pass(b->far, record, bytes);
        return true;
    }
    b->done = true;
    switch (t->what) {
    case FLIP:
        record[at] ^= t->bits;
        pass(b->far, record, bytes);
        break;
    case REPLAY:
        pass(b->far, record, bytes);
        pass(b->far, record, bytes);
        break;
    case SWAP:
        memcpy(b->late, record, bytes);
        b->n_late = bytes;
        break;
    case CUT:
        pass(b->far, record, at);
        return false;
    case END:
        pass(b->far, record, bytes);
        return false;
    case DROP:
    case NOTHING:
        break;
    }
    return true;
}

static void pass_records(struct between *b) {
    size_t at = 0;
    while (b->far >= 0 && b->n_held - at >= HEADER_BYTES) {
        size_t bytes = HEADER_BYTES + ((size_t)b->held[at + 3] << 8 | b->held[at + 4]);
        assert_true(bytes <= sizeof b->late);
        if (b->n_held - at < bytes) {
            break;
        }
        if (!pass_record(b, b->held + at, bytes)) {
            close(b->far);
            b->far = -1;
        }
        at += bytes;
    }
    memmove(b->held, b->held + at, b->n_held - at);
    b->n_held -= at;
}

static void turn(struct between *b) {
    uint8_t bytes[1 << 14];
    sl_links_progress(b->from.links);
    sl_links_progress(b->to.links);
    if (b->near >= 0 && b->far >= 0) {
        ssize_t n = recv(b->near, b->held + b->n_held, sizeof b->held - b->n_held, MSG_DONTWAIT);
        b->n_held += n > 0 ? (size_t)n : 0;
        pass_records(b);
    }
    if (b->near >= 0 && b->far >= 0) {
        ssize_t n = recv(b->far, bytes, sizeof bytes, MSG_DONTWAIT);
        pass(b->near, bytes, n > 0 ? (size_t)n : 0);
    }
}

static void turn_until(struct between *b, bool (*is_so)(const struct between *)) {
    int64_t deadline = sl_deadline_in_ms(20000);
    while (!is_so(b)) {
        if (sl_now_ns() > deadline) {
            fail_msg("%s: nothing happens", b->tamper.name);
        }
        turn(b);
    }
}

static bool is_open(const struct between *b) {
    return b->from.link->state == LINK_OPEN && b->to.link && b->to.link->state == LINK_OPEN;
}

static bool is_over(const struct between *b) {
    return b->to.n_received > 0 || b->to.lost != SL_OK || b->from.lost != SL_OK;
}

static struct sockaddr_in loopback(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)port);
    return address;
}

static void start(struct between *b, bool from_plain, bool to_plain) {
    struct sl_error err = {0};
    unsigned port = 0;
    start_end(&b->from, from_plain);
    start_end(&b->to, to_plain);
    struct sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof address;
    assert_int_equal(sl_links_listen(b->to.links, (struct sockaddr *)&address, bytes, &port, &err), SL_OK);
    b->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(b->listener, (struct sockaddr *)&address, bytes), 0);
    if (b->room > 0) {
        assert_int_equal(setsockopt(b->listener, SOL_SOCKET, SO_RCVBUF, &b->room, sizeof b->room), 0);
    }
    assert_int_equal(listen(b->listener, 1), 0);
    assert_int_equal(getsockname(b->listener, (struct sockaddr *)&address, &bytes), 0);
    assert_int_equal(sl_link_connect(b->from.links, (struct sockaddr *)&address, bytes, &b->from, &b->from.link, &err),
                     SL_OK);
    if (b->room > 0) {
        assert_int_equal(setsockopt(b->from.link->fd, SOL_SOCKET, SO_SNDBUF, &b->room, sizeof b->room), 0);
    }
    b->near = accept(b->listener, NULL, NULL);
    b->far = socket(AF_INET, SOCK_STREAM, 0);
    address = loopback(port);
    assert_int_equal(connect(b->far, (struct sockaddr *)&address, bytes), 0);
    assert_true(b->near >= 0 && b->far >= 0);
    turn_until(b, is_open);
    for (int i = 0; i < 10; i++) { // nothing of the handshake is on its way any more
        turn(b);
    }
    sl_link_set_met(b->to.link);
    b->armed = true;
}

static void stop(struct between *b) {
    stop_end(&b->from);
    stop_end(&b->to);
    close(b->listener);
    close(b->near);
    if (b->far >= 0) {
        close(b->far);
    }
    free(b);
}

// A frame through it. Returns its data, the caller's to free.
static uint8_t *send_one(struct between *b, struct sl_link_send *send, struct iovec *part) {
    uint8_t *data = malloc(FRAME_BYTES);
    assert_non_null(data);
    fill_pattern(data, FRAME_BYTES, 11);
    *part = (struct iovec){data, FRAME_BYTES};
    *send = (struct sl_link_send){
        .id = 5, .header = "header", .header_bytes = 6, .parts = part, .n_parts = 1, .done = on_sent};
    sl_link_send(b->from.link, send);
    turn_until(b, is_over);
    return data;
}

static struct between *create(void) {
    struct between *b = calloc(1, sizeof *b);
    assert_non_null(b);
    return b;
}

// ---- tests -----------------------------------------------------------------------------------------------------------

static void test_both_ways_of_aes_understand_each_other(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct between *b = create();
        struct sl_link_send send;
        struct iovec part;
        start(b, way & 1, way & 2);
        uint8_t *data = send_one(b, &send, &part);
        assert_int_equal(b->to.received, SL_OK);
        assert_memory_equal(b->to.to, data, FRAME_BYTES);
        assert_int_equal(b->n_records, 1 + FRAME_BYTES / RECORD_BYTES);
        stop(b);
        free(data);
    }
}

static void expect_new_key(int room) {
    struct between *b = create();
    struct sl_link_send send;
    struct iovec part;
    b->room = room;
    start(b, false, false);
    b->from.link->n_records = SL_TLS_KEY_RECORDS - 3;
    uint8_t *data = send_one(b, &send, &part);
    assert_int_equal(b->from.lost, SL_OK);
    assert_int_equal(b->to.received, SL_OK);
    assert_memory_equal(b->to.to, data, FRAME_BYTES);
    assert_int_equal(b->n_records, 2 + FRAME_BYTES / RECORD_BYTES); // the new key is a record, too
    assert_int_equal(b->from.link->n_records, 1 + FRAME_BYTES / RECORD_BYTES - 3);
    stop(b);
    free(data);
}

static void test_new_key_comes_in_time(void **state) {
    (void)state;
    expect_new_key(0);
}

// OpenSSL would flush what is there before it tells of a new key: here the kernel has no room for that.
static void test_new_key_wants_no_room(void **state) {
    (void)state;
    expect_new_key(4096);
}

static const struct tamper tampers[] = {
    {"type", FLIP, 3, 0, 1, SL_ERR_PEER_CORRUPT},
    {"version", FLIP, 3, 2, 1, SL_ERR_PEER_CORRUPT},
    {"length, shorter", FLIP, 3, 4, 0x10, SL_ERR_PEER_CORRUPT},
    {"length, longer", FLIP, 3, 4, 0x01, SL_ERR_PEER_CORRUPT},
    {"length, beyond what a record may have", FLIP, 3, 3, 0x80, SL_ERR_PEER_CORRUPT},
    {"first byte", FLIP, 3, HEADER_BYTES, 1, SL_ERR_PEER_CORRUPT},
    {"body", FLIP, 3, 9999, 0x40, SL_ERR_PEER_CORRUPT},
    {"first byte of the tag", FLIP, 3, -(ptrdiff_t)TAG_BYTES, 1, SL_ERR_PEER_CORRUPT},
    {"last byte of the tag", FLIP, 3, -1, 0x80, SL_ERR_PEER_CORRUPT},
    {"header of the frame", FLIP, 0, HEADER_BYTES + 4, 1, SL_ERR_PEER_CORRUPT},
    {"last record", FLIP, 8, 100, 1, SL_ERR_PEER_CORRUPT},
    {"replayed", REPLAY, 2, 0, 0, SL_ERR_PEER_CORRUPT},
    {"dropped", DROP, 3, 0, 0, SL_ERR_PEER_CORRUPT},
    {"swapped", SWAP, 3, 0, 0, SL_ERR_PEER_CORRUPT},
    {"cut in its header", CUT, 3, 3, 0, SL_ERR_PEER_LOST},
    {"cut in its body", CUT, 3, 5000, 0, SL_ERR_PEER_LOST},
    {"cut in its tag", CUT, 8, -1, 0, SL_ERR_PEER_LOST},
    {"cut between records", END, 3, 0, 0, SL_ERR_PEER_LOST},
};

// Checks that the bytes of the records before the bad one are there, and nothing else. A replay shows at the record after it.
static void check_bytes(const struct between *b, const uint8_t *data) {
    size_t n_good = b->tamper.record + (b->tamper.what == REPLAY || b->tamper.what == END);
    size_t good = n_good > 0 ? (n_good - 1) * RECORD_BYTES : 0;
    assert_memory_equal(b->to.to, data, good);
    for (size_t i = good; i < FRAME_BYTES; i++) {
        assert_int_equal(b->to.to[i], 0);
    }
}

static void expect_the_end(const struct tamper *tamper, bool plain) {
    struct between *b = create();
    struct sl_link_send send;
    struct iovec part;
    b->tamper = *tamper;
    start(b, plain, plain);
    uint8_t *data = send_one(b, &send, &part);
    turn(b);
    assert_true(b->done);
    if (b->to.lost != tamper->status) {
        fail_msg("%s: status %d instead of %d", tamper->name, b->to.lost, tamper->status);
    }
    assert_int_equal(b->to.n_frames, tamper->record > 0);
    assert_int_equal(b->to.n_received, b->to.n_frames);
    assert_true(b->to.n_received == 0 || b->to.received == tamper->status);
    check_bytes(b, data);
    stop(b);
    free(data);
}

static void test_record_that_is_not_as_it_was_sent_ends_the_link(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tampers / sizeof *tampers; i++) {
        expect_the_end(&tampers[i], false);
        expect_the_end(&tampers[i], true);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways_of_aes_understand_each_other),
        cmocka_unit_test(test_new_key_comes_in_time),
        cmocka_unit_test(test_new_key_wants_no_room),
        cmocka_unit_test(test_record_that_is_not_as_it_was_sent_ends_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
