// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: two ends of a link in one thread, over sockets that take little at a time: frames of scattered parts arrive as they were
 *          sent, in order, however often they are stopped in the middle of a part, and ends are told to both sides.
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "net/fabric/link/link_internal.h"
#include "tests/certificates.h"

#define N_FRAMES   24
#define MAX_PARTS  40
#define HEAD_BYTES 100
#define WAIT_MS    20000
#define LITTLE     4096 // of a socket's buffer; the kernel makes of it what it can

static const char *kind;

struct frame {
    struct sl_link_send send; // first
    uint8_t header[HEAD_BYTES];
    struct iovec parts[MAX_PARTS];
    uint8_t *sent, *got;
    size_t bytes;
    int n_done, n_received;
    enum sl_status status; // of the send
};

struct side {
    struct sl_links *links;
    struct sl_link *link;
    int n_lost;
    enum sl_status lost;
    char text[160];
};

static struct frame frames[N_FRAMES];
static struct side sender, receiver;
static int n_arrived;

static void *on_accepted(void *arg, struct sl_link *link, const char *from) {
    assert_string_equal(from, "127.0.0.1");
    ((struct side *)arg)->link = link;
    return arg;
}

static void on_received(void *arg, enum sl_status status, size_t bytes) {
    struct frame *frame = arg;
    assert_int_equal(status, SL_OK);
    assert_int_equal(bytes, frame->bytes);
    frame->n_received++;
}

static void on_frame(void *owner, struct sl_link *link, const struct sl_link_frame *arrived) {
    assert_ptr_equal(owner, &receiver);
    struct frame *frame = &frames[n_arrived];
    assert_int_equal(arrived->id, n_arrived + 1); // in order
    n_arrived++;
    assert_int_equal(arrived->header_bytes, HEAD_BYTES);
    assert_memory_equal(arrived->header, frame->header, HEAD_BYTES);
    assert_int_equal(arrived->bytes, frame->bytes);
    if (arrived->data) {
        memcpy(frame->got, arrived->data, arrived->bytes);
        frame->n_received++;
    } else {
        sl_link_receive(link, frame->got, on_received, frame);
    }
}

static void on_lost(void *owner, enum sl_status status, const char *text) {
    struct side *side = owner;
    assert_int_not_equal(text[0], '\0');
    side->n_lost++;
    side->lost = status;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static void on_sent(struct sl_link_send *send, enum sl_status status) {
    struct frame *frame = (struct frame *)send;
    frame->n_done++;
    frame->status = status;
}

// Frame i: parts of lengths that fit nothing, together from a few bytes to half a megabyte.
static void make_frame(int i) {
    struct frame *frame = &frames[i];
    *frame = (struct frame){.send = {.id = (unsigned)i + 1,
                                     .header = frame->header,
                                     .header_bytes = HEAD_BYTES,
                                     .parts = frame->parts,
                                     .n_parts = (size_t)(i % 3 == 0 ? 1 : MAX_PARTS - i),
                                     .done = on_sent}};
    size_t lengths[MAX_PARTS];
    for (size_t p = 0; p < frame->send.n_parts; p++) {
        lengths[p] = 1 + (p * 4099 + (size_t)i * 257) % (i % 2 == 0 ? 15000 : 300);
        frame->bytes += lengths[p];
    }
    frame->sent = malloc(frame->bytes);
    frame->got = calloc(1, frame->bytes);
    uint32_t x = (uint32_t)i + 1;
    for (size_t b = 0; b < frame->bytes; b++) {
        x = x * 1664525u + 1013904223u;
        frame->sent[b] = (uint8_t)(x >> 24);
    }
    memset(frame->header, i, HEAD_BYTES);
    uint8_t *at = frame->sent;
    for (size_t p = 0; p < frame->send.n_parts; p++) {
        frame->parts[p] = (struct iovec){at, lengths[p]};
        at += lengths[p];
    }
}

static void turn(void) {
    sl_links_progress(sender.links);
    sl_links_progress(receiver.links);
}

static void set_little(int fd, int option) {
    int bytes = LITTLE;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes), 0);
}

static int setup(void **state) {
    (void)state;
    static const struct sl_link_events events = {on_accepted, on_frame, on_lost};
    struct test_files at;
    const struct sl_tls_files *files = NULL;
    if (strcmp(kind, "tls") == 0) {
        const char *dir = test_certificates("worker/kvstore/a");
        assert_non_null(dir);
        files = test_files_of(dir, "worker-kvstore-a", &at);
    }
    sender = receiver = (struct side){.n_lost = 0};
    n_arrived = 0;
    assert_int_equal(sl_links_create(files, &events, &sender, &sender.links, NULL), SL_OK);
    assert_int_equal(sl_links_create(files, &events, &receiver, &receiver.links, NULL), SL_OK);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned port;
    assert_int_equal(sl_links_listen(receiver.links, (struct sockaddr *)&address, sizeof address, &port, NULL), SL_OK);
    address.sin_port = htons((uint16_t)port);
    assert_int_equal(
        sl_link_connect(sender.links, (struct sockaddr *)&address, sizeof address, &sender, &sender.link, NULL), SL_OK);
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    while (!(receiver.link && receiver.link->state == LINK_OPEN && sender.link->state == LINK_OPEN) &&
           sl_now_ns() < deadline_ns) {
        turn();
    }
    assert_true(receiver.link && receiver.link->state == LINK_OPEN && sender.link->state == LINK_OPEN);
    assert_string_equal(sl_link_name(sender.link), kind);
    sl_link_set_met(sender.link);
    sl_link_set_met(receiver.link);
    set_little(sender.link->fd, SO_SNDBUF);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sl_link_close(&sender.link);
    sl_link_close(&receiver.link);
    sl_link_close(&receiver.link); // accepts NULL
    sl_links_destroy(&sender.links);
    sl_links_destroy(&receiver.links);
    for (int i = 0; i < N_FRAMES; i++) {
        free(frames[i].sent);
        free(frames[i].got);
        frames[i] = (struct frame){.bytes = 0};
    }
    return 0;
}

static void test_frames_of_many_parts_survive_being_written_in_pieces(void **state) {
    (void)state;
    for (int i = 0; i < N_FRAMES; i++) {
        make_frame(i);
        sl_link_send(sender.link, &frames[i].send);
    }
    assert_int_equal(frames[N_FRAMES - 1].n_done, 0); // the sockets have not taken all of it
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    while (frames[N_FRAMES - 1].n_received == 0 && sender.n_lost + receiver.n_lost == 0 && sl_now_ns() < deadline_ns) {
        turn();
    }
    assert_int_equal(sender.n_lost + receiver.n_lost, 0);
    for (int i = 0; i < N_FRAMES; i++) {
        assert_int_equal(frames[i].n_done, 1);
        assert_int_equal(frames[i].status, SL_OK);
        assert_int_equal(frames[i].n_received, 1);
        assert_memory_equal(frames[i].got, frames[i].sent, frames[i].bytes);
    }
}

// One side closes its direction: the other learns of it, and when that side closes as well the first one learns of that.
static void test_finish_is_orderly(void **state) {
    (void)state;
    make_frame(0);
    make_frame(1);
    sl_link_finish(sender.link);
    assert_false(sl_link_is_over(sender.link));
    sl_link_send(receiver.link, &frames[1].send); // dropped there, like every frame for a link that ends
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    while (receiver.n_lost == 0 && sl_now_ns() < deadline_ns) {
        turn();
    }
    assert_int_equal(receiver.n_lost, 1);
    assert_int_equal(receiver.lost, SL_ERR_PEER_LOST);
    assert_true(sl_link_ended_by_peer(receiver.link));
    assert_int_equal(frames[1].n_done, 1);
    assert_false(sl_link_is_over(sender.link)); // the other side may still have something on its way
    sl_link_close(&receiver.link);
    while (!sl_link_is_over(sender.link) && sl_now_ns() < deadline_ns) {
        turn();
    }
    assert_true(sl_link_is_over(sender.link) && sl_link_ended_by_peer(sender.link));
    assert_int_equal(sender.n_lost, 0); // it was its own wish
    assert_int_equal(n_arrived, 0);
}

// A link that has not begun has nothing to say good-bye about: it is over at once.
static void test_finish_before_the_beginning_is_the_end(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    assert_int_equal(getsockname(receiver.links->listener, (struct sockaddr *)&address, &bytes), 0);
    struct sl_link *link;
    assert_int_equal(sl_link_connect(sender.links, (struct sockaddr *)&address, bytes, &sender, &link, NULL), SL_OK);
    assert_false(sl_link_is_over(link));
    sl_link_finish(link);
    assert_true(sl_link_is_over(link));
    assert_false(sl_link_ended_by_peer(link));
    sl_link_finish(link); // again: nothing is left to end
    assert_true(sl_link_is_over(link));
    turn();
    assert_int_equal(sender.n_lost, 0);
    sl_link_close(&link);
}

// A peer with another protocol is lost, and the log says what was wrong with it.
static void test_stranger_is_lost_with_the_reason(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    assert_int_equal(getsockname(receiver.links->listener, (struct sockaddr *)&address, &bytes), 0);
    sl_link_close(&receiver.link);
    receiver.n_lost = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
    static const char words[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fd, words, sizeof words - 1, MSG_NOSIGNAL), sizeof words - 1);
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    while (receiver.n_lost == 0 && sl_now_ns() < deadline_ns) {
        sl_links_progress(receiver.links);
    }
    assert_int_equal(receiver.n_lost, 1);
    assert_int_equal(n_arrived, 0);
    assert_non_null(
        strstr(receiver.text, strcmp(kind, "tls") == 0 ? "http request" : "the received data is not a frame"));
    assert_int_equal(receiver.lost, strcmp(kind, "tls") == 0 ? SL_ERR_PEER_LOST : SL_ERR_PEER_CORRUPT);
    close(fd);
}

// Operations under way when a link is closed end before close returns; later ones end at once.
static void test_close_ends_what_is_under_way(void **state) {
    (void)state;
    for (int i = 0; i < N_FRAMES; i++) {
        make_frame(i);
        sl_link_send(sender.link, &frames[i].send);
    }
    assert_int_equal(frames[N_FRAMES - 1].n_done, 0);
    sl_link_close(&sender.link);
    assert_null(sender.link);
    assert_int_equal(frames[N_FRAMES - 1].n_done, 1);
    assert_int_equal(frames[N_FRAMES - 1].status, SL_ERR_CANCELLED);
    assert_int_equal(sender.n_lost, 0);
}

int main(int argc, char **argv) {
    kind = argc > 1 ? argv[1] : "tcp";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frames_of_many_parts_survive_being_written_in_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_finish_is_orderly, setup, teardown),
        cmocka_unit_test_setup_teardown(test_finish_before_the_beginning_is_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stranger_is_lost_with_the_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_ends_what_is_under_way, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
