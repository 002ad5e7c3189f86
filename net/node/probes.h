// SPDX-License-Identifier: Apache-2.0
// Purpose: the probes and metrics of a worker's admin port (net/admin/admin.h): whether it is alive and ready, and what it
//          holds.
#pragma once

#include "net/node/node.h"

/*
 * Call once the server listens, and watch and agent run. Alive: no watched thread is stalled; the coordinator has no
 * influence on it. Ready: the coordinator knows this worker and gives it jobs. The service outlives the port.
 */
void sl_node_add_probes(struct sl_node *node, const struct sl_node_service *service);
