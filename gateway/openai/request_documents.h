// SPDX-License-Identifier: Apache-2.0
// Purpose: the fields of a request about several documents.
#pragma once

#include "gateway/openai/request.h"

// Takes "documents", a list of names, or "reread", the tokens that are read again. SL_ERR_INVALID: *refusal has the reason.
enum sl_status sl_openai_take_documents(struct sl_openai_request *request, const char *name, const json_t *value,
                                        struct sl_refusal *refusal);
