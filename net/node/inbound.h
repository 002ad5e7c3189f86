// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory for incoming capsules: a decode worker and a kvstore lease it to senders, and a
 *          prefill worker opens it to fetch from a store.
 *
 * An inbound transfer is a block of the arena, the fabric's grant over it and a lease with a deadline:
 *
 *     OPEN --(all pieces verified)--> RECEIVED --take--> TAKEN      the block now belongs to the caller of take
 *       |                               |
 *       +--(peer lost, digest, abort)--> FAILED                     release or the reaper ends it
 *       +------- release, lease expired (also from RECEIVED, FAILED) -> gone
 *
 *   open      sl_inbound_open()                  RECEIVED, FAILED the fabric's callbacks
 *   take      sl_inbound_take()                  gone             sl_inbound_release(), reap()
 *
 * Invariants: a block returns to its arena only after the fabric has said (on_release) that no late write can land in
 *             it, unless it was taken. A lease that is not renewed ends by itself: the reaper is a separate thread and
 *             does not wait for new work.
 * Threads: any thread may call all functions, sl_inbound_destroy() when no other one is in any of them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lease_id.h"
#include "net/fabric/fabric.h"
#include "engine/kvcache/capsule.h"
#include "net/node/ledger.h"

struct sl_inbound; // the table

typedef void (*sl_inbound_verify_fn)(void *arg, struct sl_arrival *arrival);

/*
 * Creates the table. Blocks come from `staging`, whose arena must lie in a region of the fabric. Promises are counted
 * in `sessions`: the same ledger, or that of device memory, which then counts the capsule as well, as it is moved there
 * after its arrival. All must outlive the table.
 */
enum sl_status sl_inbound_create(struct sl_fabric *fabric, struct sl_ledger *staging, struct sl_ledger *sessions,
                                 int64_t lease_ms, struct sl_inbound **inbound_out, struct sl_error *err);
// Ends every lease and refuses new ones. A worker that stops destroys the fabric next, which releases every block.
void sl_inbound_close(struct sl_inbound *inbound);
// Closes the table if that has not been done, and waits (bounded) until the fabric has released the blocks.
void sl_inbound_destroy(struct sl_inbound **inbound);

/*
 * Lets capsules arrive in device memory where their sender can put there (net/fabric/fabric.h), and sets the function that
 * verifies them. They are moved on from there as from staging memory; each holds a staging block too until its sender
 * has said which one it uses. After a wrong digest there, or several lost ships in a row (each began after the previous
 * loss), everything is staged, which the log says once. Call before the first lease; `arena` must outlive the table.
 */
void sl_inbound_go_straight(struct sl_inbound *inbound, struct sl_arena *arena, sl_inbound_verify_fn verify, void *arg);

/*
 * Takes a block of body_bytes and opens a grant over it. Promises promised_bytes, which the session will add later,
 * until the transfer is gone or the taker returns the promise. SL_ERR_EXHAUSTED: block and promise do not fit; err has
 * the numbers. SL_ERR_PRECONDITION: more than staging memory ever holds.
 */
struct sl_inbound_ticket {
    char id[SL_LEASE_ID_BYTES];
    uint8_t *ticket; // malloc'd, the caller frees it
    size_t ticket_bytes;
    int64_t lease_ms;
};
enum sl_status sl_inbound_open(struct sl_inbound *inbound, const char *label, size_t body_bytes, size_t promised_bytes,
                               struct sl_inbound_ticket *ticket_out, struct sl_error *err);

// Renews a lease. SL_ERR_NOT_FOUND: no such lease, or it has ended.
enum sl_status sl_inbound_renew(struct sl_inbound *inbound, const char *id, int64_t *lease_ms_out,
                                struct sl_error *err);
// Ends a lease. Idempotent: an unknown lease is not an error.
void sl_inbound_release(struct sl_inbound *inbound, const char *id);

/*
 * Waits until the capsule has arrived and takes it. The lease is then gone, and its promise of *promised_out bytes
 * belongs to the caller (net/node/ledger.h). SL_AGAIN: not arrived at the deadline. SL_ERR_NOT_FOUND: no such lease (or it
 * ended while we waited). Otherwise the status with which the ship failed.
 */
enum sl_status sl_inbound_take(struct sl_inbound *inbound, const char *id, int64_t deadline_ns,
                               struct sl_capsule_bytes *capsule_out, size_t *promised_out, struct sl_error *err);
/*
 * Waits until some transfer has changed since *seen_inout (begin with 0), or until the deadline; updates *seen_inout.
 * For a thread that serves many inbound transfers.
 */
void sl_inbound_wait_change(struct sl_inbound *inbound, uint64_t *seen_inout, int64_t deadline_ns);

int64_t sl_inbound_count(struct sl_inbound *inbound); // leases held: a leak gauge
