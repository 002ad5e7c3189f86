// SPDX-License-Identifier: Apache-2.0
// Purpose: the gateway's own metrics in Prometheus' format (docs/METRICS.md), and its probes. The names are an
// interface.
#pragma once

struct sl_gateway;

// Returns the page for the users' port, malloc'd; NULL: no memory.
char *sl_gateway_metrics(struct sl_gateway *gateway);

// Adds the page and the probes to the admin port, when the gateway serves.
void sl_gateway_add_probes(struct sl_gateway *gateway);
