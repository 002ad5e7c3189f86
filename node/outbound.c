// SPDX-License-Identifier: Apache-2.0
// Layers into the ship. See outbound.h.
#include "node/outbound.h"

#include "kvcache/capsule.h"

// Pieces of a size that the fabric likes; a page is far smaller, a layer may be far larger.
#define MAX_PIECE_BYTES ((size_t)4 << 20)

enum sl_status sl_outbound_stage(struct sl_outbound *outbound, struct sl_ledger *staging, const char *label,
                                 size_t bytes, struct sl_error *err) {
    void *body;
    enum sl_status status = sl_ledger_take_block(staging, label, bytes, 0, &body, err);
    if (status == SL_OK) {
        outbound->staging = sl_ledger_arena(staging);
        outbound->body = body;
        outbound->room_bytes = bytes;
    }
    return status;
}

static enum sl_status ship_piece(void *arg, const struct sl_capsule_piece *piece) {
    return sl_ship_piece(arg, piece->offset, piece->data, piece->bytes);
}

static enum sl_status ship_from_pages(struct sl_outbound *outbound, const struct sl_session *session, int layer) {
    size_t offset = atomic_load(&outbound->shipped_bytes);
    enum sl_status status =
        sl_capsule_layer_pieces(session, layer, offset, MAX_PIECE_BYTES, ship_piece, outbound->ship);
    if (status == SL_OK) {
        atomic_store(&outbound->shipped_bytes, offset + sl_capsule_layer_bytes(session, layer));
    }
    return status;
}

enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                 const struct sl_session *session, int layer, struct sl_error *err) {
    if (outbound->staging == NULL) {
        enum sl_status status = sl_stream_wait(runtime->stream, err); // pages are read from where they lie
        return status == SL_OK ? ship_from_pages(outbound, session, layer) : status;
    }
    size_t begin = outbound->body_bytes, bytes = sl_capsule_layer_bytes(session, layer);
    if (bytes > outbound->room_bytes - begin) {
        return sl_fail(err, SL_ERR_INTERNAL, "layer %d of the capsule ends at byte %zu, planned were %zu in all", layer,
                       begin + bytes, outbound->room_bytes);
    }
    struct sl_mark down = {0};
    enum sl_status status = sl_transfer_layer_out(runtime, session, layer, outbound->body + begin, &down, err);
    if (status == SL_OK) {
        outbound->body_bytes = begin + bytes;
        outbound->layers[outbound->n_layers].down = down;
        outbound->layers[outbound->n_layers++].end = begin + bytes;
    } else {
        (void)sl_mark_wait(&down, NULL); // a copy that is worth nothing may be under way into the body
    }
    return status;
}

// Bytes of the body that have come down already.
static enum sl_status hand_on(struct sl_outbound *outbound, size_t end) {
    enum sl_status status = SL_OK;
    for (size_t at = atomic_load(&outbound->shipped_bytes); status == SL_OK && at < end;) {
        size_t bytes = end - at < MAX_PIECE_BYTES ? end - at : MAX_PIECE_BYTES;
        status = sl_ship_piece(outbound->ship, at, outbound->body + at, bytes);
        at += bytes;
        atomic_store(&outbound->shipped_bytes, status == SL_OK ? at : at - bytes);
    }
    return status;
}

enum sl_status sl_outbound_flush(struct sl_outbound *outbound, bool all, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && outbound->n_handed < outbound->n_layers) {
        const struct sl_mark *down = &outbound->layers[outbound->n_handed].down;
        if (!all && !sl_mark_reached(down)) {
            break;
        }
        status = sl_mark_wait(down, err);
        if (status == SL_OK) {
            status = hand_on(outbound, outbound->layers[outbound->n_handed++].end);
        }
    }
    return status;
}

void *sl_outbound_take_body(struct sl_outbound *outbound) {
    void *body = outbound->body;
    outbound->body = NULL;
    return body;
}

void sl_outbound_close(struct sl_outbound *outbound) {
    if (outbound->n_layers > 0) { // a device that has failed writes nothing any more either
        (void)sl_mark_wait(&outbound->layers[outbound->n_layers - 1].down, NULL);
    }
    if (outbound->staging != NULL) {
        sl_arena_free(outbound->staging, outbound->body);
    }
    outbound->staging = NULL;
    outbound->body = NULL;
    outbound->n_layers = 0;
}
