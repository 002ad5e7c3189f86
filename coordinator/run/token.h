// SPDX-License-Identifier: Apache-2.0
// Purpose: checks a token that a decode worker has sent, and passes it to the clients.
#pragma once

#include "coordinator/run/attempt.h"

// Passes a token to clients, exactly once and in order, whatever the workers do. An impossible token is SL_ERR_INTERNAL or
// SL_ERR_PEER_CORRUPT, and the text names the worker; SL_ERR_EXHAUSTED: no memory for it.
enum sl_status sl_run_token_hear(struct sl_run *run, const Sluice__V1__Token *token, struct sl_error *err);
