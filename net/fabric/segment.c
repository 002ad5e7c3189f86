// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cuts pieces into segments and sends them: by puts or by messages.
 *
 * Design: a segment is a contiguous range of the grant, at most SL_SEGMENT_MAX_BYTES, gathered from up to
 *         SL_SEGMENT_MAX_PARTS ranges of the sender's memory (pages of a capsule are scattered here, and arrive side by
 *         side). Its digest is chained over the parts:  d_0 = 0,  d_i = hash(part_i, seed d_{i-1}). Active message: the
 *         segment's bytes follow its header; several parts go as a scatter list.
 *         Put: then a flush, and only after that the segment is announced, so it can be verified at once. If the
 *         owner's memory is mapped into this process, a put is our own copy, part by part, each followed by its digest,
 *         which finds the bytes in the cache.
 * Invariants: ship->n_outstanding counts segments whose memory may still be read; a ship has ended only at 0.
 */
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/hash.h"
#include "base/log.h"
#include "net/fabric/core/huge.h"
#include "net/fabric/ship.h"

#define PACK_BELOW_BYTES    65536
#define AHEAD_BYTES         1024              // of a copy
#define FETCH_BYTES         8192              // of the next part
#define SMALL_BYTES         ((size_t)2 << 20) // of a ship
#define SHORT_SEGMENT_BYTES ((size_t)64 << 10)

static_assert(SL_DIGESTED_MAX_BYTES <= SL_SEGMENT_MAX_BYTES, "a piece that is digested is one segment");

struct parts {
    size_t offset, bytes;
    uint32_t n;
    struct sl_region *device; // one part, of its memory, with this digest; NULL: parts in host memory
    uint64_t digest;
    const uint8_t *data[SL_SEGMENT_MAX_PARTS];
    uint32_t part_bytes[SL_SEGMENT_MAX_PARTS];
};

static bool take_digested(struct sl_ship *ship, struct parts *parts) {
    const struct sl_piece *piece = &ship->taken.at[ship->cursor++];
    parts->n = 1;
    parts->offset = piece->offset;
    parts->bytes = piece->bytes;
    parts->data[0] = piece->data;
    parts->part_bytes[0] = (uint32_t)piece->bytes;
    parts->device = piece->device;
    parts->digest = piece->digest;
    return true;
}

/*
 * Small ships have short segments: the owner verifies a segment while the next one is on its way, and the last one when
 * nothing else is left to do.
 */
size_t sl_ship_segment_bytes(size_t granted_bytes) {
    return granted_bytes > SMALL_BYTES ? SL_SEGMENT_MAX_BYTES : SHORT_SEGMENT_BYTES;
}

// Takes the next segment's parts off the ship's pieces. False: there are none.
static bool gather(struct sl_ship *ship, struct parts *parts) {
    parts->n = 0;
    parts->bytes = 0;
    parts->device = NULL;
    if (ship->cursor < ship->taken.n && ship->taken.at[ship->cursor].device) {
        return take_digested(ship, parts);
    }
    while (ship->cursor < ship->taken.n && parts->n < SL_SEGMENT_MAX_PARTS && parts->bytes < ship->segment_bytes) {
        struct sl_piece *piece = &ship->taken.at[ship->cursor];
        if (parts->n == 0) {
            parts->offset = piece->offset;
        } else if (piece->device || piece->offset != parts->offset + parts->bytes) {
            break;
        }
        size_t n = piece->bytes < SL_PART_MAX_BYTES ? piece->bytes : SL_PART_MAX_BYTES;
        n = n < ship->segment_bytes - parts->bytes ? n : ship->segment_bytes - parts->bytes;
        parts->data[parts->n] = piece->data;
        parts->part_bytes[parts->n++] = (uint32_t)n;
        parts->bytes += n;
        piece->offset += n;
        piece->data += n;
        piece->bytes -= n;
        ship->cursor += piece->bytes == 0;
    }
    return parts->n > 0;
}

static struct sl_peer_send *create_send(struct sl_ship *ship, const struct parts *parts) {
    struct sl_wire_segment segment = {.key = {ship->ticket.head.generation, ship->id, ship->ticket.head.id, 0},
                                      .offset = parts->offset,
                                      .bytes = (uint32_t)parts->bytes,
                                      .n_parts = parts->n};
    uint8_t header[SL_SEGMENT_HEADER_BYTES(SL_SEGMENT_MAX_PARTS)];
    memcpy(header, &segment, sizeof segment);
    memcpy(header + sizeof segment, parts->part_bytes, parts->n * sizeof(uint32_t));
    struct sl_peer_send *send = sl_peer_send_create(ship->peer, header, SL_SEGMENT_HEADER_BYTES(parts->n));
    if (send) {
        send->arg = ship;
        send->bytes = parts->bytes;
    }
    return send;
}

static void set_digest(struct sl_peer_send *send, uint64_t digest) {
    memcpy(send->header + offsetof(struct sl_wire_segment, digest), &digest, sizeof digest);
}

// Fetches the first bytes of a part while the one before it is digested: pages are scattered, so the processor cannot
// know where the next one begins.
static void fetch_begin(const struct parts *parts, uint32_t i) {
    size_t bytes = i < parts->n ? parts->part_bytes[i] : 0;
    for (size_t at = 0; at < bytes && at < FETCH_BYTES; at += 64) {
        __builtin_prefetch(parts->data[i] + at, 0, 2);
    }
}

static uint64_t digest_of(const struct parts *parts) {
    uint64_t digest = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        fetch_begin(parts, i + 1);
        digest = sl_hash(parts->data[i], parts->part_bytes[i], digest);
    }
    return digest;
}

static void on_segment_done(struct sl_peer_send *send, enum sl_status status) {
    struct sl_ship *ship = send->arg;
    ship->n_outstanding--;
    ship->outstanding_bytes -= send->bytes;
    if (status == SL_OK) {
        atomic_fetch_add(&ship->acked_bytes, send->bytes);
    } else {
        sl_ship_fail(ship, status, sl_status_text(status));
    }
}

/*
 * Fault injection: sends a copy with one byte flipped, after the digest was taken. The copy replaces the parts and is
 * freed with the send.
 */
static bool corrupt(struct sl_peer_send *send, struct parts *parts) {
    uint8_t *copy = sl_fabric_take_buffer(send->peer->fabric);
    if (!copy) {
        return false;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        memcpy(copy + at, parts->data[i], parts->part_bytes[i]);
        parts->data[i] = copy + at;
        at += parts->part_bytes[i];
    }
    copy[parts->bytes / 2] ^= 0x40;
    send->buffer = copy;
    return true;
}

// ---- active messages -----------------------------------------------------------------------------------------------

// Merges parts that are adjacent in the source. Returns the number of entries, 0 without memory.
static size_t scatter_list(const struct parts *parts, struct iovec **iov_out) {
    struct iovec *iov = malloc(parts->n * sizeof *iov);
    size_t n = 0;
    for (uint32_t i = 0; iov && i < parts->n; i++) {
        if (n > 0 && (const uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == parts->data[i]) {
            iov[n - 1].iov_len += parts->part_bytes[i];
        } else {
            iov[n++] = (struct iovec){(void *)(uintptr_t)parts->data[i], parts->part_bytes[i]};
        }
    }
    *iov_out = iov;
    return n;
}

// Packs small parts: a scatter list of them costs more than to copy bytes that the digest has just read.
static bool pack(struct sl_peer_send *send, const struct parts *parts) {
    uint8_t *packed = send->buffer == NULL ? sl_fabric_take_buffer(send->peer->fabric) : NULL;
    for (uint32_t i = 0, at = 0; packed && i < parts->n; i++) {
        memcpy(packed + at, parts->data[i], parts->part_bytes[i]);
        at += parts->part_bytes[i];
    }
    if (packed) {
        send->buffer = packed;
    }
    return packed != NULL;
}

static void send_message(struct sl_ship *ship, struct sl_peer_send *send, struct parts *parts) {
    size_t n = scatter_list(parts, &send->iov);
    if (n == 0) {
        on_segment_done(send, SL_ERR_EXHAUSTED);
        sl_peer_send_free(send);
        return;
    }
    // The link writes from a list; for UCX small parts cost more in a list than in a copy. Without memory the list is
    // used.
    if (n > 1 && ship->peer->ep && parts->bytes / n < PACK_BELOW_BYTES && pack(send, parts)) {
        send->iov[0] = (struct iovec){send->buffer, parts->bytes};
        n = 1;
    }
    send->n_iov = n > 1 ? n : 0;
    sl_peer_send_start(send, SL_WIRE_SEGMENT, send->iov[0].iov_base, parts->bytes);
}

// ---- puts ------------------------------------------------------------------------------------------------------

// A segment that is being put; it is announced after the flush.
struct put {
    struct sl_peer_op op;
    struct sl_ship *ship;
    struct sl_peer_send *announcement;
    struct sl_region *device; // whose memory is put from; NULL: host memory
    size_t n_pending;         // put requests, the flush, and the function that starts them
    bool flushing;
    enum sl_status status;
};

/*
 * Handles a failed put from device memory whose peer is still there: the check at start was wrong. This ship ends as if
 * its receiver were lost, so that the job goes on; the next ones are staged.
 */
static void blame_device(struct put *put, enum sl_status status) {
    if (!atomic_exchange(&put->device->failed, true)) {
        sl_log_warn("fabric", "a put from the device's memory failed (%s): what travels is staged from now on",
                    sl_status_text(status));
    }
    put->status = SL_ERR_PEER_LOST;
}

static void put_step(struct put *put, enum sl_status status) {
    struct sl_peer *peer = put->op.peer;
    if (status != SL_OK && put->status == SL_OK) {
        put->status = status;
        if (put->device && peer->state == PEER_UP && status != SL_ERR_PEER_LOST && status != SL_ERR_CANCELLED) {
            blame_device(put, status);
        }
    }
    if (--put->n_pending > 0) {
        return;
    }
    if (put->status == SL_OK && !put->flushing && peer->state != PEER_CLOSING) {
        put->flushing = true;
        put->n_pending = 1;
        enum sl_status flushed = sl_peer_flush(&put->op);
        if (flushed != SL_INPROGRESS) {
            put_step(put, flushed);
        }
        return;
    }
    struct sl_peer_send *send = put->announcement;
    if (put->status == SL_OK && put->flushing) {
        sl_peer_send_start(send, SL_WIRE_SEGMENT, NULL, 0);
    } else {
        on_segment_done(send, put->status == SL_OK ? SL_ERR_CANCELLED : put->status);
        sl_peer_send_free(send);
    }
    free(put);
}

static void on_put(struct sl_peer_op *op, enum sl_status status) {
    put_step(SL_CONTAINER(op, struct put, op), status);
}

static void put_range(struct put *put, size_t offset, const uint8_t *data, size_t bytes) {
    const struct sl_ship *ship = put->ship;
    put->n_pending++;
    bool failing = put->device && ship->ships->device_put > 0 && --ship->ships->device_put == 0;
    enum sl_status status =
        failing ? SL_ERR_IO : sl_peer_put(&put->op, ship->region, data, bytes, ship->address + offset);
    if (status != SL_INPROGRESS) {
        put_step(put, status);
    }
}

/*
 * Copies with non-temporal stores if the processor has them: the owner reads the bytes only after many more have been
 * written, and an ordinary store would first fetch the line that it overwrites. end_copies() orders them. Fetches ahead
 * of itself, because the processor does not look beyond 4 KiB, and pages of a capsule are not much longer. What stays in
 * the caches until the owner reads it, a small ship, is copied by send_copies() itself.
 */
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t bytes) {
    size_t at = 0;
#if defined(__SSE2__)
    for (; ((uintptr_t)to & 15) == 0 && at + 64 <= bytes; at += 64) {
        const __m128i *in = (const __m128i *)(const void *)(from + at);
        __m128i *out = (__m128i *)(void *)(to + at);
        __builtin_prefetch(from + (at + AHEAD_BYTES < bytes ? at + AHEAD_BYTES : at));
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
#endif
    memcpy(to + at, from + at, bytes - at);
}

// Makes what was copied visible before the announcement: UCX orders ordinary stores before that, but not these.
static void end_copies(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Has the memory that is sent from joined into huge pages. One part stands for the others: there are as many segments as
// it takes.
static void want_huge(const struct sl_ship *ship, const struct parts *parts) {
    const struct sl_region *region = sl_fabric_region(ship->fabric, parts->data[0], parts->part_bytes[0]);
    if (region) {
        sl_huge_want(region->joining, parts->data[0], parts->part_bytes[0]);
    }
}

static void send_copies(struct sl_ship *ship, struct sl_peer_send *send, const struct parts *parts, bool digested) {
    uint8_t *to = (uint8_t *)((uintptr_t)ship->address + (uintptr_t)ship->region->mapping) + parts->offset;
    uint64_t digest = 0;
    bool small = ship->ticket.head.bytes <= SMALL_BYTES;
    want_huge(ship, parts);
    for (uint32_t i = 0; i < parts->n; i++) {
        if (small) {
            memcpy(to, parts->data[i], parts->part_bytes[i]);
        } else {
            copy_past_caches(to, parts->data[i], parts->part_bytes[i]);
        }
        to += parts->part_bytes[i];
        fetch_begin(parts, i + 1);
        if (!digested) {
            digest = sl_hash(parts->data[i], parts->part_bytes[i], digest);
        }
    }
    end_copies();
    if (!digested) {
        set_digest(send, digest);
    }
    sl_peer_send_start(send, SL_WIRE_SEGMENT, NULL, 0);
}

static void send_puts(struct sl_ship *ship, struct sl_peer_send *send, const struct parts *parts, bool digested) {
    struct put *put = calloc(1, sizeof *put);
    if (!put) {
        on_segment_done(send, SL_ERR_EXHAUSTED);
        sl_peer_send_free(send);
        return;
    }
    *put = (struct put){{ship->peer, on_put},    .ship = ship,   .announcement = send,
                        .device = parts->device, .n_pending = 1, .status = SL_OK};
    uint64_t digest = 0;
    size_t offset = parts->offset;
    for (uint32_t i = 0; i < parts->n; i++) {
        if (!digested) {
            digest = sl_hash(parts->data[i], parts->part_bytes[i], digest);
        }
        put_range(put, offset, parts->data[i], parts->part_bytes[i]);
        offset += parts->part_bytes[i];
    }
    if (!digested) {
        set_digest(send, digest);
    }
    put_step(put, SL_OK);
}

// ---- both ------------------------------------------------------------------------------------------------------

bool sl_ship_send_segment(struct sl_ship *ship) {
    struct parts parts;
    if (ship->stalled || !gather(ship, &parts)) {
        return false;
    }
    struct sl_ships *ships = ship->ships;
    if (ships->stall > 0 && --ships->stall == 0) {
        ship->stalled = true;
        return false;
    }
    struct sl_peer_send *send = create_send(ship, &parts);
    if (!send) {
        sl_ship_fail(ship, SL_ERR_EXHAUSTED, "the sender has no memory for a segment");
        return false;
    }
    send->done = on_segment_done;
    ship->n_outstanding++;
    ship->outstanding_bytes += parts.bytes;
    ship->n_segments++;
    ship->body_bytes += parts.bytes;
    bool corrupting = ships->corrupt > 0 && --ships->corrupt == 0;
    if (parts.device) { // the host cannot flip a byte of it
        set_digest(send, parts.digest ^ (corrupting ? 1 : 0));
        send_puts(ship, send, &parts, true);
        return true;
    }
    if (corrupting || !ship->region) {
        set_digest(send, digest_of(&parts));
    }
    if (corrupting && !corrupt(send, &parts)) {
        corrupting = false;
    }
    if (ship->region && ship->region->mapping != 0) {
        send_copies(ship, send, &parts, corrupting);
    } else if (ship->region) {
        send_puts(ship, send, &parts, corrupting);
    } else {
        send_message(ship, send, &parts);
    }
    return true;
}
