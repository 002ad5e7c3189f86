// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice run --local --jsonl`: answers many requests with one load of the model, in this process. Reads one
 *          JSON object a line and writes one JSON object a line, in the same order.
 *
 * Design: a line is the body of POST /v1/completions, or with "messages" of POST /v1/chat/completions
 *         (gateway/openai/request.h), and its answer is the object of that API. A line with "operation" asks about
 *         the model instead (ask.h), which does not load its weights: they are loaded
 *         for the first answer. Before that, {"operation": "reserve", "tokens": N} makes room for sequences of N tokens
 *         if --arena does not say how much. A
 *         line that fails is answered by {"error": {...}}, and the run continues.
 */
#pragma once

#include <stdio.h>

#include "client/cli/tool.h"
#include "engine/runner/local.h"

// Longest line: a prompt of SL_MAX_PROMPT_BYTES whose every second byte is escaped.
#define SL_JSONL_MAX_LINE_BYTES ((size_t)128 << 20)

struct sl_jsonl_config {
    struct sl_local_config local;
    const char *weights; // name of local.weights
    int64_t deadline_ms; // of each answer; a line's deadline_ms replaces it
    struct sl_signals *signals;
    int in;    // file descriptor of the requests
    FILE *out; // of the answers
};

/*
 * Answers all lines up to the end of the input. SL_OK also if lines failed. SL_ERR_CANCELLED: a signal came.
 * SL_ERR_IO: the input cannot be read, or the output cannot be written. Other errors: the model cannot be loaded.
 */
enum sl_status sl_jsonl_run(const struct sl_jsonl_config *config, struct sl_error *err);
