// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes frames to the socket and reads them from it.
 *
 * Design: writing gathers the queue into one system call, as far as the kernel takes it. With TLS it writes a batch of
 *         records, whose content counts as written when the kernel has all of them. Reading looks for prefix and header
 *         in the link's buffer. Data longer than SL_LINK_WHOLE_MAX goes to the address that the frame's receiver gives:
 *         first the part that is already in the buffer, then straight from the socket. Reads of one link per turn are
 *         bounded, so that other links and the clock get their turn.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/fabric/link/link_internal.h"

#define N_PARTS     256                // per system call
#define SHARE_BYTES ((size_t)1 << 20)  // read from one link per turn
#define DROP_BYTES  ((size_t)16 << 10) // per read, of dropped data
#define LONG_BYTES  ((size_t)12 << 10) // of a part: copying it beside others costs more than its own record

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is the memory format of little endian");
static_assert(sizeof(struct sl_link_prefix) == sizeof((struct sl_link_send *)NULL)->prefix, "wire");
static_assert(sizeof(struct sl_link_prefix) + SL_LINK_HEADER_MAX + SL_LINK_WHOLE_MAX <= SL_LINK_BUFFER_BYTES,
              "a frame that is handed over whole fits");

// ---- sending ---------------------------------------------------------------------------------------------------------

static void finish(struct sl_link *link, enum sl_status status) {
    struct sl_link_send *send = link->first;
    link->first = send->next;
    if (!link->first) {
        link->last = &link->first;
    }
    send->done(send, status);
}

static size_t total(const struct sl_link_send *send) {
    return sizeof send->prefix + send->header_bytes + send->bytes;
}

// Lists the unsent rest of a send, from iov[n] on. Returns the new n.
static size_t list(const struct sl_link_send *send, struct iovec *iov, size_t n) {
    const size_t ends[] = {sizeof send->prefix, sizeof send->prefix + send->header_bytes};
    if (send->n_written < ends[0]) {
        iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)send->prefix + send->n_written, ends[0] - send->n_written};
    }
    if (send->n_written < ends[1] && n < N_PARTS && send->header_bytes > 0) {
        size_t at = send->n_written > ends[0] ? send->n_written - ends[0] : 0;
        iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)send->header + at, send->header_bytes - at};
    }
    size_t at = send->part_at;
    for (size_t part = send->part; part < send->n_parts && n < N_PARTS; part++, at = 0) {
        iov[n++] = (struct iovec){(uint8_t *)send->parts[part].iov_base + at, send->parts[part].iov_len - at};
    }
    return n;
}

static void advance(struct sl_link *link, size_t bytes) {
    while (link->first && link->state == LINK_OPEN) {
        struct sl_link_send *send = link->first;
        size_t left = total(send) - send->n_written, step = bytes < left ? bytes : left;
        size_t head = sizeof send->prefix + send->header_bytes;
        size_t of_head = send->n_written < head ? head - send->n_written : 0;
        size_t of_parts = step > of_head ? step - of_head : 0;
        send->n_written += step;
        bytes -= step;
        while (of_parts > 0) {
            size_t rest = send->parts[send->part].iov_len - send->part_at;
            size_t n = of_parts < rest ? of_parts : rest;
            of_parts -= n;
            send->part_at += n;
            if (n == rest) {
                send->part++;
                send->part_at = 0;
            }
        }
        if (send->n_written < total(send)) {
            return;
        }
        finish(link, SL_OK);
    }
}

// Lists the queue as one list. Returns the number of its parts.
static size_t list_all(const struct sl_link *link, struct iovec *iov) {
    size_t n = 0;
    for (const struct sl_link_send *send = link->first; send && n < N_PARTS; send = send->next) {
        n = list(send, iov, n);
    }
    return n;
}

// Makes one system call. False: the kernel has no more room.
static bool write_clear(struct sl_link *link) {
    struct iovec iov[N_PARTS];
    size_t n = list_all(link, iov), bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += iov[i].iov_len;
    }
    const struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t written = sendmsg(link->fd, &message, MSG_NOSIGNAL);
    if (written >= 0) {
        advance(link, (size_t)written);
        return (size_t)written == bytes;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return false;
    }
    if (errno != EINTR) {
        sl_link_lose_errno(link, "cannot send", errno);
    }
    return true;
}

struct rest {
    struct iovec *part, *end;
};

static struct iovec take(struct rest *rest, size_t most) {
    struct iovec *part = rest->part;
    struct iovec taken = {part->iov_base, part->iov_len < most ? part->iov_len : most};
    *part = (struct iovec){(uint8_t *)part->iov_base + taken.iov_len, part->iov_len - taken.iov_len};
    rest->part += part->iov_len == 0;
    return taken;
}

// Returns the next record: part of a long part in place, or short parts copied side by side, up to the next long one.
static struct iovec take_record(struct rest *rest, uint8_t *record) {
    if (rest->part->iov_len >= LONG_BYTES) {
        return take(rest, SL_LINK_RECORD_BYTES);
    }
    size_t n = 0;
    while (n < SL_LINK_RECORD_BYTES && rest->part < rest->end && rest->part->iov_len < LONG_BYTES) {
        struct iovec taken = take(rest, SL_LINK_RECORD_BYTES - n);
        memcpy(record + n, taken.iov_base, taken.iov_len);
        n += taken.iov_len;
    }
    return (struct iovec){record, n};
}

// Writes the queue as records into TLS's buffer, which is empty.
static void seal(struct sl_link *link) {
    struct iovec iov[N_PARTS];
    struct rest rest = {iov, iov + list_all(link, iov)};
    while (rest.part < rest.end && link->n_sealed + SL_LINK_RECORD_BYTES <= SL_TLS_BATCH_BYTES) {
        struct iovec record = take_record(&rest, link->record);
        if (!sl_tls_write(link->ssl, &link->n_records, record.iov_base, record.iov_len)) {
            sl_link_lose(link, SL_ERR_PEER_LOST, "cannot send: TLS is over");
            return;
        }
        link->n_sealed += record.iov_len;
    }
}

// Flushes the sealed records to the kernel; then seals the next ones. False: the kernel has no more room.
static bool write_tls(struct sl_link *link) {
    enum sl_status status = sl_tls_flush(link->ssl);
    if (status == SL_AGAIN) {
        return false;
    }
    if (status != SL_OK) {
        sl_link_lose_errno(link, "cannot send", errno);
        return false;
    }
    size_t bytes = link->n_sealed;
    link->n_sealed = 0;
    advance(link, bytes);
    if (link->state == LINK_OPEN && link->first) {
        seal(link);
    }
    return true;
}

void sl_link_write(struct sl_link *link) {
    if (link->writing) { // a send's done() may send another: the loop below handles it
        return;
    }
    link->writing = true;
    bool room = true;
    while (link->state == LINK_OPEN && link->first && room) {
        room = link->ssl ? write_tls(link) : write_clear(link);
    }
    link->writing = false;
    bool waits = link->state == LINK_OPEN && link->first != NULL;
    if (link->state == LINK_OPEN && waits != link->wants_out) {
        sl_link_watch(link, waits);
    }
}

void sl_link_send(struct sl_link *link, struct sl_link_send *send) {
    send->next = NULL;
    send->bytes = send->n_written = send->part = send->part_at = 0;
    for (size_t i = 0; i < send->n_parts; i++) {
        send->bytes += send->parts[i].iov_len;
    }
    assert(send->header_bytes <= SL_LINK_HEADER_MAX && send->bytes <= SL_LINK_DATA_MAX);
    const struct sl_link_prefix prefix = {SL_LINK_MAGIC, (uint16_t)send->id, (uint32_t)send->header_bytes, send->bytes};
    memcpy(send->prefix, &prefix, sizeof prefix);
    if (link->state == LINK_LOST) {
        send->done(send, link->status);
        return;
    }
    bool first = link->first == NULL;
    *link->last = send;
    link->last = &send->next;
    if (first && link->state == LINK_OPEN) { // else it waits for the connection, or for room in the kernel
        sl_link_write(link);
    }
}

// ---- receiving -------------------------------------------------------------------------------------------------------

static void received(struct sl_link *link, enum sl_status status) {
    sl_link_received_fn done = link->received;
    link->received = NULL;
    link->to = NULL;
    if (done) {
        done(link->received_arg, status, status == SL_OK ? link->bytes : 0);
    }
}

void sl_link_receive(struct sl_link *link, void *to, sl_link_received_fn done, void *arg) {
    assert(link->received == NULL);
    link->to = to;
    link->received = done;
    link->received_arg = arg;
    if (link->state == LINK_LOST) {
        received(link, link->status);
    }
}

void sl_link_end_traffic(struct sl_link *link, enum sl_status status) {
    while (link->first) {
        finish(link, status);
    }
    received(link, status);
}

// Reads from the socket. 0: no data now, or the link is lost.
static size_t read_some(struct sl_link *link, void *to, size_t bytes) {
    if (link->ssl) {
        enum sl_status status = SL_OK;
        size_t got = sl_tls_read(link->ssl, to, bytes, &status);
        if (status != SL_OK) {
            link->by_peer = status == SL_ERR_PEER_LOST;
            sl_link_lose(link, status,
                         link->by_peer ? "the connection was closed"
                                       : "the received data is not TLS of this connection");
        }
        return got;
    }
    ssize_t n;
    do {
        n = recv(link->fd, to, bytes, 0);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        return (size_t)n;
    }
    if (n == 0) {
        link->by_peer = true;
        sl_link_lose(link, SL_ERR_PEER_LOST, "the connection was closed");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        link->by_peer = errno == ECONNRESET;
        sl_link_lose_errno(link, "cannot receive", errno);
    }
    return 0;
}

void sl_link_drop(struct sl_link *link) {
    uint8_t dropped[DROP_BYTES];
    for (size_t share = 0; link->state == LINK_ENDING && share < SHARE_BYTES; share += sizeof dropped) {
        ssize_t n = recv(link->fd, dropped, sizeof dropped, 0); // below TLS: the bytes are dropped unread
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (n == 0 || (n < 0 && errno != EINTR)) {
            link->by_peer = n == 0 || errno == ECONNRESET;
            sl_link_lose(link, SL_ERR_PEER_LOST, "the other side has ended, too");
        }
    }
}

// Reads the pending data of a frame from the buffer or the socket. Returns how much came.
static size_t read_data(struct sl_link *link) {
    size_t n = link->n_buffered - link->n_taken;
    n = n < link->n_missing ? n : (size_t)link->n_missing;
    if (n > 0) {
        if (link->to) {
            memcpy(link->to, link->buffer + link->n_taken, n);
        }
        link->n_taken += n;
    } else if (link->to) {
        n = read_some(link, link->to, (size_t)link->n_missing < SHARE_BYTES ? (size_t)link->n_missing : SHARE_BYTES);
    } else {
        uint8_t dropped[DROP_BYTES];
        n = read_some(link, dropped, link->n_missing < sizeof dropped ? (size_t)link->n_missing : sizeof dropped);
    }
    if (n > 0) {
        link->to = link->to ? link->to + n : NULL;
        link->n_missing -= n;
        if (link->n_missing == 0) {
            received(link, SL_OK);
        }
    }
    return n;
}

static const char *fault_of(const struct sl_link *link, const struct sl_link_prefix *prefix) {
    if (prefix->magic != SL_LINK_MAGIC) {
        return "the received data is not a frame";
    }
    if (prefix->header_bytes > SL_LINK_HEADER_MAX || prefix->data_bytes > SL_LINK_DATA_MAX) {
        return "a frame is longer than any may be";
    }
    return !link->met && prefix->data_bytes > 0 ? "data came before it said who it is" : NULL;
}

/*
 * Handles the next frame of the buffer, if all bytes that are needed at once are there. False: more must come first, or
 * the link is lost or closed.
 */
static bool take_frame(struct sl_link *link) {
    const uint8_t *at = link->buffer + link->n_taken;
    size_t there = link->n_buffered - link->n_taken;
    struct sl_link_prefix prefix;
    if (there < sizeof prefix) {
        return false;
    }
    memcpy(&prefix, at, sizeof prefix);
    const char *fault = fault_of(link, &prefix);
    if (fault) {
        sl_link_lose(link, SL_ERR_PEER_CORRUPT, fault);
        return false;
    }
    size_t head = sizeof prefix + prefix.header_bytes;
    bool whole = prefix.data_bytes <= SL_LINK_WHOLE_MAX;
    if (there < head + (whole ? prefix.data_bytes : 0)) {
        return false;
    }
    struct sl_link_frame frame = {.id = prefix.id,
                                  .header = at + sizeof prefix,
                                  .header_bytes = prefix.header_bytes,
                                  .data = whole ? at + head : NULL,
                                  .bytes = (size_t)prefix.data_bytes};
    link->n_taken += head + (whole ? frame.bytes : 0);
    if (!whole) {
        link->bytes = frame.bytes;
        link->n_missing = prefix.data_bytes;
    }
    link->links->events.on_frame(link->owner, link, &frame);
    return link->state == LINK_OPEN;
}

static size_t fill(struct sl_link *link) {
    if (link->n_taken > 0) {
        memmove(link->buffer, link->buffer + link->n_taken, link->n_buffered - link->n_taken);
        link->n_buffered -= link->n_taken;
        link->n_taken = 0;
    }
    size_t n = read_some(link, link->buffer + link->n_buffered, SL_LINK_BUFFER_BYTES - link->n_buffered);
    link->n_buffered += n;
    return n;
}

bool sl_link_read(struct sl_link *link) {
    size_t share = 0;
    while (link->state == LINK_OPEN && share < SHARE_BYTES) {
        size_t n = 1; // of a frame in the buffer
        if (link->n_missing > 0) {
            n = read_data(link);
        } else if (!take_frame(link)) {
            n = link->state == LINK_OPEN ? fill(link) : 0;
        }
        if (n == 0) {
            break;
        }
        share += n;
    }
    link->more = link->state == LINK_OPEN && share >= SHARE_BYTES;
    link->links->busy |= link->more;
    return share > 0;
}
