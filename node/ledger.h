// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the account of an arena: how many bytes are promised beyond those that are in use. A promise is memory that
 *          whoever holds it will take later, page by page; it is granted only while what is used and promised fits the arena.
 *
 * Invariants: a promise is counted until it is returned. Its holder takes pages from the arena first and settles behind that
 *             (sl_ledger_settle()): in between they are counted twice, never not at all.
 * Threads: any number. One lock, held for no call but the arena's: it may be asked for under any other lock. What is used
 *          is read under it, so that of two who want the same bytes one is refused.
 */
#pragma once

#include "base/arena.h"

struct sl_ledger;

enum sl_status sl_ledger_create(struct sl_arena *arena, struct sl_ledger **ledger_out, struct sl_error *err);
void sl_ledger_destroy(struct sl_ledger **ledger); // before its arena. Accepts NULL, nulls
struct sl_arena *sl_ledger_arena(const struct sl_ledger *ledger);

// Promise bytes if they fit beside what is used and promised; SL_AGAIN: they do not. Never waits.
enum sl_status sl_ledger_try_promise(struct sl_ledger *ledger, size_t bytes);
// Promise bytes whether they fit or not: what its holder had returned too early, or took and gave back to the arena.
void sl_ledger_promise_again(struct sl_ledger *ledger, size_t bytes);
void sl_ledger_return(struct sl_ledger *ledger, size_t bytes);
// The promise *promised_inout becomes `bytes`, whether that fits or not: its holder has taken or given back the difference.
void sl_ledger_settle(struct sl_ledger *ledger, size_t *promised_inout, size_t bytes);
/*
 * Take a block from the arena and promise promised_bytes beside it, both or neither. SL_ERR_EXHAUSTED: they do not fit, or
 * what is free lies in pieces; err has the numbers.
 */
enum sl_status sl_ledger_take_block(struct sl_ledger *ledger, const char *label, size_t block_bytes,
                                    size_t promised_bytes, void **block_out, struct sl_error *err);

size_t sl_ledger_promised_bytes(struct sl_ledger *ledger); // a leak gauge
