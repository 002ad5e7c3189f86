// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ships a capsule while it is being made: layer by layer, each as soon as it is final.
 *
 * Design: where the host can read the pages, the ship reads them in place. From a device with its own memory, layers
 *         are copied into a block of staging memory, queued after the computation; each goes to the ship when its copy
 *         has completed. If there is memory from which capsules leave straight (direct.h), layers are collected there
 *         with their digests, and the ship puts them from there. Whether it can is known when its receiver has
 *         answered. If it cannot, the collected layers are copied to staging memory, and the rest of this capsule is
 *         staged.
 *
 *     STAGED      copied down from the device, as above
 *     UNDECIDED   collected; the ship has not said              -- decide() --> STRAIGHT or STAGED
 *     STRAIGHT    handed to the ship with digests
 */
#pragma once

#include <stdatomic.h>

#include "net/fabric/fabric.h"
#include "net/node/ledger.h"
#include "engine/runtime/transfer.h"

enum sl_outbound_way { SL_OUTBOUND_STAGED, SL_OUTBOUND_UNDECIDED, SL_OUTBOUND_STRAIGHT };

struct sl_outbound {
    struct sl_ship *ship;         // not owned
    _Atomic size_t shipped_bytes; // passed to the ship. Any thread may read it

    // Only for a device with its own memory:
    struct sl_arena *staging; // NULL: pages lie where the ship can read them
    char *body;               // [room_bytes] of staging
    size_t room_bytes, body_bytes;
    struct {
        struct sl_mark down; // the layer is in `body`, as far as
        size_t end;
    } layers[SL_MAX_LAYERS]; // [n_layers] being copied; the first n_handed are with the ship
    int n_layers, n_handed;

    // Only for the way without staging:
    enum sl_outbound_way way;
    struct sl_arena *outgoing; // NULL: there is none, or it has no room
    char *there;               // [room_bytes] of it
    uint64_t *digests;         // in staging memory: a layer's follow those of the layers before it
    size_t n_digests, n_digests_handed;
};

// Takes room for a body of up to `bytes` in staging memory, until sl_outbound_close(), and also in `outgoing` if there
// is room; outgoing may be NULL. SL_ERR_EXHAUSTED: staging memory has no room now.
enum sl_status sl_outbound_stage(struct sl_outbound *outbound, struct sl_ledger *staging, struct sl_arena *outgoing,
                                 const char *label, size_t bytes, struct sl_error *err);

// Ships the next layer. Not staged: the ship reads its pages in place, so they must stay until the ship is finished.
// Statuses of sl_ship_piece() and sl_transfer_layer_out().
enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                 const struct sl_session *session, int layer, struct sl_error *err);

// Passes to the ship what has been copied down, or is collected; with `all` everything, and waits for it.
enum sl_status sl_outbound_flush(struct sl_outbound *outbound, const struct sl_runtime *runtime, bool all,
                                 struct sl_error *err);

// Gives the body in staging memory to the caller, who frees it into the staging arena; a body that went straight is
// copied down first. NULL: nothing was staged, or the device has failed. Call after a flush of all, and after the
// ship's end.
void *sl_outbound_take_body(struct sl_outbound *outbound, const struct sl_runtime *runtime);

// Call after the ship's end, or before its first layer; then the capsule can be staged anew. Waits for copies that are
// under way.
void sl_outbound_close(struct sl_outbound *outbound);
