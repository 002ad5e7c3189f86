// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: who gets the store's memory: one account for capsules, segments and all that has been promised.
 *
 * Design: capsules and segments are both a cache, in one order: whichever was used longest ago goes first. Three grades:
 *           in use    pinned by a lookup, or part of an annex under a lease: never evicted
 *           kept      a job let go of it within the last --keep: evicted only if the new thing does not fit otherwise
 *           the rest  evicted when the arena would be more than 90% full, down to 85%, so that not every arrival evicts
 *         What does not fit even so, by the number of bytes, is refused with the numbers, and nothing has been evicted for
 *         it. An inbound transfer is one block: where what is free lies in pieces, more is evicted in the same order until there is
 *         one, and where what is in use lies between, everything may have gone before it is refused.
 *         Who is refused comes again; that nothing can be evicted any more is counted, and logged: at once, then once a minute.
 * Threads: any number. Whoever takes memory does it under one lock, so that what was made room for cannot be taken by
 *          another in between.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore/memory/segments.h"
#include "kvstore/memory/shelf.h"
#include "node/inbound.h"

struct sl_room {
    struct sl_arena *arena;   // the ledger's
    struct sl_ledger *ledger; // keeps the account of promises
    struct sl_inbound *inbound;
    struct sl_shelf *shelf;
    struct sl_kv_segments *segments;
    pthread_mutex_t mutex;
    _Atomic int64_t n_refused; // since the start
    // Under the mutex:
    int64_t alarm_at_ns, n_not_told;
};

void sl_room_init(struct sl_room *room, struct sl_ledger *ledger, struct sl_inbound *inbound, struct sl_shelf *shelf,
                  struct sl_kv_segments *segments);
void sl_room_cleanup(struct sl_room *room);

// Make room for `bytes` and count them as promised (sl_ledger_return()). SL_ERR_EXHAUSTED; err has the numbers.
enum sl_status sl_room_promise(struct sl_room *room, const char *label, size_t bytes, struct sl_error *err);

/*
 * Make room for an inbound transfer and open it: sl_inbound_open(). covered_bytes of it have been promised before (0: none); on
 * success that promise is used up, on failure it stands.
 */
enum sl_status sl_room_open_inbound(struct sl_room *room, const char *label, size_t body_bytes, size_t promised_bytes,
                                    size_t covered_bytes, struct sl_inbound_ticket *ticket_out, struct sl_error *err);

// Make room for a block and take it from the arena: now the caller's. SL_ERR_EXHAUSTED.
enum sl_status sl_room_take_block(struct sl_room *room, const char *label, size_t bytes, void **block_out,
                                  struct sl_error *err);

// Evict whatever was used longest ago, kept or not; false: all is in use. For who has a promise and finds no block.
bool sl_room_evict_one(struct sl_room *room);
