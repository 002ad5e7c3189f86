// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where the windows of a peer lie, for reads without a message: asked of the peer, once for each window, and kept as long as
 *          the connection. For fetch.c.
 *
 *     unknown --find: LOOK--> ASKED --LOOK_REPLY: hear--> a place | by messages | refused
 *
 * Threads: the progress thread.
 */
#pragma once

#include "fabric/core/core.h"

#define SL_PLACES_MAX 64 // few sessions are read at a time: the oldest makes room, and is asked again

struct sl_seen_place {
    uint64_t generation, bytes; // of the window, as its ticket says; generation 0: free
    uint32_t window_id;
    enum { SL_SEEN_ASKED, SL_SEEN_PLACE, SL_SEEN_BY_MESSAGE, SL_SEEN_REFUSED } state;
    enum sl_status status; // REFUSED
    struct sl_remote_region *region;
    uint64_t address;
};

struct sl_places { // all zero at the beginning
    struct sl_seen_place at[SL_PLACES_MAX];
    uint32_t n; // ever asked
};

/*
 * How a window is reached: *region_out and *address_out, of its base there; region NULL: by messages. SL_AGAIN: the peer is being
 * asked. SL_ERR_PEER_STALE: it does not know the window. SL_ERR_PEER_CORRUPT: its answer leads nowhere.
 */
enum sl_status sl_places_find(struct sl_places *places, struct sl_peer *peer, const struct sl_wire_ticket *window,
                              struct sl_remote_region **region_out, uint64_t *address_out, struct sl_error *err);
void sl_places_hear(struct sl_places *places, struct sl_peer *peer, const struct sl_message *look_reply);
