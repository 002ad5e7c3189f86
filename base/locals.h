// SPDX-License-Identifier: Apache-2.0
// Purpose: values of the work that a thread does. They travel with work that goes on on another thread (base/fiber/fiber.h).
#pragma once

#include "base/status.h"
#include "base/trace.h"

struct sl_locals {
    char job_id[64], trace_id[64];      // base/log.h
    struct sl_trace trace;              // base/trace.h
    enum sl_status (*pause)(void *arg); // engine/text/tokenizer/tokenizer.h
    void *pause_arg;
};

// Returns those of the work that this code belongs to. The address tells one piece of work from another, while both live.
struct sl_locals *sl_locals(void);
// Has this thread work for other values than its own, which stay the caller's; NULL: for its own again.
void sl_locals_use(struct sl_locals *locals);
