// SPDX-License-Identifier: Apache-2.0
// Purpose: statistics of retrieval from offloaded layers in the form of the Statistics message.
#pragma once

#include "engine/offload/retriever/retriever.h"
#include "proto/sluice/v1/inference.pb-c.h"

// Returns the counts since `before`; recall and sizes are not differences.
struct sl_retriever_stats sl_retriever_stats_since(const struct sl_retriever_stats *stats,
                                                   const struct sl_retriever_stats *before);

// Makes `message` point to *retrieval, which must outlive it, and fills it with a retriever's counts.
void sl_retrieval_statistics_attach(const struct sl_retriever_stats *stats, Sluice__V1__Retrieval *retrieval,
                                    Sluice__V1__Statistics *message);
