// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the annexes that a kvstore holds for sessions, each under a lease, and how they grow.
 *
 * An annex begins with the stored segments that agree with its prompt, and grows by what is shipped:
 *
 *     granted --(arrived)--> building --> built --(all before it are part of the annex)--> appended, indexed
 *        |                      |
 *        +--- ship failed ------+--- not what was granted, no memory: it and all granted behind it are forgotten, and
 *                                    whoever awaits the annex is told why
 *
 *   granted  sl_annexes_grant()           building, built  the builder, a thread of its own: it makes the key indexes
 *   forgotten  forget_from()              appended         append_built()
 *
 * Memory: opening promises what is still to come; every grant takes its part out of the promise, and what is forgotten puts
 *         it back. Where rows are packed, the blocks that were shipped are promised as well, as many as are on their way at
 *         a time. An annex that ends gives the rest of its promise back; its segments stay, as cache (kvstore/memory/segments.h).
 * Windows: every annex has one of its own, over the arena (offsets count from its base), that shows its segments and nothing else, and
 *         closes when its lease ends. fabric/fetch.h says what that is worth where reads come without a message.
 * Leases: ended by sl_annexes_release(), or by the reaper when nobody renews; questions renew too. Ids cannot be guessed.
 * Threads: any number. Locks in this order: annexes, then room, segments, inbound, ledger, arena.
 */
#pragma once

#include "base/lease_id.h"
#include "base/pulse.h"
#include "fabric/fetch.h"
#include "kvstore/memory/room.h"
#include "offload/annex/near.h"

struct sl_annexes;

struct sl_annexes_config {
    struct sl_room *room; // with its ledger, inbound transfers and segments; must outlive the annexes
    const struct sl_ops *ops;
    struct sl_team *team; // makes key indexes; may be NULL
    int64_t lease_ms;
    struct sl_pulse *pulse;   // of the builder, which counts its turns; may be NULL
    struct sl_fabric *fabric; // that the room's arena is a region of; NULL: annexes without windows
};

enum sl_status sl_annexes_create(const struct sl_annexes_config *config, struct sl_annexes **annexes_out,
                                 struct sl_error *err);
// Ends every lease, stops the builder. No annex may be borrowed. Accepts NULL, nulls.
void sl_annexes_destroy(struct sl_annexes **annexes);

// ---- leases ---------------------------------------------------------------------------------------------------------

struct sl_annex_lease {
    uint64_t annex_id; // see sl_annexes_begin_alike(); the rest is random
    char lease_id[SL_LEASE_ID_BYTES];
    int64_t n_tokens;                    // held already
    uint8_t window[SL_TICKET_MAX_BYTES]; // ticket for reads of what is held
    size_t window_bytes;
};
/*
 * prompt: its hashes are copied. SL_ERR_INVALID: family or prompt out of bounds. SL_ERR_EXHAUSTED: no memory for what is
 * still to come; err has the numbers.
 */
enum sl_status sl_annexes_open(struct sl_annexes *annexes, const char *label, const struct sl_kv_family *family,
                               const struct sl_prompt_hashes *prompt, struct sl_annex_lease *lease_out,
                               struct sl_error *err);
bool sl_annexes_renew(struct sl_annexes *annexes, const char *lease_id); // false: no such lease
void sl_annexes_release(struct sl_annexes *annexes, const char *lease_id);
void sl_annexes_reap(struct sl_annexes *annexes, int64_t now_ns); // end what has not been renewed

// ---- growing --------------------------------------------------------------------------------------------------------

/*
 * Memory for the segment [begin, begin + n_tokens): where the annex and what has been granted of it end, or again one
 * that has been granted and whose ship failed. *capacity_out: bytes of the block that is to be shipped.
 * SL_ERR_EXISTS: it is part of the annex, or will be without being shipped. SL_ERR_NOT_FOUND: no such lease.
 */
enum sl_status sl_annexes_grant(struct sl_annexes *annexes, const char *lease_id, int64_t begin, int64_t n_tokens,
                                struct sl_inbound_ticket *ticket_out, size_t *capacity_out, struct sl_error *err);
/*
 * Wait until the annex has n_tokens. go_on is asked now and then. SL_ERR_DEADLINE, SL_ERR_CANCELLED, SL_ERR_NOT_FOUND (no
 * such lease, or it ended meanwhile), or why a segment did not become part of it.
 */
enum sl_status sl_annexes_await(struct sl_annexes *annexes, const char *lease_id, int64_t n_tokens, int64_t deadline_ns,
                                bool (*go_on)(void *arg), void *arg, int64_t *n_tokens_out, struct sl_error *err);

// ---- asking ---------------------------------------------------------------------------------------------------------

struct sl_held_annex;

// The annex of a question, and its lease is renewed; give it back. NULL: no such annex.
struct sl_held_annex *sl_annexes_borrow(struct sl_annexes *annexes, uint64_t annex_id);
void sl_annexes_return(struct sl_annexes *annexes, struct sl_held_annex **held);
const struct sl_annex *sl_held_annex_get(const struct sl_held_annex *held);
// What its asker has. Requests for the same lanes must be answered one after the other (offload/annex/near.h).
struct sl_near_memory *sl_held_annex_memory(struct sl_held_annex *held);

// By their ids: are two annexes of one family, and of prompts that have their first page in common? Rarely true of others.
bool sl_annexes_begin_alike(uint64_t annex_id, uint64_t other_id);

int64_t sl_annexes_count(struct sl_annexes *annexes); // leases: a leak gauge
