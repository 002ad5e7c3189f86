// SPDX-License-Identifier: Apache-2.0
// Purpose: what a client is told that gets no answer: a status of HTTP, and the error object that OpenAI's clients read.
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_refusal {
    int http_status;
    const char *type; // "invalid_request_error"; static
    char param[64];   // the field of the request, or ""
    char text[512];
    int64_t retry_after_s; // of 429; 0: soon
    const char *allow;     // of 405: what the place takes; static
};

// 400 about a field of the request; returns SL_ERR_INVALID.
enum sl_status sl_refuse_field(struct sl_refusal *refusal, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// 429: so many of `what` a minute are the caller's, and there is room again in retry_ms. INT64_MAX: not the caller's fault.
void sl_refuse_for(struct sl_refusal *refusal, int64_t retry_ms, const char *what, int64_t per_minute);

// With a status of HTTP.
void sl_refuse(struct sl_refusal *refusal, int http_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * What a call to the coordinator, or a job, has ended with. The coordinator's refusals begin with the field that they are about, which
 * becomes the param.
 */
void sl_refuse_status(struct sl_refusal *refusal, enum sl_status status, const char *text);

// {"error": {...}} on one line; malloc'd, NULL: no memory.
char *sl_refusal_json(const struct sl_refusal *refusal);
