// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides where a job's session comes from, and, for a turn of a conversation (docs/CHAT.md), where it stays for the next turn.
 *
 *     KEPT    the worker of the previous turn retains the session     Decode.Run(kept)
 *       | lost, evicted, or the lease has ended
 *     STORED  a store has it, or the session of an earlier turn       Decode.Reserve -> Store.Fetch -> Decode.Run(lease, turn)
 *       | lost, or evicted
 *     PREFIX  a store keeps the document that the prompt begins with,
 *             or another beginning, and little follows it             Decode.Run(kvstore_address): decode fetches it and reads the rest
 *       | not stored, no memory, no answer from the store
 *     WHOLE   as any other job                                        Decode.Reserve -> Prefill.Run -> Decode.Run(lease)
 *
 * Threads: the job's fiber only, except sl_turn_release_left().
 */
#pragma once

#include "coordinator/jobs/conversations.h"
#include "coordinator/run/run.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct sl_run;

enum sl_turn_mode { SL_TURN_WHOLE, SL_TURN_PREFIX, SL_TURN_STORED, SL_TURN_KEPT };

// Returns whether the attempt continues the session of an earlier turn.
static inline bool sl_turn_continues(enum sl_turn_mode mode) {
    return mode >= SL_TURN_STORED;
}

// Chooses the store of the job's prompt, as sl_stores_choose().
int64_t sl_turn_choose_store(const struct sl_run *run, char store_out[SL_ADDRESS_BYTES]);
// Both return a mode that is possible. In mode STORED, run->from is the session that the store has: it may be an earlier turn's. In mode
// PREFIX, run->prefix_demand is set.
enum sl_turn_mode sl_turn_first_mode(struct sl_run *run);
enum sl_turn_mode sl_turn_next_mode(struct sl_run *run); // after run->mode has failed

// Tells clients which workers the attempt has, and why.
void sl_turn_announce(struct sl_run *run);

// Records in run->turn where the worker retains the session. Ignores values that are impossible.
void sl_turn_hear_kept(struct sl_run *run, const Sluice__V1__DecodeDone *done);

/*
 * Ends a turn whose answer is complete: copies the session to the conversation's store and records the conversation. Records nothing after a
 * stop string, or when nothing is to be retained. Adds to run->left what no later turn will use. The caller reports the end to clients
 * afterwards, so the next turn may rely on the copy; a copy that takes longer than clients should wait continues in run->copying.
 * SL_ERR_PEER_LOST: the worker was lost with the session; another attempt makes the same session. Other failures only make the next turn
 * slower.
 */
enum sl_status sl_turn_end(struct sl_run *run, struct sl_error *err);

// Ends a turn whose answer is complete and whose session is lost: the next turn reads the whole prompt.
void sl_turn_end_without(struct sl_run *run);

// Blocks until a copy that continues after the job's end has been made or has failed. Returns at once if there is none.
void sl_turn_await_copy(struct sl_run *run);

// Asks workers to release sessions, and stores to forget copies, that no turn will use, except the session `spent`, which the job has used
// itself; NULL: none. left may be NULL.
void sl_turn_release_left(struct sl_registry *registry, const struct sl_job_turn *spent,
                          const struct sl_sessions_left *left, int64_t term);
