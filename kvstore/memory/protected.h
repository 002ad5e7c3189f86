// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the capsules that a store does not evict: those of documents (coordinator/documents/documents.h), and on disk the
 *          segments of their offloaded layers, which the set names by one key a document
 *          (engine/offload/remote_kv/segment_head.h).
 *
 * Design: the coordinator sends the whole set again and again, so a set that was lost with a process comes back. Memory
 *         and disk ask this table before they evict. A capsule may be in the set before it arrives. A store that has
 *         just started does not know the set yet: for a moment, nothing on its disk may be evicted.
 * Threads: any number; one lock, under which nothing else is called.
 */
#pragma once

#include "engine/kvcache/capsule.h"

struct sl_protected;

// Half of a store's arena is for documents (coordinator/documents/documents.h). What exceeds it may be evicted: what is on
// disk in its turn among all capsules, the rest last.
#define SL_PROTECTED_SHARE 2

// Creates an empty set. unknown_ms: this long, or until the first sl_protected_set(), sl_protected_is_known() is false.
enum sl_status sl_protected_create(int64_t unknown_ms, struct sl_protected **set_out, struct sl_error *err);
void sl_protected_destroy(struct sl_protected **set); // accepts NULL, nulls

// Replaces the set; takes over ids[n_ids], which is malloc'd, and sorts it.
void sl_protected_set(struct sl_protected *set, struct sl_capsule_id *ids, size_t n_ids);

// Returns a number that changes when the set does; never 0, but for set NULL.
uint64_t sl_protected_version(const struct sl_protected *set);
bool sl_protected_has(struct sl_protected *set, const struct sl_capsule_id *id); // set NULL: false
bool sl_protected_is_known(struct sl_protected *set);                            // set NULL: true
