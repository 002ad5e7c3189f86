// SPDX-License-Identifier: Apache-2.0
// Purpose: runs a job without a cluster, in this process; it has the same events as one of a cluster.
#pragma once

#include "client/cli/request.h"
#include "client/libsluice/sluice.h"
#include "engine/runner/local.h"

// Parses --arena of this process; 0 if it is unset or auto.
enum sl_status sl_local_arena_parse(const char *text, size_t *bytes_out, struct sl_error *err);

// Returns what a job's statistics say of a result; they point to the recipe.
Sluice__V1__Statistics sl_local_statistics(const struct sl_local_result *result, const char *recipe);

// Returns true if the model has a chat template that Sluice supports.
bool sl_local_takes_chats(const char *model_dir);

/*
 * Runs the job, and every further turn of the request on the same session, and delivers their events (a "finished" for
 * each) through the callbacks of `watch` (on_event, stopped). SL_OK when all have finished, SL_ERR_CANCELLED when
 * `stopped` returned true. capsule_path: the file for the session as a capsule (engine/kvcache/capsule_file.h), written
 * once the first prompt has been read; may be NULL.
 */
enum sl_status sl_local_job(const struct sl_local_config *config, const struct sl_request *request,
                            const char *capsule_path, const struct sl_watch *watch, struct sl_error *err);

/*
 * A conversation in this process. Every turn delivers the events of a job. Its request has the whole conversation, like
 * one for a cluster. If it exactly continues the tokens that were read and written, only the new tokens are read.
 * Otherwise, or with another recipe, all tokens are read. The reason CANCELLED_BY_CLIENT: `stopped` has ended the
 * answer, and the delivered part stays in the conversation.
 */
struct sl_local_talk;
enum sl_status sl_local_talk_open(const struct sl_local_config *config, struct sl_local_talk **talk_out,
                                  struct sl_error *err);
void sl_local_talk_close(struct sl_local_talk **talk);
bool sl_local_talk_takes_chats(const struct sl_local_talk *talk);
// Discards the session, so that the next turn reads everything.
void sl_local_talk_forget(struct sl_local_talk *talk);
/*
 * Runs a turn. SL_ERR_INVALID: nothing has changed (the context is full, or the recipe is invalid). After any other
 * failure the next turn reads everything.
 */
enum sl_status sl_local_talk_turn(struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, struct sl_error *err);
