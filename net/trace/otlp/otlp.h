// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sends spans to an OpenTelemetry collector: OTLP over our own gRPC client, unencrypted.
 *
 * Design: one thread sends the queued spans once a second, or earlier when many are queued. A slow or unreachable
 *         collector loses spans, but never delays or fails a request.
 */
#pragma once

#include <stdio.h>

#include "base/status.h"

struct sl_otlp_config {
    const char *collector; // "HOST:PORT"; NULL or "": no spans
    double share;          // of the requests without a context, 0 to 1
    const char *service;   // "sluice-decode"
    const char *instance;  // "decode-0"; NULL: none
};

struct sl_otlp;

// Starts the exporter: call after sl_rpc_init(), before threads that make spans. Without a collector, *otlp_out is
// NULL. SL_ERR_INVALID names the option. Copies the strings.
enum sl_status sl_otlp_start(const struct sl_otlp_config *config, struct sl_otlp **otlp_out, struct sl_error *err);
// Sends the remaining spans for at most one second. Call after the last span ended, before sl_rpc_shutdown(). Accepts
// NULL, nulls *otlp.
void sl_otlp_stop(struct sl_otlp **otlp);

// Writes the counters of all spans of this process, for its admin port; works with and without a collector.
void sl_otlp_write_metrics(void *unused, FILE *page);
