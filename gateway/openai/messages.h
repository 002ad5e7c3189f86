// SPDX-License-Identifier: Apache-2.0
// Purpose: reads the messages of a chat into a request.
#pragma once

#include "gateway/openai/request.h"

// Reads the value of "messages". The request points into the JSON, which must live as long. On failure *refusal is set.
enum sl_status sl_openai_take_messages(struct sl_openai_request *request, const json_t *messages,
                                       struct sl_refusal *refusal);
