// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the addresses of a peer's windows, for reads without a message: asked of the peer once per window, and kept
 *          as long as the connection. For fetch.c.
 *
 *     unknown --find: LOOK--> ASKED --LOOK_REPLY: hear--> an address | by messages | refused
 *
 * Threads: the progress thread.
 */
#pragma once

#include "net/fabric/core/core.h"

#define SL_PLACES_MAX 64 // few sessions are read at a time: the oldest entry is replaced, and asked for again

struct sl_seen_place {
    uint64_t generation, bytes; // of the window, from its ticket; generation 0: free
    uint32_t window_id;
    enum { SL_SEEN_ASKED, SL_SEEN_PLACE, SL_SEEN_BY_MESSAGE, SL_SEEN_REFUSED } state;
    enum sl_status status; // of REFUSED
    struct sl_remote_region *region;
    uint64_t address;
};

struct sl_places { // starts as zeros
    struct sl_seen_place at[SL_PLACES_MAX];
    uint32_t n; // asked so far
};

/*
 * Returns how to reach a window: *region_out and the address *address_out of its base there; region NULL: by messages.
 * SL_AGAIN: the peer is being asked. SL_ERR_PEER_STALE: it does not know the window. SL_ERR_PEER_CORRUPT: its answer is
 * invalid.
 */
enum sl_status sl_places_find(struct sl_places *places, struct sl_peer *peer, const struct sl_wire_ticket *window,
                              struct sl_remote_region **region_out, uint64_t *address_out, struct sl_error *err);
void sl_places_hear(struct sl_places *places, struct sl_peer *peer, const struct sl_message *look_reply);
