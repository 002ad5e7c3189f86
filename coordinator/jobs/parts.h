// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one request made of several messages, because its prompt does not fit one (SubmitInParts of
 *          proto/sluice/v1/inference.proto).
 */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "proto/sluice/v1/inference.pb-c.h"

struct sl_request_parts {
    size_t max_bytes;                     // of the prompt
    Sluice__V1__GenerateRequest *request; // the first message; its prompt is replaced at the end
    char *text;                           // one of the two
    int32_t *ids;
    size_t n, n_allocated; // bytes of text, without the terminator; or ids
};

void sl_request_parts_init(struct sl_request_parts *parts, size_t max_bytes);

/*
 * Adds a message: the first one is the request with the prompt's beginning, the others have the prompt's next part and nothing else.
 * Takes over the first message. *added_out: bytes that are now kept in addition to the first message. SL_ERR_INVALID,
 * SL_ERR_EXHAUSTED (the prompt is too long, or there is no memory).
 */
enum sl_status sl_request_parts_add(struct sl_request_parts *parts, Sluice__V1__GenerateRequest *part,
                                    size_t *added_out, struct sl_error *err);

// Returns the whole request, which lives as long as the parts do. SL_ERR_INVALID: there was no message.
enum sl_status sl_request_parts_finish(struct sl_request_parts *parts, const Sluice__V1__GenerateRequest **request_out,
                                       struct sl_error *err);

void sl_request_parts_cleanup(struct sl_request_parts *parts);
