// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the account of an arena: how many bytes are promised beyond those in use. A promise is memory that its
 *          holder will take later, page by page; it is granted only while used and promised bytes fit the arena.
 *
 * Invariants: a promise is counted until it is returned. Its holder takes pages from the arena first and reconciles
 *             afterwards (sl_ledger_set_promise()): in between they are counted twice, never not at all.
 * Threads: any number. One lock, under which the ledger calls only the arena, so the ledger may be called under any
 *          other lock. It reads the used bytes under this lock, so of two callers that want the same bytes one is
 *          refused.
 */
#pragma once

#include "base/arena.h"

struct sl_ledger;

enum sl_status sl_ledger_create(struct sl_arena *arena, struct sl_ledger **ledger_out, struct sl_error *err);
void sl_ledger_destroy(struct sl_ledger **ledger); // before its arena is destroyed. Accepts NULL, nulls
struct sl_arena *sl_ledger_arena(const struct sl_ledger *ledger);

// Promises bytes if they fit beside the used and promised ones; SL_AGAIN: they do not. Never waits.
enum sl_status sl_ledger_try_promise(struct sl_ledger *ledger, size_t bytes);
// Promises bytes even if they do not fit: the holder returned them too early, or gave the memory back to the arena.
void sl_ledger_promise_again(struct sl_ledger *ledger, size_t bytes);
void sl_ledger_return(struct sl_ledger *ledger, size_t bytes);
// Changes the promise *promised_inout to `bytes`, even if they do not fit: its holder has taken or given back the
// difference.
void sl_ledger_set_promise(struct sl_ledger *ledger, size_t *promised_inout, size_t bytes);
/*
 * The same for a holder that has taken taken_bytes of planned_bytes so far: the promise becomes the rest. Call it after a
 * pass, not before it: pages that the pass took and eviction has given back stay promised, so no other job is granted them
 * in between.
 */
void sl_ledger_reconcile(struct sl_ledger *ledger, size_t *promised_inout, size_t planned_bytes, size_t taken_bytes);
/*
 * Takes a block from the arena and promises promised_bytes beside it, both or neither. SL_ERR_EXHAUSTED: they do not
 * fit, or the free memory is fragmented; err has the numbers.
 */
enum sl_status sl_ledger_take_block(struct sl_ledger *ledger, const char *label, size_t block_bytes,
                                    size_t promised_bytes, void **block_out, struct sl_error *err);

size_t sl_ledger_promised_bytes(struct sl_ledger *ledger); // a leak gauge
