// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the messages that reach a grant's owner: claims, segments, the final message, queries, aborts.
 *
 * Design: nothing in a message is believed before it is checked: its length, that the grant is open in this
 *         generation, that this ship of this peer has claimed it, that the bytes lie inside. Only then is a receive
 *         posted, straight into the block. A segment is verified as soon as it has landed, so that verification
 *         overlaps with the arrival of the next ones. Whatever is dropped is also discarded in UCX: returning UCS_OK
 *         from a handler without posting a receive completes the sender's rendezvous.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "fabric/core.h"

struct receive {
    struct sl_grant *grant;
    struct sl_peer *peer;
    struct sl_wire_segment segment;
    uint32_t part_bytes[SL_SEGMENT_MAX_PARTS];
};

// ---- what all of them begin with -----------------------------------------------------------------------------------

// Tell a sender whose grant is over what became of it.
static void answer_past(struct sl_fabric *fabric, struct sl_peer *peer, const struct sl_wire_key *key) {
    for (size_t i = 0; i < SL_N_PAST; i++) {
        const struct sl_past *past = &fabric->past[i];
        if (past->generation == key->generation && past->grant_id == key->grant_id && past->ship_id == key->ship_id &&
            past->generation != 0) {
            sl_grant_answer(peer, key, past->status, 0, past->text);
            return;
        }
    }
    atomic_fetch_add(&fabric->stats.stale_refused, 1);
    sl_grant_answer(peer, key, SL_ERR_PEER_STALE, 0, "the grant is over or of another generation");
}

// The grant that this ship has claimed and that still takes bytes; else NULL, and the sender has been answered.
static struct sl_grant *claimed_grant(struct sl_fabric *fabric, struct sl_peer *peer, const struct sl_wire_key *key) {
    struct sl_grant *grant = sl_grant_find(fabric, key);
    if (!grant) {
        answer_past(fabric, peer, key);
        return NULL;
    }
    if (grant->writer != peer || grant->ship_id != key->ship_id) {
        atomic_fetch_add(&fabric->stats.stale_refused, 1);
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

ucs_status_t sl_grant_on_claim(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_claim claim;
    (void)data, (void)bytes;
    struct sl_peer *peer = sl_peer_sender(fabric, "CLAIM", header_bytes, sizeof claim, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&claim, header, sizeof claim);
    struct sl_grant *grant = sl_grant_find(fabric, &claim.key);
    if (grant && grant->state == GRANT_OPEN && sl_now_ns() <= atomic_load(&grant->deadline_ns)) {
        grant->writer = peer;
        grant->ship_id = claim.key.ship_id;
        grant->one_sided = claim.one_sided != 0;
        grant->state = GRANT_CLAIMED;
    }
    if (claimed_grant(fabric, peer, &claim.key)) {
        sl_grant_answer(peer, &claim.key, SL_INPROGRESS, 0, "");
    }
    return UCS_OK;
}

// ---- SEGMENT ---------------------------------------------------------------------------------------------------

static bool digest_matches(const struct receive *receive) {
    const uint8_t *at = receive->grant->block + receive->segment.offset;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < receive->segment.n_parts; i++) {
        digest = sl_hash(at, receive->part_bytes[i], digest);
        at += receive->part_bytes[i];
    }
    return digest == receive->segment.digest;
}

// The bytes are in the block.
static void verify(const struct receive *receive) {
    struct sl_grant *grant = receive->grant;
    struct sl_fabric *fabric = grant->fabric;
    const struct sl_wire_segment *segment = &receive->segment;
    if (grant->state != GRANT_CLAIMED) {
        sl_grant_try_release(grant);
        return;
    }
    if (!digest_matches(receive)) {
        atomic_fetch_add(&fabric->stats.digests_wrong, 1);
        char text[SL_ANSWER_TEXT_BYTES];
        snprintf(text, sizeof text, "bytes [%llu, %llu) failed their digest", (unsigned long long)segment->offset,
                 (unsigned long long)(segment->offset + segment->bytes));
        sl_grant_fail(grant, SL_ERR_PEER_CORRUPT, text);
        return;
    }
    atomic_fetch_add(&fabric->stats.bytes_received, segment->bytes);
    atomic_fetch_add(&fabric->stats.pieces_received, segment->n_parts);
    grant->n_segments++;
    grant->body_bytes += segment->bytes;
    if (segment->offset + segment->bytes > grant->highest) {
        grant->highest = segment->offset + segment->bytes;
    }
    sl_grant_check_complete(grant);
}

static void received(struct receive *receive, ucs_status_t status, size_t bytes) {
    struct sl_grant *grant = receive->grant;
    grant->n_receives--;
    receive->peer->n_requests--;
    if (status == UCS_OK && bytes == receive->segment.bytes) {
        verify(receive);
    } else {
        sl_grant_fail(grant, SL_ERR_PEER_LOST, ucs_status_string(status));
    }
    free(receive);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    received(user_data, status, bytes);
    ucp_request_free(request);
}

// Why a segment must not land; NULL: it may.
static const char *refusal(const struct sl_grant *grant, const struct receive *receive, size_t bytes) {
    const struct sl_wire_segment *segment = &receive->segment;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < segment->n_parts; i++) {
        sum += receive->part_bytes[i];
    }
    if (segment->bytes == 0 || segment->bytes > SL_SEGMENT_MAX_BYTES || sum != segment->bytes) {
        return "a segment's parts do not add up";
    }
    if (bytes != (grant->one_sided ? 0 : segment->bytes)) {
        return "a segment came by the wrong verb or with another length than announced";
    }
    if (segment->offset > grant->bytes || segment->bytes > grant->bytes - segment->offset) {
        return "a segment lies outside of the grant";
    }
    return NULL;
}

static ucs_status_t land(struct receive *receive, void *data, size_t bytes, const ucp_am_recv_param_t *param,
                         bool *kept_out) {
    struct sl_grant *grant = receive->grant;
    uint8_t *to = grant->block + receive->segment.offset;
    if (bytes == 0) {
        verify(receive);
        return UCS_OK;
    }
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(to, data, bytes);
        verify(receive);
        return UCS_OK;
    }
    const struct sl_region *region = sl_fabric_region(grant->fabric, to, bytes);
    ucp_request_param_t with = {.op_attr_mask =
                                    UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH,
                                .cb.recv_am = on_received,
                                .user_data = receive,
                                .memh = region->handle};
    grant->n_receives++;
    receive->peer->n_requests++;
    void *request = ucp_am_recv_data_nbx(grant->fabric->worker, data, to, bytes, &with);
    *kept_out = true;
    if (!UCS_PTR_IS_PTR(request)) { // over already, well or badly
        received(receive, UCS_PTR_STATUS(request), bytes);
    }
    return UCS_INPROGRESS;
}

ucs_status_t sl_grant_on_segment(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_segment segment;
    struct sl_peer *peer = sl_peer_sender(fabric, "SEGMENT", header_bytes, sizeof segment, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&segment, header, sizeof segment);
    if (segment.n_parts == 0 || segment.n_parts > SL_SEGMENT_MAX_PARTS ||
        header_bytes != SL_SEGMENT_HEADER_BYTES(segment.n_parts)) {
        sl_fabric_unexpected(fabric, "SEGMENT with a wrong number of parts", header_bytes);
        return UCS_OK;
    }
    struct sl_grant *grant = claimed_grant(fabric, peer, &segment.key);
    if (!grant) {
        return UCS_OK;
    }
    struct receive *receive = malloc(sizeof *receive);
    if (!receive) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a segment");
        return UCS_OK;
    }
    receive->grant = grant;
    receive->peer = peer;
    receive->segment = segment;
    memcpy(receive->part_bytes, (const uint8_t *)header + sizeof segment, segment.n_parts * sizeof(uint32_t));
    const char *why = refusal(grant, receive, bytes);
    bool kept = false;
    ucs_status_t status = UCS_OK;
    if (why) {
        sl_grant_fail(grant, SL_ERR_RANGE, why);
    } else {
        status = land(receive, data, bytes, param, &kept);
    }
    if (!kept) {
        free(receive);
    }
    return status;
}

// ---- FINAL -----------------------------------------------------------------------------------------------------

struct header_receive {
    struct sl_grant *grant;
    struct sl_peer *peer;
};

static void header_received(struct header_receive *receive, ucs_status_t status) {
    struct sl_grant *grant = receive->grant;
    grant->n_receives--;
    receive->peer->n_requests--;
    free(receive);
    grant->header_ready = status == UCS_OK;
    if (status != UCS_OK) {
        sl_grant_fail(grant, SL_ERR_PEER_LOST, ucs_status_string(status));
    } else if (grant->state == GRANT_CLAIMED) {
        sl_grant_check_complete(grant);
    } else {
        sl_grant_try_release(grant);
    }
}

static void on_header_received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    (void)bytes;
    header_received(user_data, status);
    ucp_request_free(request);
}

static ucs_status_t receive_header(struct sl_grant *grant, struct sl_peer *peer, void *data, size_t bytes,
                                   const ucp_am_recv_param_t *param) {
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        if (bytes > 0) {
            memcpy(grant->header, data, bytes);
        }
        grant->header_ready = true;
        sl_grant_check_complete(grant);
        return UCS_OK;
    }
    struct header_receive *receive = malloc(sizeof *receive);
    if (!receive) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a header");
        return UCS_OK;
    }
    *receive = (struct header_receive){grant, peer};
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.recv_am = on_header_received,
                                .user_data = receive};
    grant->n_receives++;
    peer->n_requests++;
    void *request = ucp_am_recv_data_nbx(grant->fabric->worker, data, grant->header, bytes, &with);
    if (!UCS_PTR_IS_PTR(request)) {
        header_received(receive, UCS_PTR_STATUS(request));
    }
    return UCS_INPROGRESS;
}

ucs_status_t sl_grant_on_final(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_final final;
    struct sl_peer *peer = sl_peer_sender(fabric, "FINAL", header_bytes, sizeof final, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&final, header, sizeof final);
    struct sl_grant *grant = claimed_grant(fabric, peer, &final.key);
    if (!grant || grant->final_seen) {
        return UCS_OK;
    }
    if (final.header_bytes != bytes || bytes > SL_HEADER_MAX_BYTES || final.body_bytes > grant->bytes) {
        sl_grant_fail(grant, SL_ERR_RANGE, "the final message announces more than there can be");
        return UCS_OK;
    }
    grant->header = malloc(bytes ? bytes : 1);
    if (!grant->header) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory for a header");
        return UCS_OK;
    }
    grant->final = final;
    grant->final_seen = true;
    return receive_header(grant, peer, data, bytes, param);
}

// ---- QUERY, ABORT ----------------------------------------------------------------------------------------------

ucs_status_t sl_grant_on_query(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_query query;
    (void)data, (void)bytes;
    struct sl_peer *peer = sl_peer_sender(fabric, "QUERY", header_bytes, sizeof query, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&query, header, sizeof query);
    struct sl_grant *grant = claimed_grant(fabric, peer, &query.key);
    if (grant) {
        sl_grant_answer(peer, &query.key, SL_INPROGRESS,
                        SL_ANSWER_TO_QUERY | (grant->final_seen ? SL_ANSWER_FINAL_SEEN : 0), "");
    }
    return UCS_OK;
}

ucs_status_t sl_grant_on_abort(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    struct sl_fabric *fabric = arg;
    struct sl_wire_abort abortion;
    (void)data, (void)bytes;
    struct sl_peer *peer = sl_peer_sender(fabric, "ABORT", header_bytes, sizeof abortion, param);
    if (!peer) {
        return UCS_OK;
    }
    memcpy(&abortion, header, sizeof abortion);
    struct sl_grant *grant = sl_grant_find(fabric, &abortion.key);
    if (grant && grant->writer == peer && grant->ship_id == abortion.key.ship_id) {
        grant->writer_quiet = true;
        char text[SL_ANSWER_TEXT_BYTES];
        snprintf(text, sizeof text, "the sender gave the ship up: %s", sl_status_text((enum sl_status)abortion.status));
        enum sl_status status = abortion.status < 0 ? (enum sl_status)abortion.status : SL_ERR_CANCELLED;
        sl_grant_fail(grant, status, text); // releases it, if it had failed before
    }
    return UCS_OK;
}
