// SPDX-License-Identifier: Apache-2.0
// Pieces of a layer into the ship. See outbound.h.
#include "node/outbound.h"

#include "kvcache/capsule.h"

// Pieces of a size that the fabric likes; a page is far smaller, a layer may be far larger.
#define MAX_PIECE_BYTES (4u << 20)

static enum sl_status ship_piece(void *arg, const struct sl_capsule_piece *piece) {
    return sl_ship_piece(arg, piece->offset, piece->data, piece->bytes);
}

enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_session *session, int layer) {
    size_t offset = atomic_load(&outbound->shipped_bytes);
    enum sl_status status =
        sl_capsule_layer_pieces(session, layer, offset, MAX_PIECE_BYTES, ship_piece, outbound->ship);
    if (status == SL_OK) {
        atomic_store(&outbound->shipped_bytes, offset + sl_capsule_layer_bytes(session, layer));
    }
    return status;
}
