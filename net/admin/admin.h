// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the admin port of a server, for its operators: /startupz, /livez, /readyz and /metrics, in plain HTTP.
 *
 * Design: the port opens before anything else, so that a server that is still loading its model answers. Modules add
 *         their checks and metrics as they start. No request changes anything, and no answer reveals prompts, tenants
 *         or leases (docs/SECURITY.md); docs/METRICS.md lists the metrics.
 *
 *             /startupz   200 after sl_admin_started(), 503 before it
 *             /livez      200 while every check of that probe passes, else 503 and the first reason
 *             /readyz     likewise, and 503 until started
 *             ?verbose    every check on its own line
 *
 * Threads: libmicrohttpd's thread calls the added functions under a mutex that adding and closing take too. It waits
 *          only for those functions, which may take short locks. All functions accept a NULL admin, which means that
 *          there is no admin port.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

struct sl_admin;

// A notice is a problem that SL_PROBE_LIVE reports without failing: the status stays 200.
enum sl_probe { SL_PROBE_LIVE, SL_PROBE_READY, SL_PROBE_NOTICE };
#define SL_WHY_BYTES 512

struct sl_admin_check {
    enum sl_probe probe;
    const char *name;
    bool (*well_fn)(void *arg, char why[SL_WHY_BYTES]); // false: `why` holds one line of text
    void *arg;
};

/*
 * Listens at "HOST:PORT", on any interface; *admin_out is NULL for "none". SL_ERR_INVALID and SL_ERR_IO name the
 * option. version is a label of sluice_build_info.
 */
enum sl_status sl_admin_open(const char *listen, const char *version, struct sl_admin **admin_out,
                             struct sl_error *err);
const char *sl_admin_address(const struct sl_admin *admin); // "127.0.0.1:9100"; "" without a port

// Add a check or metrics, which the port calls until sl_admin_close(). There is room for eight of each kind.
void sl_admin_add_check(struct sl_admin *admin, const struct sl_admin_check *check);
void sl_admin_add_metrics(struct sl_admin *admin, void (*write_fn)(void *arg, FILE *page), void *arg);

void sl_admin_started(struct sl_admin *admin); // the model is loaded, and the server listens

// Closes the port. After the return it calls none of the added functions any more. Nulls *admin.
void sl_admin_close(struct sl_admin **admin);
