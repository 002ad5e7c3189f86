// SPDX-License-Identifier: Apache-2.0
// Purpose: a capsule that is shipped while it is being made: layer by layer, each as soon as it is final.
#pragma once

#include <stdatomic.h>

#include "fabric/fabric.h"
#include "kvcache/session.h"

struct sl_outbound {
    struct sl_ship *ship;         // not owned
    _Atomic size_t shipped_bytes; // handed to the ship: where the next layer goes. Any thread may look
};

// The next layer: its pages go to the ship from where they lie and must stay until the ship is finished. Statuses of
// sl_ship_piece().
enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_session *session, int layer);
