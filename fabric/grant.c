// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the life of a grant, from sl_grant_open() to on_release.
 *
 *      OPEN ------ CLAIM of a ship: on_claim (receive.c) ---------------------> CLAIMED
 *      CLAIMED --- everything verified: check_complete ------------------------------> COMPLETE   on_complete
 *      OPEN, CLAIMED --- deadline, wrong digest, lost or aborting sender: fail ------> FAILED     on_failure
 *      OPEN, CLAIMED --- closed by its owner: run_close -----------------------------> FAILED     (the owner knows)
 *      COMPLETE, FAILED --- closed, and no write can land: try_release --------------> freed      on_release
 *
 * OPEN      the ticket is out; nothing has been written, for a ship must claim before it writes
 * CLAIMED   one ship of one peer may write; everybody else is refused
 * COMPLETE  the block holds what the sender had; the sender was told, and may ask again
 * FAILED    the writer was told; it stops, and confirms with ABORT that no put of it is under way
 *
 * Invariants: on_release is the last callback, and there is one for every grant.
 *             "No write can land" means: no receive is posted into the block (n_receives == 0), and its writer, if it
 *             puts, is quiet (writer_quiet): it completed, it confirmed, or its process or queue pair is gone. A
 *             writer that merely fell silent may wake up in the middle of a put: its grants stay in quarantine for
 *             SL_QUARANTINE_NS.
 *             A generation is used once. What became of the last SL_N_PAST grants is remembered for a repeated QUERY.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "fabric/core.h"

// ---- opening ---------------------------------------------------------------------------------------------------

static void run_close(struct sl_fabric *fabric, struct sl_command *command);

static enum sl_status take_slot(struct sl_fabric *fabric, struct sl_grant *grant, struct sl_error *err) {
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&fabric->lock);
    size_t id = 0;
    while (id < fabric->n_grants && fabric->grants[id]) {
        id++;
    }
    if (id == fabric->n_grants) {
        size_t n = fabric->n_grants ? 2 * fabric->n_grants : 64;
        struct sl_grant **grown = n <= UINT32_MAX ? realloc(fabric->grants, n * sizeof *grown) : NULL;
        if (grown) {
            memset(grown + fabric->n_grants, 0, (n - fabric->n_grants) * sizeof *grown);
            fabric->grants = grown;
            fabric->n_grants = n;
        } else {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu grants", n);
        }
    }
    if (status == SL_OK) {
        grant->id = (uint32_t)id;
        grant->generation = ++fabric->next_generation;
        fabric->grants[id] = grant;
    }
    pthread_mutex_unlock(&fabric->lock);
    return status;
}

enum sl_status sl_grant_open(struct sl_fabric *fabric, void *block, size_t bytes, int64_t deadline_ns,
                             const struct sl_grant_events *events, void *arg, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    if (!fabric->address[0]) {
        return sl_fail(err, SL_ERR_PRECONDITION, "this fabric does not listen, so nobody can ship to it");
    }
    struct sl_region *region = sl_fabric_region(fabric, block, bytes);
    if (!region || bytes == 0) {
        return sl_fail(err, SL_ERR_INVALID, "a grant of %zu bytes at %p is not inside a region", bytes, block);
    }
    struct sl_grant *grant = calloc(1, sizeof *grant);
    if (!grant) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a grant");
    }
    grant->fabric = fabric;
    grant->close_command.run = run_close;
    grant->block = block;
    grant->bytes = bytes;
    grant->events = *events;
    grant->arg = arg;
    atomic_store(&grant->deadline_ns, deadline_ns);
    // The ticket leaves this function after the slot is taken: no ship can come too early.
    enum sl_status status = take_slot(fabric, grant, err);
    if (status != SL_OK) {
        free(grant);
        return status;
    }
    struct sl_wire_ticket what = {.magic = SL_WIRE_MAGIC,
                                  .generation = grant->generation,
                                  .remote_address = (uint64_t)(uintptr_t)grant->block,
                                  .bytes = grant->bytes,
                                  .id = grant->id};
    uint8_t *ticket = sl_ticket_pack(fabric, region, &what, ticket_bytes_out);
    if (!ticket) {
        pthread_mutex_lock(&fabric->lock);
        fabric->grants[grant->id] = NULL;
        pthread_mutex_unlock(&fabric->lock);
        free(grant);
        return sl_fail(err, SL_ERR_EXHAUSTED, "cannot make a ticket of at most %d bytes", SL_TICKET_MAX_BYTES);
    }
    atomic_fetch_add(&fabric->stats.grants_open, 1);
    *grant_out = grant;
    *ticket_out = ticket;
    return SL_OK;
}

void sl_grant_renew(struct sl_grant *grant, int64_t deadline_ns) {
    atomic_store(&grant->deadline_ns, deadline_ns);
}

// ---- ending ----------------------------------------------------------------------------------------------------

struct sl_grant *sl_grant_find(struct sl_fabric *fabric, const struct sl_wire_key *key) {
    pthread_mutex_lock(&fabric->lock);
    struct sl_grant *grant = key->grant_id < fabric->n_grants ? fabric->grants[key->grant_id] : NULL;
    pthread_mutex_unlock(&fabric->lock);
    return grant && grant->generation == key->generation ? grant : NULL; // only this thread frees grants
}

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
        grant->writer_quiet = true; // there is none
    }
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
        atomic_fetch_add(&grant->fabric->stats.digests_wrong, 1);
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

static void remember(struct sl_fabric *fabric, const struct sl_grant *grant) {
    struct sl_past *past = &fabric->past[fabric->next_past++ % SL_N_PAST];
    *past = (struct sl_past){grant->generation, grant->ship_id, grant->id, grant->status, ""};
    memcpy(past->text, grant->text, sizeof past->text);
}

static void release(struct sl_grant *grant) {
    struct sl_fabric *fabric = grant->fabric;
    remember(fabric, grant);
    pthread_mutex_lock(&fabric->lock);
    fabric->grants[grant->id] = NULL;
    pthread_mutex_unlock(&fabric->lock);
    atomic_fetch_sub(grant->quarantined ? &fabric->stats.grants_quarantined : &fabric->stats.grants_open, 1);
    if (grant->events.on_release) {
        grant->events.on_release(grant->arg);
    }
    free(grant->header);
    free(grant);
}

// May free the grant.
void sl_grant_try_release(struct sl_grant *grant) {
    if (!grant->closed) {
        return;
    }
    if (grant->n_receives == 0 && (grant->writer_quiet || !grant->one_sided)) {
        release(grant);
    } else if (!grant->quarantined) {
        grant->quarantined = true;
        atomic_fetch_sub(&grant->fabric->stats.grants_open, 1);
        atomic_fetch_add(&grant->fabric->stats.grants_quarantined, 1);
    }
}

static void run_close(struct sl_fabric *fabric, struct sl_command *command) {
    (void)fabric;
    struct sl_grant *grant = (struct sl_grant *)((char *)command - offsetof(struct sl_grant, close_command));
    grant->closed = true;
    sl_grant_fail(grant, SL_ERR_CANCELLED, "the receiver closed the grant");
}

void sl_grant_close(struct sl_grant **grant) {
    if (grant && *grant) {
        sl_fabric_post((*grant)->fabric, &(*grant)->close_command);
        *grant = NULL;
    }
}

// ---- all grants ------------------------------------------------------------------------------------------------

// The grant in slot `id`, or NULL; *end_out is set past the last slot.
static struct sl_grant *at_slot(struct sl_fabric *fabric, size_t id, bool *end_out) {
    pthread_mutex_lock(&fabric->lock);
    *end_out = id >= fabric->n_grants;
    struct sl_grant *grant = *end_out ? NULL : fabric->grants[id];
    pthread_mutex_unlock(&fabric->lock);
    return grant;
}

void sl_grants_peer_closing(struct sl_fabric *fabric, struct sl_peer *peer, enum sl_status status, const char *text) {
    bool over = false;
    for (size_t id = 0; !over; id++) {
        struct sl_grant *grant = at_slot(fabric, id, &over);
        if (grant && grant->writer == peer && grant->state == GRANT_CLAIMED) {
            sl_grant_fail(grant, status, text);
        }
    }
}

void sl_grants_peer_gone(struct sl_fabric *fabric, struct sl_peer *peer) {
    bool over = false;
    for (size_t id = 0; !over; id++) {
        struct sl_grant *grant = at_slot(fabric, id, &over);
        if (grant && grant->writer == peer) {
            grant->writer = NULL;
            grant->writer_quiet |= !peer->silent;
            sl_grant_try_release(grant);
        }
    }
}

void sl_grants_tick(struct sl_fabric *fabric, int64_t now_ns) {
    bool over = false;
    for (size_t id = 0; !over; id++) {
        struct sl_grant *grant = at_slot(fabric, id, &over);
        if (!grant) {
            continue;
        }
        if (grant->state <= GRANT_CLAIMED && now_ns > atomic_load(&grant->deadline_ns)) {
            sl_grant_fail(grant, SL_ERR_DEADLINE, "the grant's deadline passed before everything had arrived");
        } else if (grant->quarantined && !grant->writer_quiet && now_ns - grant->ended_ns > SL_QUARANTINE_NS) {
            sl_log_warn("fabric", "grant=%u leaves quarantine after %lld s without its writer's word", grant->id,
                        (long long)(SL_QUARANTINE_NS / SL_NS_PER_S));
            grant->writer_quiet = true;
            sl_grant_try_release(grant);
        }
    }
}

void sl_grants_end_all(struct sl_fabric *fabric) {
    bool over = false;
    for (size_t id = 0; !over; id++) {
        struct sl_grant *grant = at_slot(fabric, id, &over);
        if (grant) {
            sl_grant_fail(grant, SL_ERR_CANCELLED, "the receiver stops");
        }
    }
}

// Every endpoint is closed: nothing can land any more, whoever was silent.
void sl_grants_release_all(struct sl_fabric *fabric) {
    bool over = false;
    for (size_t id = 0; !over; id++) {
        struct sl_grant *grant = at_slot(fabric, id, &over);
        if (grant) {
            release(grant);
        }
    }
}
