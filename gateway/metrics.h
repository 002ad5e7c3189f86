// SPDX-License-Identifier: Apache-2.0
// Purpose: the gateway's own figures, as Prometheus reads them (docs/METRICS.md), and its probes. The names are an interface.
#pragma once

struct sl_gateway;

// For the users' port: malloc'd; NULL: no memory.
char *sl_gateway_metrics(struct sl_gateway *gateway);

// For the admin port, when the gateway serves.
void sl_gateway_add_probes(struct sl_gateway *gateway);
