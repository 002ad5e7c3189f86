// SPDX-License-Identifier: Apache-2.0
// Purpose: a token of a decode worker's, on its way to clients.
#pragma once

#include "coordinator/run/run.h"
#include "coordinator/run/report.h"

// A token goes to clients exactly once and in order, whatever the workers do. What makes no sense is SL_ERR_INTERNAL or SL_ERR_PEER_CORRUPT,
// whose text names the worker; SL_ERR_EXHAUSTED: no memory for it.
enum sl_status sl_run_token_hear(const struct sl_run_context *context, struct sl_run_report *report, struct sl_job *job,
                                 const char *worker, const Sluice__V1__Token *token, struct sl_error *err);
