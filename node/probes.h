// SPDX-License-Identifier: Apache-2.0
// Purpose: what a worker's admin port tells (admin/admin.h): whether it lives, is ready, and what it holds.
#pragma once

#include "node/node.h"

/*
 * Once the server listens, and watch and agent run: alive while no watched thread stands still, which the coordinator has no part
 * in; ready while the coordinator knows this worker and gives it jobs. The service outlives the port.
 */
void sl_node_add_probes(struct sl_node *node, const struct sl_node_service *service);
