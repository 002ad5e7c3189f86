// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the capsules that have been announced and are on their way in: shelved when they have arrived, and offered to the
 *          disk; let go of when they never will, or when nobody wants them any more.
 *
 * Threads: any number; one lock, above those of inbound transfers, ledger and shelf.
 */
#pragma once

#include "kvstore/disk/disk.h"

struct sl_arrivals;

// room: with its ledger, inbound transfers and shelf. disk may be NULL. Both must outlive the arrivals.
enum sl_status sl_arrivals_create(struct sl_room *room, struct sl_disk *disk, struct sl_arrivals **arrivals_out,
                                  struct sl_error *err);
// Shelves what has arrived by now, ends the leases of all others. Accepts NULL, nulls.
void sl_arrivals_destroy(struct sl_arrivals **arrivals);

// Shelve what arrives under this lease of an inbound transfer. The keys' hashes are copied. SL_ERR_EXISTS: it is stored or on its way
// already, which of several that announce the same capsule at once all but one are told.
enum sl_status sl_arrivals_expect(struct sl_arrivals *arrivals, const char *lease_id,
                                  const struct sl_capsule_keys *keys, struct sl_error *err);
bool sl_arrivals_knows(struct sl_arrivals *arrivals, const struct sl_capsule_id *id); // it is stored, or on its way

// Nobody will ask for it any more: what is on its way does not arrive, and what is stored goes. False: neither is there.
bool sl_arrivals_forget(struct sl_arrivals *arrivals, const struct sl_capsule_id *id);

// Look after all of them once: for a thread that comes by when inbound transfers change.
void sl_arrivals_shelve(struct sl_arrivals *arrivals);
