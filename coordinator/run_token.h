// SPDX-License-Identifier: Apache-2.0
// Purpose: a token of a decode worker's, on its way to clients.
#pragma once

#include "coordinator/run_job.h"

// An id that is none: SL_ERR_PEER_CORRUPT. worker: who wrote it, for the text.
enum sl_status sl_run_token_check(const struct sl_run_context *context, const char *worker,
                                  const Sluice__V1__Token *token, struct sl_error *err);
// To the job's watchers. SL_ERR_EXHAUSTED: no memory for it.
enum sl_status sl_run_token_tell(const struct sl_run_context *context, struct sl_job *job,
                                 const Sluice__V1__Token *heard);
