// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what is special about a job that is a turn of a conversation (docs/CHAT.md): where its session comes from, and where it stays.
 *
 *     KEPT    the worker of the turn before has the session     Decode.Run(kept)
 *       | lost, or it needed the memory, or the lease has ended
 *     STORED  a store has it, or that of an earlier turn        Decode.Reserve -> Store.Fetch -> Decode.Run(lease, turn)
 *       | lost, too, or evicted
 *     WHOLE   nobody has it                                     as any other job: everything is read
 */
#pragma once

#include "coordinator/jobs/conversations.h"
#include "coordinator/run/copy.h"
#include "coordinator/run/run.h"
#include "proto/sluice/v1/worker.pb-c.h"

enum sl_turn_way { SL_TURN_WHOLE, SL_TURN_STORED, SL_TURN_KEPT };

// The first way that is open. *from_inout: what the job's turn goes on from; on the way STORED of an earlier turn it becomes that.
enum sl_turn_way sl_turn_first_way(const struct sl_run_context *context, const struct sl_job *job,
                                   struct sl_job_turn *from_inout);
// The one behind it.
enum sl_turn_way sl_turn_next_way(const struct sl_run_context *context, const struct sl_job *job, enum sl_turn_way way,
                                  struct sl_job_turn *from_inout);

// What a worker says of the session that it keeps, if that makes sense: where the next turn finds it.
void sl_turn_hear_kept(const struct sl_job *job, const struct sl_worker *decode, const Sluice__V1__DecodeDone *done,
                       struct sl_job_turn *turn);

/*
 * The answer is complete: have the session copied to the conversation's store, and remember the conversation, or nothing behind a stop string, and where nothing
 * is to be kept. What nobody comes back for is in *left_inout. Called before clients hear of the end, so that what follows may count on the
 * copy, unless it takes longer than they should wait: then it is in *copying_out, on its way. before: the history of the session that the
 * turn went on from; NULL: of none. SL_ERR_PEER_LOST: the worker was lost, and the
 * session with it: the attempt is, too, since another one makes the same session. Other failures cost the next turn some time.
 */
enum sl_status sl_turn_end(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                           const struct sl_hash128 *before, Sluice__V1__Finished__Reason reason, const char *answer,
                           int64_t term, struct sl_job_turn *turn, struct sl_sessions_left *left_inout,
                           struct sl_copying *copying_out, struct sl_error *err);

// The answer is complete, and its session lost: what was said is remembered, and the next turn reads everything.
void sl_turn_end_without(const struct sl_run_context *context, struct sl_job *job, Sluice__V1__Finished__Reason reason,
                         const char *answer, struct sl_job_turn *turn, struct sl_sessions_left *left_inout);

// Behind the end, of which clients have heard: a copy that is still on its way. Blocks until it is there, or there will be none.
void sl_turn_await_copy(const struct sl_run_context *context, const struct sl_job *job, struct sl_copying *copying);

// Nobody comes back for these: workers let go of sessions, stores of copies. But for the session that the job itself has taken; NULL: none.
void sl_turn_release_left(struct sl_registry *registry, const struct sl_job_turn *spent, struct sl_sessions_left *left,
                          int64_t term);
