// SPDX-License-Identifier: Apache-2.0
// Purpose: a job without a cluster, in this process, told in the same events as one of a cluster.
#pragma once

#include "cli/request.h"
#include "libsluice/sluice.h"
#include "runner/local.h"

// Whether the model has a chat template that is understood.
bool sl_local_takes_chats(const char *model_dir);

/*
 * Run the job, and every further turn of the request on the same session, and deliver their events (a "finished" for
 * each) through the callbacks of `watch` (on_event, stopped). SL_OK when all have finished,
 * SL_ERR_CANCELLED when `stopped` said so. capsule_path: the file that takes the session as a capsule
 * (kvcache/capsule_file.h) once the first prompt has been read; may be NULL.
 */
enum sl_status sl_local_job(const struct sl_local_config *config, const struct sl_request *request,
                            const char *capsule_path, const struct sl_watch *watch, struct sl_error *err);
