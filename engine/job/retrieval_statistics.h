// SPDX-License-Identifier: Apache-2.0
// Purpose: how offloaded layers were served, as the Statistics message tells it.
#pragma once

#include "engine/offload/retriever/retriever.h"
#include "proto/sluice/v1/inference.pb-c.h"

// What has been counted since `before`; recall and sizes are as they are.
struct sl_retriever_stats sl_retriever_stats_since(const struct sl_retriever_stats *stats,
                                                   const struct sl_retriever_stats *before);

// Have `message` point to *retrieval, which must outlive it, with what a retriever has counted.
void sl_retrieval_statistics_attach(const struct sl_retriever_stats *stats, Sluice__V1__Retrieval *retrieval,
                                    Sluice__V1__Statistics *message);
