// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how a grant ends: complete, failed, finally released; and what its writer is told, then and when it asks
 *          later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/grant.h"

void sl_grant_answer(struct sl_peer *peer, const struct sl_wire_key *key, enum sl_status status, uint32_t flags,
                     const char *text) {
    struct sl_wire_answer answer = {.key = *key, .status = status, .flags = flags};
    snprintf(answer.text, sizeof answer.text, "%s", text);
    sl_peer_tell(peer, SL_WIRE_ANSWER, &answer, sizeof answer);
}

static void answer_writer(struct sl_grant *grant) {
    if (grant->writer) {
        struct sl_wire_key key = {grant->generation, grant->ship_id, grant->id, 0};
        sl_grant_answer(grant->writer, &key, grant->status, 0, grant->text);
    }
}

static void end(struct sl_grant *grant, enum sl_grant_state state, enum sl_status status, const char *text) {
    if (grant->state == GRANT_OPEN) {
        grant->writer_quiet = true; // there is no writer
    }
    sl_grant_drop_arrived(grant);
    grant->state = state;
    grant->status = status;
    grant->ended_ns = sl_now_ns();
    snprintf(grant->text, sizeof grant->text, "%s", text);
    answer_writer(grant);
}

void sl_grant_fail(struct sl_grant *grant, enum sl_status status, const char *text) {
    if (grant->state == GRANT_OPEN || grant->state == GRANT_CLAIMED) {
        end(grant, GRANT_FAILED, status, text);
        if (grant->events.on_failure && !grant->closed) {
            grant->events.on_failure(grant->arg, status, grant->text);
        }
    }
    sl_grant_try_release(grant);
}

void sl_grant_check_complete(struct sl_grant *grant) {
    if (grant->state != GRANT_CLAIMED || !grant->final_seen || !grant->header_ready || grant->n_receives > 0 ||
        grant->n_segments < grant->final.n_segments) {
        return;
    }
    if (grant->n_segments != grant->final.n_segments || grant->body_bytes != grant->final.body_bytes) {
        sl_grant_fail(grant, SL_ERR_PEER_CORRUPT, "more arrived than the sender says it sent");
        return;
    }
    if (sl_hash(grant->header, grant->final.header_bytes, 0) != grant->final.header_digest) {
        atomic_fetch_add(&grant->grants->n_wrong, 1);
        sl_grant_fail(grant, SL_ERR_PEER_CORRUPT, "the header failed its digest");
        return;
    }
    grant->writer_quiet = true; // every put was flushed before its segment was announced
    grant->state = GRANT_COMPLETE;
    if (grant->events.on_complete) {
        grant->events.on_complete(grant->arg, grant->header, grant->final.header_bytes, grant->highest);
    }
    end(grant, GRANT_COMPLETE, SL_OK, "");
    sl_grant_try_release(grant);
}

static void remember(const struct sl_grant *grant) {
    struct sl_past *past = &grant->grants->past[grant->grants->next_past++ % SL_N_PAST];
    *past = (struct sl_past){grant->generation, grant->ship_id, grant->id, grant->status};
}

void sl_grant_answer_past(struct sl_grants *grants, struct sl_peer *peer, const struct sl_wire_key *key) {
    for (size_t i = 0; i < SL_N_PAST; i++) {
        const struct sl_past *past = &grants->past[i];
        if (past->generation == key->generation && past->grant_id == key->grant_id && past->ship_id == key->ship_id &&
            past->generation != 0) {
            sl_grant_answer(peer, key, past->status, 0, sl_status_text(past->status));
            return;
        }
    }
    atomic_fetch_add(&grants->n_stale, 1);
    sl_grant_answer(peer, key, SL_ERR_PEER_STALE, 0, "the grant is over or of another generation");
}

void sl_grant_release(struct sl_grant *grant) {
    struct sl_grants *grants = grant->grants;
    remember(grant);
    sl_slots_give(&grants->slots, grant->id);
    atomic_fetch_sub(grant->quarantined ? &grants->n_quarantined : &grants->n_open, 1);
    if (grant->events.on_release) {
        grant->events.on_release(grant->arg);
    }
    sl_grant_drop_arrived(grant);
    free(grant->header);
    free(grant);
}

void sl_grant_try_release(struct sl_grant *grant) {
    if (!grant->closed) {
        return;
    }
    if (grant->n_receives == 0 && (grant->writer_quiet || !grant->one_sided)) {
        sl_grant_release(grant);
    } else if (!grant->quarantined) {
        grant->quarantined = true;
        atomic_fetch_sub(&grant->grants->n_open, 1);
        atomic_fetch_add(&grant->grants->n_quarantined, 1);
    }
}
