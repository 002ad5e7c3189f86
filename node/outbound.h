// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a capsule that is shipped while it is being made: layer by layer, each as soon as it is final.
 *
 * Design: where the host reaches the pages, they are shipped from where they lie. From a device with memory of its own layers
 *         are copied into a block of staging memory, behind the computation; each goes to the ship when it has come down.
 *         Where there is memory that capsules leave from straight (direct.h), layers are collected there with their digests, and the
 *         ship puts them from where they are. Whether it can is known when its receiver has answered: if not, what is there comes
 *         down, and the rest of this capsule is staged.
 *
 *     STAGED      down from the device, as above
 *     UNDECIDED   collected; the ship has not said              -- decide() --> STRAIGHT or STAGED
 *     STRAIGHT    handed to the ship with digests
 */
#pragma once

#include <stdatomic.h>

#include "fabric/fabric.h"
#include "node/ledger.h"
#include "runtime/transfer.h"

enum sl_outbound_way { SL_OUTBOUND_STAGED, SL_OUTBOUND_UNDECIDED, SL_OUTBOUND_STRAIGHT };

struct sl_outbound {
    struct sl_ship *ship;         // not owned
    _Atomic size_t shipped_bytes; // handed to the ship. Any thread may look

    // Of a device with memory of its own:
    struct sl_arena *staging; // NULL: pages lie where the ship can read them
    char *body;               // [room_bytes] of staging
    size_t room_bytes, body_bytes;
    struct {
        struct sl_mark down; // the layer is in `body`, as far as
        size_t end;
    } layers[SL_MAX_LAYERS]; // [n_layers] on their way, the first n_handed with the ship
    int n_layers, n_handed;

    // Straight:
    enum sl_outbound_way way;
    struct sl_arena *outgoing; // NULL: there is none, or it has no room
    char *there;               // [room_bytes] of it
    uint64_t *digests;         // of staging memory: a layer's begin behind those of the layers before it
    size_t n_digests, n_digests_handed;
};

// Room for a body of up to `bytes` in staging memory, until sl_outbound_close(), and where there is room, too, in `outgoing`, which may
// be NULL. SL_ERR_EXHAUSTED: there is none in staging memory now.
enum sl_status sl_outbound_stage(struct sl_outbound *outbound, struct sl_ledger *staging, struct sl_arena *outgoing,
                                 const char *label, size_t bytes, struct sl_error *err);

// The next layer. Not staged: its pages go to the ship from where they lie and must stay until the ship is finished.
// Statuses of sl_ship_piece() and sl_transfer_layer_out().
enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                 const struct sl_session *session, int layer, struct sl_error *err);

// Hand on what has come down, or is collected; all of it where `all`, which waits.
enum sl_status sl_outbound_flush(struct sl_outbound *outbound, const struct sl_runtime *runtime, bool all,
                                 struct sl_error *err);

// The body in staging memory, where it now comes down if it went straight, is somebody else's to free, into the staging arena. NULL:
// nothing was staged, or the device has failed. Behind a flush of all, and the ship's end.
void *sl_outbound_take_body(struct sl_outbound *outbound, const struct sl_runtime *runtime);

// Behind the ship's end, or before its first layer: it can be staged anew. Waits for copies that are under way.
void sl_outbound_close(struct sl_outbound *outbound);
