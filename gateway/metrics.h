// SPDX-License-Identifier: Apache-2.0
// Purpose: the gateway's own figures, as Prometheus reads them. Their names are an interface: tests/cluster/test_gateway.py has them.
#pragma once

struct sl_gateway;

// malloc'd; NULL: no memory.
char *sl_gateway_metrics(struct sl_gateway *gateway);
