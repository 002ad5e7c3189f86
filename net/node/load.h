// SPDX-License-Identifier: Apache-2.0
// Purpose: the load of a worker: its jobs and memory, for its heartbeats and its metrics.
#pragma once

#include "net/node/node.h"

void sl_node_report_load(struct sl_node *node, const struct sl_node_service *service, Sluice__V1__WorkerLoad *load);
