// SPDX-License-Identifier: Apache-2.0
// Purpose: the reply to a refused request: an HTTP status, and the error object that OpenAI's clients read.
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_refusal {
    int http_status;
    const char *type; // "invalid_request_error"; static
    char param[64];   // the field of the request, or ""
    char text[512];
    int64_t retry_after_s; // with 429; 0: soon
    const char *allow;     // with 405: the methods of this path; static
    const char *code;      // static; NULL: http_status as a text
};

// Refuses a field of the request with 400; returns SL_ERR_INVALID.
enum sl_status sl_refuse_field(struct sl_refusal *refusal, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Returns sl_refuse_field(refusal, param, format, ...) if the condition holds.
#define SL_REFUSE_FIELD_IF(condition, ...)                                                                             \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            return sl_refuse_field(__VA_ARGS__);                                                                       \
        }                                                                                                              \
    } while (0)

// Refuses with 429: the caller's limit is this many of `what` per minute, and there is room again in retry_ms. INT64_MAX:
// no limit of the caller is the reason.
void sl_refuse_for(struct sl_refusal *refusal, int64_t retry_ms, const char *what, int64_t per_minute);

// Refuses with an HTTP status.
void sl_refuse(struct sl_refusal *refusal, int http_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Refuses with 404, because the model or the document does not exist; field: "model" or "document", which clients find
// in the param and in the code.
void sl_refuse_unknown(struct sl_refusal *refusal, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Refuses with the status and the reason of a failed call to the coordinator, or of a failed job. A coordinator's refusal
 * begins with the name of a field, which becomes the param.
 */
void sl_refuse_error(struct sl_refusal *refusal, const struct sl_error *err);
// The same for a call whose fields have the coordinator's names.
void sl_refuse_error_of_ours(struct sl_refusal *refusal, const struct sl_error *err);

// Returns {"error": {...}} on one line; malloc'd, NULL: no memory.
char *sl_refusal_json(const struct sl_refusal *refusal);
