// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the capsules that lookups have found, held in the capsule cache under leases, so that a Fetch finds what its
 *          Lookup has found.
 *
 *     held --borrow--> in use --return--> held
 *
 *          sl_pins_release() ends a lease; sl_pins_reap() ends those that were not renewed. A lease in use stays until
 *          the first sl_pins_reap() after its return.
 *
 * Threads: any number; one lock, under which only the capsule cache is called. Ids cannot be guessed.
 */
#pragma once

#include "base/lease_id.h"
#include "kvstore/memory/capsule_cache.h"

struct sl_pins;

enum sl_status sl_pins_create(struct sl_capsule_cache *capsule_cache, int64_t lease_ms, struct sl_pins **pins_out,
                              struct sl_error *err);
void sl_pins_destroy(struct sl_pins **pins); // ends all leases; none may be in use. Accepts NULL, nulls

// Holds a capsule that is pinned in the capsule cache: from now on the lease unpins it. SL_ERR_EXHAUSTED: the caller
// still holds it.
enum sl_status sl_pins_add(struct sl_pins *pins, struct sl_stored *stored, char id_out[SL_LEASE_ID_BYTES],
                           struct sl_error *err);
bool sl_pins_renew(struct sl_pins *pins, const char *id); // false: no such lease
void sl_pins_release(struct sl_pins *pins, const char *id);
void sl_pins_reap(struct sl_pins *pins, int64_t now_ns); // ends leases that were not renewed

// Borrows the capsule of a lease for sending; give it back. NULL: no such lease, or in use.
struct sl_stored *sl_pins_borrow(struct sl_pins *pins, const char *id);
void sl_pins_return(struct sl_pins *pins, const char *id);

int64_t sl_pins_count(struct sl_pins *pins); // leases: a leak gauge
