// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/core/places.h"

#include <string.h>

#include "base/log.h"

static struct sl_seen_place *find(struct sl_places *places, uint64_t generation, uint32_t window_id) {
    for (size_t i = 0; i < SL_PLACES_MAX; i++) {
        if (places->at[i].generation == generation && places->at[i].window_id == window_id) {
            return &places->at[i];
        }
    }
    return NULL;
}

static void ask(struct sl_places *places, struct sl_peer *peer, const struct sl_wire_ticket *window) {
    struct sl_wire_look look = {window->generation, window->secret, window->id, 0};
    places->at[places->n++ % SL_PLACES_MAX] =
        (struct sl_seen_place){.generation = window->generation, .bytes = window->bytes, .window_id = window->id};
    sl_peer_tell(peer, SL_WIRE_LOOK, &look, sizeof look);
}

enum sl_status sl_places_find(struct sl_places *places, struct sl_peer *peer, const struct sl_wire_ticket *window,
                              struct sl_remote_region **region_out, uint64_t *address_out, struct sl_error *err) {
    *region_out = NULL;
    if (!peer->ep) { // only the link leads there
        return SL_OK;
    }
    SL_FAIL_IF(window->generation == 0, err, SL_ERR_INVALID, "a window's ticket without a generation");
    const struct sl_seen_place *seen = find(places, window->generation, window->id);
    if (!seen) {
        ask(places, peer, window);
        return SL_AGAIN;
    }
    SL_FAIL_IF(seen->bytes != window->bytes, err, SL_ERR_INVALID,
               "two tickets of one window say that it has %llu and %llu bytes", (unsigned long long)seen->bytes,
               (unsigned long long)window->bytes);
    switch (seen->state) {
    case SL_SEEN_ASKED:
        return SL_AGAIN;
    case SL_SEEN_REFUSED:
        return sl_fail(err, seen->status, "%s",
                       seen->status == SL_ERR_PEER_STALE ? "the window is closed" : sl_status_text(seen->status));
    case SL_SEEN_PLACE:
        *region_out = seen->region;
        *address_out = seen->address;
        return SL_OK;
    case SL_SEEN_BY_MESSAGE:
        break;
    }
    return SL_OK;
}

static void note(struct sl_seen_place *seen, struct sl_peer *peer, const uint8_t *place, size_t bytes) {
    struct sl_place there;
    struct sl_error err = {0};
    seen->status = sl_place_unpack(&there, place, bytes, seen->bytes, &err);
    if (seen->status == SL_OK) {
        seen->status = sl_peer_region(peer, &there, &seen->region, &err);
    }
    if (seen->status != SL_OK) {
        sl_log_warn("fabric", "peer=%s window=%u: %s", peer->name, seen->window_id, err.text);
        seen->state = SL_SEEN_REFUSED;
    } else {
        seen->address = there.head.address;
        seen->state = seen->region->one_sided ? SL_SEEN_PLACE : SL_SEEN_BY_MESSAGE;
    }
}

void sl_places_hear(struct sl_places *places, struct sl_peer *peer, const struct sl_message *look_reply) {
    struct sl_wire_look_reply reply;
    const size_t at = offsetof(struct sl_wire_look_reply, place);
    memcpy(&reply, look_reply->header, sizeof reply);
    struct sl_seen_place *seen = reply.generation != 0 ? find(places, reply.generation, reply.window_id) : NULL;
    if (!seen || seen->state != SL_SEEN_ASKED) { // it was replaced, or never asked for
        return;
    }
    if (reply.status == SL_OK) {
        note(seen, peer, (const uint8_t *)look_reply->header + at, look_reply->header_bytes - at);
    } else if (reply.status == SL_ERR_UNSUPPORTED) {
        seen->state = SL_SEEN_BY_MESSAGE;
    } else {
        seen->state = SL_SEEN_REFUSED;
        seen->status = reply.status < 0 ? (enum sl_status)reply.status : SL_ERR_PEER_CORRUPT;
    }
}
