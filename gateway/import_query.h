// SPDX-License-Identifier: Apache-2.0
// Purpose: reads the query of POST /v1/documents/import?name=NAME&keep_ms=TIME, whose body is the file.
#pragma once

#include <microhttpd.h>

#include "gateway/openai/refusal.h"

// *name_out lives as long as the request. SL_ERR_INVALID: *refusal has the reason.
enum sl_status sl_import_query_read(struct MHD_Connection *connection, const char **name_out, int64_t *keep_ms_out,
                                    struct sl_refusal *refusal);
