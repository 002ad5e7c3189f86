// SPDX-License-Identifier: Apache-2.0
// Purpose: the object of GET /status.json: a cluster and its jobs (docs/HTTP.md). The names are an interface.
#pragma once

#include "gateway/served.h"

// The coordinator's replies to one client. A list is NULL if there was no reply.
struct sl_status_input {
    const struct sl_served_model *model;
    const char *why;                                       // the reason why there was no reply; ""
    const Sluice__V1__ListReply *queued, *running, *ended; // in the order of the calls
    const Sluice__V1__WorkersReply *workers;               // NULL: this client may not see workers
    int64_t now_ms;                                        // Unix time
};

// Returns the object, malloc'd; NULL: no memory. Bytes that are not UTF-8 become question marks.
char *sl_status_json(const struct sl_status_input *input);
