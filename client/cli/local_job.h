// SPDX-License-Identifier: Apache-2.0
// Purpose: a job without a cluster, in this process, told in the same events as one of a cluster.
#pragma once

#include "client/cli/request.h"
#include "client/libsluice/sluice.h"
#include "engine/runner/local.h"

// --arena of this process; 0 where it says nothing, or auto.
enum sl_status sl_local_arena_parse(const char *text, size_t *bytes_out, struct sl_error *err);

// Whether the model has a chat template that is understood.
bool sl_local_takes_chats(const char *model_dir);

/*
 * Run the job, and every further turn of the request on the same session, and deliver their events (a "finished" for
 * each) through the callbacks of `watch` (on_event, stopped). SL_OK when all have finished,
 * SL_ERR_CANCELLED when `stopped` said so. capsule_path: the file that takes the session as a capsule
 * (engine/kvcache/capsule_file.h) once the first prompt has been read; may be NULL.
 */
enum sl_status sl_local_job(const struct sl_local_config *config, const struct sl_request *request,
                            const char *capsule_path, const struct sl_watch *watch, struct sl_error *err);

/*
 * A conversation in this process. Every turn is told in the events of a job. Its request has the whole conversation, as one for a cluster
 * has: what is an exact continuation of what has been read and written is read alone, and everything where it is none, or
 * where the recipe is another. The reason CANCELLED_BY_CLIENT: `stopped` has ended the answer, of which everything that was told stays.
 */
struct sl_local_talk;
enum sl_status sl_local_talk_open(const struct sl_local_config *config, struct sl_local_talk **talk_out,
                                  struct sl_error *err);
void sl_local_talk_close(struct sl_local_talk **talk);
bool sl_local_talk_takes_chats(const struct sl_local_talk *talk);
// Forget what has been read.
void sl_local_talk_forget(struct sl_local_talk *talk);
/*
 * SL_ERR_INVALID: nothing has happened (the context is full, the recipe is none). After any other failure the next turn reads everything.
 */
enum sl_status sl_local_talk_turn(struct sl_local_talk *talk, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, struct sl_error *err);
