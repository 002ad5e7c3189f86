// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the port of a server for whoever operates it: /startupz, /livez, /readyz and /metrics, in plain HTTP.
 *
 * Design: it opens before anything else, so that a server which is still loading its model answers. What is checked and counted is
 *         added as it comes to be. Nothing here changes anything, and nothing tells of prompts, tenants or leases
 *         (docs/SECURITY.md); docs/METRICS.md lists the metrics.
 *
 *             /startupz   200 behind sl_admin_started(), before it 503
 *             /livez      200 while every check of that probe is well, else 503 and the first reason
 *             /readyz     likewise, and 503 until started
 *             ?verbose    every check on a line of its own
 *
 * Threads: libmicrohttpd's one calls what was added, under a mutex that adding and closing take too. It waits for nobody but for
 *         those functions: they may take short locks. All functions accept a NULL admin: there is no such port.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

struct sl_admin;

// A notice: what is not well is told with SL_PROBE_LIVE, whose answer is the same for it.
enum sl_probe { SL_PROBE_LIVE, SL_PROBE_READY, SL_PROBE_NOTICE };
#define SL_WHY_BYTES 512

struct sl_admin_check {
    enum sl_probe probe;
    const char *name;
    bool (*well_fn)(void *arg, char why[SL_WHY_BYTES]); // false: `why` is a line of words
    void *arg;
};

/*
 * Listen at "HOST:PORT", anywhere; *admin_out is NULL for "none". SL_ERR_INVALID, SL_ERR_IO name the option. version is a label of
 * sluice_build_info.
 */
enum sl_status sl_admin_open(const char *listen, const char *version, struct sl_admin **admin_out,
                             struct sl_error *err);
const char *sl_admin_address(const struct sl_admin *admin); // "127.0.0.1:9100"; "" where there is none

// What is added is called until sl_admin_close(). There is room for eight of each.
void sl_admin_add_check(struct sl_admin *admin, const struct sl_admin_check *check);
void sl_admin_add_metrics(struct sl_admin *admin, void (*write_fn)(void *arg, FILE *page), void *arg);

void sl_admin_started(struct sl_admin *admin); // the model is loaded, and the server listens

// Nothing that was added is called any more when it returns. Nulls *admin.
void sl_admin_close(struct sl_admin **admin);
