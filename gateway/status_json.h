// SPDX-License-Identifier: Apache-2.0
// Purpose: what GET /status.json tells: a cluster and its jobs, as one object (docs/HTTP.md). The names are an interface.
#pragma once

#include "gateway/served.h"

// What the coordinator has said to somebody. Lists: NULL: it has not answered.
struct sl_status_told {
    const struct sl_served_model *model;
    const char *why;                                       // it has not answered; ""
    const Sluice__V1__ListReply *queued, *running, *ended; // asked for in this order
    const Sluice__V1__WorkersReply *workers;               // NULL: not for this client
    int64_t now_ms;                                        // Unix time
};

// malloc'd; NULL: no memory. Texts that are no UTF-8 are shown with question marks.
char *sl_status_json(const struct sl_status_told *told);
