// SPDX-License-Identifier: Apache-2.0
// Purpose: what a worker has to do and holds, as its heartbeats and its metrics tell it.
#pragma once

#include "node/node.h"

void sl_node_report_load(struct sl_node *node, const struct sl_node_service *service, Sluice__V1__WorkerLoad *load);
