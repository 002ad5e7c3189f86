// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: spans, told to an OpenTelemetry collector: OTLP over the gRPC that we have, in the clear.
 *
 * Design: one thread sends what is there, once a second or when there is much. A collector that is slow or away costs spans, never a
 *         request.
 */
#pragma once

#include <stdio.h>

#include "base/status.h"

struct sl_otlp_config {
    const char *collector; // "HOST:PORT"; NULL or "": no spans
    double share;          // of requests that come without a context, 0 to 1
    const char *service;   // "sluice-decode"
    const char *instance;  // "decode-0"; NULL: none
};

struct sl_otlp;

// After sl_rpc_init(), before threads that make spans. *otlp_out is NULL without a collector. SL_ERR_INVALID names the option. Strings
// are copied.
enum sl_status sl_otlp_start(const struct sl_otlp_config *config, struct sl_otlp **otlp_out, struct sl_error *err);
// Tell what is left, for at most a second. Before sl_rpc_shutdown(), behind the last span. Accepts NULL, nulls *otlp.
void sl_otlp_stop(struct sl_otlp **otlp);

// Of all spans of this process, whether or not there is a collector: for its admin port.
void sl_otlp_write_metrics(void *unused, FILE *page);
