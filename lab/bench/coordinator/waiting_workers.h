// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: workers that speak the whole protocol, compute nothing and only wait, so that the coordinator is what is measured. They
 *          report how long they have waited: prefill_ms, and retrieval.wait_ms of decode.
 */
#pragma once

#include "client/cli/tool.h"

struct sl_waiting_config {
    const char *coordinator; // its address
    uint64_t model;          // fingerprint
    int64_t n;               // workers; half of them prefill
    int64_t prefill_ms, token_ms;
};

// Serves until a signal comes. Prints "ready" when all workers have joined.
enum sl_status sl_waiting_workers_run(const struct sl_waiting_config *config, struct sl_signals *signals,
                                      struct sl_error *err);
