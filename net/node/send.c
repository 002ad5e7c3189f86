// SPDX-License-Identifier: Apache-2.0
// Opens a ship, queues pieces, waits, sends the header. See send.h.
#include "net/node/send.h"

#include "base/clock.h"

#define PIECE_BYTES ((size_t)4 << 20)
#define POLL_MS     2
#define ASK_MS      50

static enum sl_status queue_pieces(struct sl_ship *ship, const struct sl_send *send, struct sl_error *err) {
    for (size_t at = 0; at < send->body_bytes; at += PIECE_BYTES) {
        size_t left = send->body_bytes - at;
        enum sl_status status =
            sl_ship_piece(ship, at, (const char *)send->body + at, left < PIECE_BYTES ? left : PIECE_BYTES);
        if (status != SL_OK) {
            return sl_fail(err, status, "the destination does not take a capsule of %zu bytes: %s", send->body_bytes,
                           sl_status_text(status));
        }
    }
    return SL_OK;
}

enum sl_status sl_send_finish(struct sl_ship **ship, const struct sl_send *send, struct sl_error *err) {
    int64_t ask_ns = sl_deadline_in_ms(ASK_MS);
    enum sl_status status = SL_OK, ship_status = SL_OK;
    while (status == SL_OK && sl_ship_progress(*ship, &ship_status) < send->body_bytes && ship_status >= 0) {
        if (send->go_on && sl_now_ns() >= ask_ns) {
            status = send->go_on(send->arg) ? SL_OK : sl_fail(err, SL_ERR_CANCELLED, "shipping was given up");
            ask_ns = sl_deadline_in_ms(ASK_MS);
        }
        sl_sleep_ms(POLL_MS);
    }
    if (status == SL_OK) {
        status = sl_ship_finish(*ship, send->header, send->header_bytes, err); // returns why the ship has failed
    }
    sl_ship_close(ship);
    return status;
}

enum sl_status sl_send_capsule(struct sl_fabric *fabric, const struct sl_send *send, struct sl_error *err) {
    struct sl_ship *ship;
    enum sl_status status = sl_ship_open(fabric, send->destination->ticket.data, send->destination->ticket.len,
                                         send->deadline_ns, &ship, err);
    if (status == SL_OK) {
        status = queue_pieces(ship, send, err);
        if (status != SL_OK) {
            sl_ship_close(&ship);
            return status;
        }
        status = sl_send_finish(&ship, send, err);
    }
    return status;
}
