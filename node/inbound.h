// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory held for capsules that are on their way in. What a decode worker and a kvstore lease to senders, and
 *          what a prefill worker opens to fetch from a store.
 *
 * An inbound transfer is a block of the arena, the fabric's grant over it and a lease with a deadline:
 *
 *     OPEN --(all pieces verified)--> RECEIVED --take--> TAKEN      the block now belongs to whoever took it
 *       |                               |
 *       +--(peer lost, digest, abort)--> FAILED                     release or the reaper ends it
 *       +------- release, lease expired (also from RECEIVED, FAILED) -> gone
 *
 *   open      sl_inbound_open()                  RECEIVED, FAILED the fabric's callbacks
 *   take      sl_inbound_take()                  gone             sl_inbound_release(), reap()
 *
 * Invariants: a block returns to its arena only after the fabric has said that no late write can land in it
 *             (on_release), unless it was taken. A lease that nobody renews ends by itself: the reaper is a thread of
 *             its own and does not wait for new work.
 * Threads: all functions may be called from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lease_id.h"
#include "fabric/fabric.h"
#include "kvcache/capsule.h"
#include "node/ledger.h"

struct sl_inbound; // the table

typedef void (*sl_inbound_verify_fn)(void *arg, struct sl_arrival *arrival);

/*
 * Blocks come from `staging`, whose arena must lie in a region of the fabric; promises are of `sessions`, the same ledger, or that of a
 * device's memory: then they count the capsule as well, which is moved there when it has arrived. All must outlive the table.
 */
enum sl_status sl_inbound_create(struct sl_fabric *fabric, struct sl_ledger *staging, struct sl_ledger *sessions,
                                 int64_t lease_ms, struct sl_inbound **inbound_out, struct sl_error *err);
// End every lease and refuse new ones. For a worker that stops: the fabric is destroyed next, which releases every block.
void sl_inbound_close(struct sl_inbound *inbound);
// Closes if that has not been done, and waits (bounded) until the fabric has released the blocks.
void sl_inbound_destroy(struct sl_inbound **inbound);

/*
 * Memory of a device that capsules arrive in where their sender can put there (fabric/fabric.h), and who verifies them; they are moved from
 * there as from staging memory, of which each holds as much until its sender has said how it comes. After a wrong digest there, or several
 * ships in a row that were lost, each begun behind the loss before, all is staged, which the log says once. Before the first lease; `arena` must outlive the table.
 */
void sl_inbound_go_straight(struct sl_inbound *inbound, struct sl_arena *arena, sl_inbound_verify_fn verify, void *arg);

/*
 * Take a block of body_bytes and open a grant over it. promised_bytes, what the session will add later, are promised until
 * the transfer is gone, or by whoever has taken it. SL_ERR_EXHAUSTED: block and promise do not fit; err has the numbers.
 * SL_ERR_PRECONDITION: staging memory will never do.
 */
struct sl_inbound_ticket {
    char id[SL_LEASE_ID_BYTES];
    uint8_t *ticket; // malloc'd, the caller's to free
    size_t ticket_bytes;
    int64_t lease_ms;
};
enum sl_status sl_inbound_open(struct sl_inbound *inbound, const char *label, size_t body_bytes, size_t promised_bytes,
                               struct sl_inbound_ticket *ticket_out, struct sl_error *err);

// SL_ERR_NOT_FOUND: no such lease, or it has ended.
enum sl_status sl_inbound_renew(struct sl_inbound *inbound, const char *id, int64_t *lease_ms_out,
                                struct sl_error *err);
// Idempotent: an unknown lease is fine.
void sl_inbound_release(struct sl_inbound *inbound, const char *id);

/*
 * Wait until the capsule has arrived and take it; the lease is gone then, and its promise of *promised_out bytes
 * the caller's (node/ledger.h).
 * SL_AGAIN: not yet at the deadline. SL_ERR_NOT_FOUND: no such lease (or it ended while we waited). Otherwise how the
 * ship failed.
 */
enum sl_status sl_inbound_take(struct sl_inbound *inbound, const char *id, int64_t deadline_ns,
                               struct sl_capsule_bytes *capsule_out, size_t *promised_out, struct sl_error *err);
/*
 * Wait until something has happened to some transfer since *seen_inout (begin with 0), or the deadline; *seen_inout is
 * brought up to date. For a thread that looks after many inbound transfers.
 */
void sl_inbound_wait_change(struct sl_inbound *inbound, uint64_t *seen_inout, int64_t deadline_ns);

int64_t sl_inbound_count(struct sl_inbound *inbound); // leases held: a leak gauge
