// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: handles the messages that reach a grant's owner: claims, segments, the final message, queries, aborts.
 *
 * Design: every message is checked before it is used: its length, that the grant is open in this generation, that this
 *         ship of this peer has claimed it, that the bytes lie inside. Only then is a receive posted, straight into the
 *         block. A segment is verified as soon as it has landed, so that verification overlaps with the arrival of the
 *         next ones; in device memory the grant's owner verifies it (arrival.c). Link and UCX also discard what is
 *         dropped here: a handler that returns without having posted a receive completes the sender's transfer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/grant.h"

// ---- common checks ------------------------------------------------------------------------------------------------

static struct sl_grant *find(struct sl_grants *grants, const struct sl_wire_key *key) {
    struct sl_grant *grant = sl_slots_find(&grants->slots, key->grant_id);
    return grant && grant->generation == key->generation ? grant : NULL; // only this thread frees grants
}

// Returns the grant that this ship has claimed and that still accepts bytes; else NULL, after answering the sender.
static struct sl_grant *claimed_grant(struct sl_grants *grants, struct sl_peer *peer, const struct sl_wire_key *key) {
    struct sl_grant *grant = find(grants, key);
    if (!grant) {
        sl_grant_answer_past(grants, peer, key);
        return NULL;
    }
    bool unclaimed = grant->writer == NULL && grant->state != GRANT_CLAIMED; // ended before any claim came: tell why
    if (!unclaimed && (grant->writer != peer || grant->ship_id != key->ship_id)) {
        atomic_fetch_add(&grants->n_stale, 1);
        sl_grant_answer(peer, key, SL_ERR_PEER_STALE, 0, "the grant belongs to another ship");
        return NULL;
    }
    if (grant->state != GRANT_CLAIMED) {
        sl_grant_answer(peer, key, grant->status, 0, grant->text);
        return NULL;
    }
    return grant;
}

// ---- CLAIM -----------------------------------------------------------------------------------------------------

// Returns true if the writer can put into the device memory: only an RDMA device can put into CUDA memory. A
// process that maps the memory can put into it if the network sees it as ordinary memory.
static bool reaches_device(const struct sl_grant *grant, const struct sl_peer *peer) {
    return grant->device.region && peer->ep && (!sl_region_is_cuda(grant->device.region) || sl_peer_by_rdma(peer));
}

// Tells the writer where it may put. False: this peer cannot reach it.
static bool tell_place(struct sl_grant *grant, struct sl_peer *peer) {
    uint8_t message[sizeof(struct sl_wire_key) + SL_PLACE_MAX_BYTES];
    struct sl_wire_key key = {grant->generation, grant->ship_id, grant->id, 0};
    size_t bytes = 0;
    if (reaches_device(grant, peer)) {
        bytes = sl_place_pack(grant->device.region, grant->device.block, grant->bytes, message + sizeof key);
    }
    grant->in_device = bytes > 0;
    if (!grant->in_device && peer->ep) {
        bytes = sl_place_pack(grant->host.region, grant->host.block, grant->bytes, message + sizeof key);
    }
    if (bytes > 0) {
        memcpy(message, &key, sizeof key);
        sl_peer_tell(peer, SL_WIRE_PLACE, message, sizeof key + bytes);
    }
    return bytes > 0;
}

// Switches a claim to messages: the writer was told where to put, and cannot, and has written nothing yet.
static void unclaim_one_sided(struct sl_grant *grant, const struct sl_peer *peer, const struct sl_wire_key *key) {
    if (grant->state == GRANT_CLAIMED && grant->writer == peer && grant->ship_id == key->ship_id) {
        grant->one_sided = false;
        grant->in_device = false;
    }
}

void sl_grant_on_claim(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_claim claim;
    memcpy(&claim, message->header, sizeof claim);
    struct sl_grants *grants = state;
    struct sl_grant *grant = find(grants, &claim.key);
    if (grant && !sl_secret_equals(&grant->secret, &claim.secret)) { // guessed: same answer as for an unknown grant
        sl_grant_answer_past(grants, peer, &claim.key);
        return;
    }
    if (grant && grant->state == GRANT_OPEN && sl_now_ns() <= atomic_load(&grant->deadline_ns)) {
        grant->writer = peer;
        grant->ship_id = claim.key.ship_id;
        grant->state = GRANT_CLAIMED;
        grant->one_sided = claim.one_sided != 0 && tell_place(grant, peer);
    } else if (grant && claim.one_sided == 0 && grant->n_segments + grant->n_arrived == 0) {
        unclaim_one_sided(grant, peer, &claim.key);
    }
    grant = claimed_grant(grants, peer, &claim.key);
    if (grant && !grant->one_sided) {
        sl_grant_answer(peer, &claim.key, SL_INPROGRESS, 0, "");
    }
}

// ---- SEGMENT ---------------------------------------------------------------------------------------------------

static bool digest_matches(const struct sl_receive *receive) {
    const uint8_t *at = receive->grant->host.block + receive->segment.offset;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < receive->segment.n_parts; i++) {
        digest = sl_hash(at, receive->part_bytes[i], digest);
        at += receive->part_bytes[i];
    }
    return digest == receive->segment.digest;
}

static void blame(struct sl_grant *grant, const struct sl_wire_segment *segment) {
    char text[SL_ANSWER_TEXT_BYTES];
    atomic_fetch_add(&grant->grants->n_wrong, 1);
    snprintf(text, sizeof text, "bytes [%llu, %llu) failed their digest", (unsigned long long)segment->offset,
             (unsigned long long)(segment->offset + segment->bytes));
    sl_grant_fail(grant, SL_ERR_PEER_CORRUPT, text);
}

static void count(struct sl_grant *grant, const struct sl_wire_segment *segment) {
    grant->n_segments++;
    grant->body_bytes += segment->bytes;
    if (segment->offset + segment->bytes > grant->highest) {
        grant->highest = segment->offset + segment->bytes;
    }
}

static void verify(const struct sl_receive *receive) {
    struct sl_grant *grant = receive->grant;
    const struct sl_wire_segment *segment = &receive->segment;
    if (grant->state != GRANT_CLAIMED) {
        sl_grant_try_release(grant);
        return;
    }
    if (!digest_matches(receive)) {
        blame(grant, segment);
        return;
    }
    count(grant, segment);
    sl_grant_check_complete(grant);
}

// ---- segments in a device --------------------------------------------------------------------------------------

static void on_verified(struct sl_fabric *fabric, struct sl_command *command);

static void hand_out(struct sl_grant *grant) {
    if (!sl_grant_hand_out(grant, on_verified)) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory to verify segments");
    }
}

static void end_well(struct sl_grant *grant, const struct sl_grant_arrival *arrival) {
    for (const struct sl_receive *receive = arrival->first; receive; receive = receive->next) {
        count(grant, &receive->segment);
    }
    if (grant->arrived) {
        hand_out(grant);
    } else {
        sl_grant_check_complete(grant);
    }
}

static void on_verified(struct sl_fabric *, struct sl_command *command) {
    struct sl_grant_arrival *arrival = SL_CONTAINER(command, struct sl_grant_arrival, end_command);
    struct sl_grant *grant = arrival->grant;
    grant->n_receives--;
    grant->verifying = false;
    if (grant->state != GRANT_CLAIMED) {
        sl_grant_try_release(grant);
    } else if (arrival->status == SL_OK) {
        end_well(grant, arrival);
    } else if (arrival->status == SL_ERR_PEER_CORRUPT && arrival->which < arrival->shown.n) {
        const struct sl_receive *wrong = arrival->first;
        for (uint32_t i = 0; i < arrival->which; i++) {
            wrong = wrong->next;
        }
        blame(grant, &wrong->segment);
    } else {
        sl_grant_fail(grant, arrival->status, "the receiver's device could not verify what arrived");
    }
    sl_grant_free_arrival(arrival);
}

// ---- segments in the host's memory -----------------------------------------------------------------------------

static void on_received(void *arg, struct sl_peer *, enum sl_status status, size_t bytes) {
    struct sl_receive *receive = arg;
    struct sl_grant *grant = receive->grant;
    grant->n_receives--;
    if (status == SL_OK && bytes == receive->segment.bytes) {
        verify(receive);
    } else {
        sl_grant_fail(grant, SL_ERR_PEER_LOST, sl_status_text(status));
    }
    free(receive);
}

// Returns why a segment is refused; NULL: it is accepted.
static const char *refusal(const struct sl_grant *grant, const struct sl_receive *receive, size_t bytes) {
    const struct sl_wire_segment *segment = &receive->segment;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < segment->n_parts; i++) {
        sum += receive->part_bytes[i];
    }
    if (segment->bytes == 0 || segment->bytes > SL_SEGMENT_MAX_BYTES || sum != segment->bytes) {
        return "a segment's parts do not add up";
    }
    if (bytes != (grant->one_sided ? 0 : segment->bytes)) {
        return "a segment came the wrong way or with another length than announced";
    }
    if (segment->offset > grant->bytes || segment->bytes > grant->bytes - segment->offset) {
        return "a segment lies outside of the grant";
    }
    return grant->in_device ? sl_grant_refuse_arrived(grant, receive) : NULL;
}

// Receives a segment; the receive is freed now or later.
static void land(struct sl_receive *receive, struct sl_peer *peer, struct sl_message *message) {
    struct sl_grant *grant = receive->grant;
    uint8_t *to = grant->host.block + receive->segment.offset;
    if (message->on_its_way && message->bytes > 0) {
        grant->n_receives++;
        if (!sl_peer_receive(peer, message, to, on_received, receive)) {
            on_received(receive, peer, SL_ERR_EXHAUSTED, 0);
        }
        return;
    }
    if (message->bytes > 0) {
        memcpy(to, message->data, message->bytes);
    }
    verify(receive);
    free(receive);
}

void sl_grant_on_segment(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_segment segment;
    memcpy(&segment, message->header, sizeof segment);
    if (segment.n_parts == 0 || segment.n_parts > SL_SEGMENT_MAX_PARTS ||
        message->header_bytes != SL_SEGMENT_HEADER_BYTES(segment.n_parts)) {
        sl_fabric_unexpected(peer->fabric, "SEGMENT with a wrong number of parts", message->header_bytes);
        return;
    }
    struct sl_grant *grant = claimed_grant(state, peer, &segment.key);
    if (!grant) {
        return;
    }
    struct sl_receive *receive = malloc(sizeof *receive + segment.n_parts * sizeof(uint32_t));
    if (!receive) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a segment");
        return;
    }
    receive->grant = grant;
    receive->segment = segment;
    memcpy(receive->part_bytes, (const uint8_t *)message->header + sizeof segment, segment.n_parts * sizeof(uint32_t));
    const char *why = refusal(grant, receive, message->bytes);
    if (why) {
        free(receive);
        sl_grant_fail(grant, SL_ERR_RANGE, why);
    } else if (grant->in_device) {
        sl_grant_note_arrived(grant, receive);
        hand_out(grant);
    } else {
        land(receive, peer, message);
    }
}

// ---- FINAL -----------------------------------------------------------------------------------------------------

static void on_header_received(void *arg, struct sl_peer *, enum sl_status status, size_t) {
    struct sl_grant *grant = arg;
    grant->n_receives--;
    grant->header_ready = status == SL_OK;
    if (status != SL_OK) {
        sl_grant_fail(grant, SL_ERR_PEER_LOST, sl_status_text(status));
    } else if (grant->state == GRANT_CLAIMED) {
        sl_grant_check_complete(grant);
    } else {
        sl_grant_try_release(grant);
    }
}

static void receive_header(struct sl_grant *grant, struct sl_peer *peer, struct sl_message *message) {
    grant->header_ready = !message->on_its_way;
    if (grant->header_ready) {
        if (message->bytes > 0) {
            memcpy(grant->header, message->data, message->bytes);
        }
        sl_grant_check_complete(grant);
        return;
    }
    grant->n_receives++;
    if (!sl_peer_receive(peer, message, grant->header, on_header_received, grant)) {
        grant->n_receives--;
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a header");
    }
}

void sl_grant_on_final(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_final final;
    memcpy(&final, message->header, sizeof final);
    struct sl_grant *grant = claimed_grant(state, peer, &final.key);
    if (!grant || grant->final_seen) {
        return;
    }
    size_t bytes = message->bytes;
    if (final.header_bytes != bytes || bytes > SL_HEADER_MAX_BYTES || final.body_bytes > grant->bytes) {
        sl_grant_fail(grant, SL_ERR_RANGE, "the final message announces more than there can be");
        return;
    }
    grant->header = malloc(bytes ? bytes : 1);
    if (!grant->header) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a header");
        return;
    }
    grant->final = final;
    grant->final_seen = true;
    receive_header(grant, peer, message);
}

// ---- QUERY, ABORT ----------------------------------------------------------------------------------------------

void sl_grant_on_query(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_query query;
    memcpy(&query, message->header, sizeof query);
    struct sl_grant *grant = claimed_grant(state, peer, &query.key);
    if (grant) {
        sl_grant_answer(peer, &query.key, SL_INPROGRESS,
                        SL_ANSWER_TO_QUERY | (grant->final_seen ? SL_ANSWER_FINAL_SEEN : 0), "");
    }
}

void sl_grant_on_abort(void *state, struct sl_peer *peer, struct sl_message *message) {
    struct sl_wire_abort abortion;
    memcpy(&abortion, message->header, sizeof abortion);
    struct sl_grant *grant = find(state, &abortion.key);
    if (grant && grant->writer == peer && grant->ship_id == abortion.key.ship_id) {
        grant->writer_quiet = true;
        char text[SL_ANSWER_TEXT_BYTES];
        snprintf(text, sizeof text, "the sender gave the ship up: %s", sl_status_text((enum sl_status)abortion.status));
        enum sl_status status = abortion.status < 0 ? (enum sl_status)abortion.status : SL_ERR_CANCELLED;
        sl_grant_fail(grant, status, text); // releases it, if it had failed before
    }
}
