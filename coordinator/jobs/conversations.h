// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: stores the tokens that a conversation has so far, and where its session is between two turns.
 *
 * Design: a turn's request has the whole conversation. If it continues the conversation in this table, its prompt is made of the known
 *         tokens, with the answer's own, and of the encoded new text: so the prompt begins with exactly what the session holds. If it does
 *         not, or the conversation is unknown, the prompt is encoded as any other's, and all of it is prefilled. So this table may forget:
 *         its size is bounded, and the tenant that uses most loses its least recently used conversation first.
 * Trust: an id belongs to a tenant; the same id of another tenant is another conversation.
 * Threads: any.
 */
#pragma once

#include "coordinator/jobs/job.h"
#include "coordinator/jobs/request.h"

struct sl_conversations;

enum sl_status sl_conversations_create(struct sl_conversations **conversations_out, struct sl_error *err);
void sl_conversations_destroy(struct sl_conversations **conversations); // accepts NULL, nulls

// The prompt of a turn that continues a conversation. tokens is malloc'd and owned by the caller; NULL: the prompt is made as for any other
// request.
struct sl_turn_prompt {
    int32_t *tokens;
    int64_t n_tokens;
};

/*
 * Begins a turn for a request with a conversation. Writes to *turn_out what the job has to know of the conversation, and the prompt if the
 * request continues a known conversation. SL_ERR_INVALID names the field.
 */
enum sl_status sl_conversations_begin_turn(struct sl_conversations *conversations, const struct sl_request_rules *rules,
                                           const char *tenant, const Sluice__V1__GenerateRequest *request,
                                           struct sl_job_turn *turn_out, struct sl_turn_prompt *prompt_out,
                                           struct sl_error *err);
// Plans what the turn needs of a worker, once the job's specification is complete. Drops a session of another recipe, or of another set of
// frequencies.
enum sl_status sl_conversations_plan_turn(const struct sl_request_rules *rules, struct sl_job_spec *spec,
                                          struct sl_error *err);
/*
 * Sessions and copies that no later turn will use: their workers may release them at once. Those beyond SL_MAX_LEFT stay until their lease
 * ends, or until the store evicts them as least recently used.
 */
#define SL_MAX_LEFT 12
struct sl_left {
    char worker[64], lease_id[SL_LEASE_ID_BYTES]; // lease_id "": no session
    struct sl_session_copy copy;                  // no store: none
};
struct sl_sessions_left {
    struct sl_left of[SL_MAX_LEFT];
    int n;
};
void sl_sessions_left_add(struct sl_sessions_left *left, const struct sl_job_turn *turn); // if it has one

/*
 * Ends a turn whose answer is complete. tokens: all of the conversation's, without a token that has ended it. The conversation is forgotten
 * when there is no memory for it, or when it was ended meanwhile. Adds to left_inout the sessions to release: the one before, those of other
 * conversations that made room, or this one; and their copies. This turn's copy stays, and so does the last earlier copy from which the same
 * conversation continues: a client that repeats this turn's request needs it.
 */
void sl_conversations_end_turn(struct sl_conversations *conversations, const struct sl_job_spec *spec,
                               const struct sl_job_turn *turn, const int32_t *tokens, int64_t n_tokens,
                               const char *answer, struct sl_sessions_left *left_inout);
// Records a copy of the last turn's session that was made after the turn's end. False: no later turn will use it.
bool sl_conversations_copied(struct sl_conversations *conversations, const char *tenant, const char *id,
                             const struct sl_session_copy *copy);
// Forgets a conversation, and turns of it that have begun. False: it is not known. Adds all its sessions and copies to left_inout.
bool sl_conversations_forget(struct sl_conversations *conversations, const char *tenant, const char *id,
                             struct sl_sessions_left *left_inout);
