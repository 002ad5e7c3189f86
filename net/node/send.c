// SPDX-License-Identifier: Apache-2.0
#include "net/node/send.h"

#include "base/clock.h"

#define PIECE_BYTES ((size_t)4 << 20)
#define ASK_MS      50

static enum sl_status queue_pieces(struct sl_ship *ship, const struct sl_send *send, struct sl_error *err) {
    for (size_t at = 0; at < send->body_bytes; at += PIECE_BYTES) {
        size_t left = send->body_bytes - at;
        enum sl_status status =
            sl_ship_piece(ship, at, (const char *)send->body + at, left < PIECE_BYTES ? left : PIECE_BYTES);
        SL_FAIL_IF(status != SL_OK, err, status, "the destination does not take a capsule of %zu bytes: %s",
                   send->body_bytes, sl_status_text(status));
    }
    return SL_OK;
}

enum sl_status sl_send_finish(struct sl_ship **ship, const struct sl_send *send, struct sl_error *err) {
    enum sl_status status = sl_ship_end(*ship, send->header, send->header_bytes, err);
    while (status == SL_OK && (status = sl_ship_await(*ship, sl_deadline_in_ms(ASK_MS), err)) == SL_AGAIN) {
        status =
            !send->go_on || send->go_on(send->arg) ? SL_OK : sl_fail(err, SL_ERR_CANCELLED, "shipping was given up");
    }
    sl_ship_close(ship);
    return status;
}

enum sl_status sl_send_capsule(struct sl_fabric *fabric, const struct sl_send *send, struct sl_error *err) {
    struct sl_ship *ship;
    SL_TRY(sl_ship_open(fabric, send->destination->ticket.data, send->destination->ticket.len, send->deadline_ns, &ship,
                        err));
    SL_TRY_OR(queue_pieces(ship, send, err), sl_ship_close(&ship));
    return sl_send_finish(&ship, send, err);
}
