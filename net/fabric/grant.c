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
 * CLAIMED   one ship of one peer may write; all others are refused
 * COMPLETE  the block holds the sender's data; the sender was told, and may ask again
 * FAILED    the writer was told; it stops, and confirms with ABORT that none of its puts is pending
 *
 * Invariants: on_release is the last callback, and every grant gets it exactly once. "No write can land" means: no
 *             receive is posted into the block, no verification of it is pending (n_receives == 0), and its writer, if
 *             it puts, is quiet (writer_quiet): it completed, it confirmed, or its end of the connection is gone. A
 *             writer that merely fell silent may resume in the middle of a put: its grants stay in quarantine for
 *             QUARANTINE_NS. A generation is used once. The results of the last SL_N_PAST grants are kept for a
 *             repeated QUERY.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/fabric/core/huge.h"
#include "net/fabric/grant.h"

#define QUARANTINE_NS (30 * SL_NS_PER_S) // for a silent writer that could still put into our memory

extern const struct sl_verb_ops sl_grant_ops;

// ---- opening ---------------------------------------------------------------------------------------------------

static void run_close(struct sl_fabric *fabric, struct sl_command *command);

static bool lies_in_device(struct sl_fabric *fabric, void *block, size_t bytes, const struct sl_region **region_out) {
    *region_out = block ? sl_fabric_region(fabric, block, bytes) : NULL;
    return !block || (*region_out && (*region_out)->arrives);
}

enum sl_status sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    SL_FAIL_IF(!fabric->address[0], err, SL_ERR_PRECONDITION, "this fabric does not listen, so no peer can ship to it");
    const struct sl_region *device_region;
    struct sl_region *region = sl_fabric_region(fabric, plan->block, plan->bytes);
    if (!region || region->seen || plan->bytes == 0 ||
        !lies_in_device(fabric, plan->device_block, plan->bytes, &device_region)) {
        return sl_fail(err, SL_ERR_INVALID, "a grant of %zu bytes at %p and %p is not inside regions", plan->bytes,
                       plan->block, plan->device_block);
    }
    SL_NEW_OR_FAIL(struct sl_grant, grant, err, "no memory for a grant");
    struct sl_grants *grants = sl_verb_of_fabric(fabric, &sl_grant_ops);
    grant->grants = grants;
    grant->fabric = fabric;
    grant->generation = atomic_fetch_add(&fabric->generation, 1) + 1;
    grant->close_command.run = run_close;
    grant->host.region = region;
    grant->host.block = plan->block;
    grant->device.region = device_region;
    grant->device.block = plan->device_block;
    grant->on_arrived = plan->on_arrived;
    grant->last = &grant->arrived;
    grant->bytes = plan->bytes;
    grant->events = *plan->events;
    grant->arg = plan->arg;
    atomic_store(&grant->deadline_ns, plan->deadline_ns);
    SL_TRY_OR(sl_secret_draw(&grant->secret, err), free(grant));
    // The ticket leaves this function after the slot is taken: no ship can come too early.
    SL_FAIL_OR(!sl_slots_take(&grants->slots, grant, &grant->id), free(grant), err, SL_ERR_EXHAUSTED,
               "no memory for a grant");
    struct sl_wire_ticket what = {.magic = SL_WIRE_MAGIC,
                                  .generation = grant->generation,
                                  .secret = grant->secret,
                                  .bytes = grant->bytes,
                                  .id = grant->id};
    uint8_t *ticket = sl_ticket_pack(fabric, &what, ticket_bytes_out);
    if (!ticket) {
        sl_slots_give(&grants->slots, grant->id);
        free(grant);
        return sl_fail(err, SL_ERR_EXHAUSTED, "cannot make a ticket of at most %d bytes", SL_TICKET_MAX_BYTES);
    }
    sl_huge_want(region->joining, plan->block, plan->bytes);
    atomic_fetch_add(&grants->n_open, 1);
    *grant_out = grant;
    *ticket_out = ticket;
    return SL_OK;
}

bool sl_grant_is_in_device(const struct sl_grant *grant) {
    return grant->in_device;
}

void sl_grant_renew(struct sl_grant *grant, int64_t deadline_ns) {
    atomic_store(&grant->deadline_ns, deadline_ns);
}

// ---- closing ---------------------------------------------------------------------------------------------------

static void run_close(struct sl_fabric *, struct sl_command *command) {
    struct sl_grant *grant = SL_CONTAINER(command, struct sl_grant, close_command);
    grant->closed = true;
    sl_grant_fail(grant, SL_ERR_CANCELLED, "the receiver closed the grant");
}

void sl_grant_close(struct sl_grant **grant_inout) {
    SL_TAKE_OR_RETURN(grant, grant_inout);
    sl_fabric_post(grant->fabric, &grant->close_command);
}

// ---- all grants ------------------------------------------------------------------------------------------------

static struct sl_grant *next(void *state, uint32_t *id) {
    return sl_slots_next(&((struct sl_grants *)state)->slots, id);
}

static void peer_closing(void *state, struct sl_peer *peer, enum sl_status status, const char *text) {
    uint32_t id = 0;
    for (struct sl_grant *grant; (grant = next(state, &id)) != NULL;) {
        if (grant->writer == peer && grant->state == GRANT_CLAIMED) {
            sl_grant_fail(grant, status, text);
        }
    }
}

static void peer_gone(void *state, struct sl_peer *peer) {
    uint32_t id = 0;
    for (struct sl_grant *grant; (grant = next(state, &id)) != NULL;) {
        if (grant->writer == peer) {
            grant->writer = NULL;
            grant->writer_quiet |= peer->quiet;
            sl_grant_try_release(grant);
        }
    }
}

static void tick(void *state, int64_t now_ns) {
    uint32_t id = 0;
    for (struct sl_grant *grant; (grant = next(state, &id)) != NULL;) {
        if (grant->state <= GRANT_CLAIMED && now_ns > atomic_load(&grant->deadline_ns)) {
            sl_grant_fail(grant, SL_ERR_DEADLINE, "the grant's deadline passed before everything had arrived");
        } else if (grant->quarantined && !grant->writer_quiet && now_ns - grant->ended_ns > QUARANTINE_NS) {
            sl_log_warn("fabric", "grant=%u leaves quarantine after %lld s without its writer's word", grant->id,
                        (long long)(QUARANTINE_NS / SL_NS_PER_S));
            grant->writer_quiet = true;
            sl_grant_try_release(grant);
        }
    }
}

static void stop(void *state) {
    uint32_t id = 0;
    for (struct sl_grant *grant; (grant = next(state, &id)) != NULL;) {
        sl_grant_fail(grant, SL_ERR_CANCELLED, "the receiver stops");
    }
}

// Releases all grants: every endpoint is closed, so nothing can land any more, even from silent writers.
static void release(void *state) {
    uint32_t id = 0;
    for (struct sl_grant *grant; (grant = next(state, &id)) != NULL;) {
        sl_grant_release(grant);
    }
}

static void init(void *state) {
    sl_slots_init(&((struct sl_grants *)state)->slots);
}

static void cleanup(void *state) {
    sl_slots_cleanup(&((struct sl_grants *)state)->slots);
}

const struct sl_verb_ops sl_grant_ops = {
    .state_bytes = sizeof(struct sl_grants),
    .handlers = {{SL_WIRE_CLAIM, "CLAIM", sizeof(struct sl_wire_claim), false, sl_grant_on_claim},
                 {SL_WIRE_SEGMENT, "SEGMENT", sizeof(struct sl_wire_segment), false, sl_grant_on_segment},
                 {SL_WIRE_FINAL, "FINAL", sizeof(struct sl_wire_final), false, sl_grant_on_final},
                 {SL_WIRE_QUERY, "QUERY", sizeof(struct sl_wire_query), false, sl_grant_on_query},
                 {SL_WIRE_ABORT, "ABORT", sizeof(struct sl_wire_abort), false, sl_grant_on_abort}},
    .init = init,
    .cleanup = cleanup,
    .gauges = {SL_GAUGE(struct sl_grants, n_open, grants_open),
               SL_GAUGE(struct sl_grants, n_quarantined, grants_quarantined),
               SL_GAUGE(struct sl_grants, n_wrong, digests_wrong), SL_GAUGE(struct sl_grants, n_stale, stale_refused)},
    .tick = tick,
    .peer_closing = peer_closing,
    .peer_gone = peer_gone,
    .stop = stop,
    .release = release,
};
