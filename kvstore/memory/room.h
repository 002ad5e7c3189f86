// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides about the store's memory: one account for capsules, segments and all promises.
 *
 * Design: capsules and segments share the memory. The kind whose least recently used entry is older loses one first: of
 *         segments that entry, of capsules the one that the policy chooses. Three grades:
 *           in use    pinned by a lookup, part of a remote KV under a lease or of a document, or protected as a
 *                     document (up to half of the arena): never evicted
 *           kept      a job released it within the last --keep: evicted only if the new data does not fit otherwise
 *           the rest  evicted when the arena would be more than 90% full, down to 85%, so that not every arrival evicts
 *         A request that does not fit even so, by the number of bytes, is refused with the numbers, and nothing is
 *         evicted for it. An inbound transfer is one block: if the free memory is fragmented, more is evicted in the
 *         same order until one block is free. If memory in use splits the arena so that no such block is possible, the
 *         request is refused before anything is evicted. A refused caller retries. When nothing more can be evicted, the refusals are
 *         counted, and logged: at once, then once a minute.
 * Threads: any number. A caller evicts and takes the freed memory under one lock, so that no other caller takes it.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore/memory/segments.h"
#include "kvstore/memory/capsule_cache.h"
#include "net/node/inbound.h"

struct sl_room {
    struct sl_arena *arena;   // the ledger's
    struct sl_ledger *ledger; // accounts for the promises
    struct sl_inbound *inbound;
    struct sl_capsule_cache *capsule_cache;
    struct sl_kv_segments *segments;
    pthread_mutex_t mutex;
    _Atomic int64_t n_refused; // since the start
    // Under the mutex:
    int64_t alarm_at_ns, n_not_told;
};

void sl_room_init(struct sl_room *room, struct sl_ledger *ledger, struct sl_inbound *inbound,
                  struct sl_capsule_cache *capsule_cache, struct sl_kv_segments *segments);
void sl_room_cleanup(struct sl_room *room);

// Makes room for `bytes` and counts them as promised (sl_ledger_return()). SL_ERR_EXHAUSTED; err has the numbers.
enum sl_status sl_room_promise(struct sl_room *room, const char *label, size_t bytes, struct sl_error *err);

/*
 * Makes room for an inbound transfer and opens it: sl_inbound_open(). covered_bytes of it were promised before (0:
 * none): on success that promise is used up, on failure it stands.
 */
enum sl_status sl_room_open_inbound(struct sl_room *room, const char *label, size_t body_bytes, size_t promised_bytes,
                                    size_t covered_bytes, struct sl_inbound_ticket *ticket_out, struct sl_error *err);

// Makes room for a block and takes it from the arena; the caller owns it. SL_ERR_EXHAUSTED.
enum sl_status sl_room_take_block(struct sl_room *room, const char *label, size_t bytes, void **block_out,
                                  struct sl_error *err);

// Evicts the least recently used entry, kept or not; false: all are in use. For a caller that has a promise but finds
// no contiguous block.
bool sl_room_evict_one(struct sl_room *room);
