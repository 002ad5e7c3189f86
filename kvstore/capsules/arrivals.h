// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the announced capsules that are in transit. One that has arrived is cached and offered to the disk. One
 *          that never will arrive, or is not wanted any more, is released. Segments of documents arrive in the same way, from
 *          another store, and go to the documents' layers, in the order in which they were announced.
 *
 * Threads: any number; one lock, taken before those of inbound transfers, ledger and capsule cache.
 */
#pragma once

#include "kvstore/disk/disk.h"
#include "kvstore/remote_kv/document_layers.h"

struct sl_arrivals;

// Creates the table. room: with its ledger, inbound transfers and capsule cache. disk may be NULL, and so may layers, without
// which no segment is taken. All must outlive it.
enum sl_status sl_arrivals_create(struct sl_room *room, struct sl_disk *disk, struct sl_document_layers *layers,
                                  struct sl_arrivals **arrivals_out, struct sl_error *err);
// Caches what has arrived by now and ends all other leases. Accepts NULL, nulls.
void sl_arrivals_destroy(struct sl_arrivals **arrivals);

// Caches what arrives under this lease of an inbound transfer. Copies the keys' hashes. SL_ERR_EXISTS: the capsule is
// stored or in transit already; if several announce the same capsule at once, all but one get this status.
enum sl_status sl_arrivals_expect(struct sl_arrivals *arrivals, const char *lease_id,
                                  const struct sl_capsule_keys *keys, struct sl_error *err);
bool sl_arrivals_knows(struct sl_arrivals *arrivals, const struct sl_capsule_id *id); // it is stored, or in transit

// Drops a capsule that no job will ask for: cancels one that is in transit, forgets one that is stored. False: there is
// neither.
bool sl_arrivals_forget(struct sl_arrivals *arrivals, const struct sl_capsule_id *id);

// Checks all of them once; for a thread that calls it when inbound transfers change.
void sl_arrivals_cache(struct sl_arrivals *arrivals);
