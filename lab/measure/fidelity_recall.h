// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the recall of searching an offloaded layer by a few channels, in few bits. It is the share of the topk
 *          prompt slots that a query attends to most over the full cache (mean over the group; sinks and recent slots
 *          are not searched) that the search finds with the same query. The additional loss by prediction is in a
 *          job's statistics.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/offload/remote_kv/remote_kv.h"

struct sl_recall {
    const struct sl_ops *ops;
    const struct sl_remote_kv *remote_kv; // all offloaded heads; borrowed
    struct sl_offloaded_heads offloaded_heads;
    struct sl_remote_kv_scratch *scratch;
    int64_t first, last; // tokens that are searched
    uint32_t topk;
    int n_channels;
    float *mean;            // [head_dim]
    uint32_t *found, *best; // [topk]
    double sum[SL_MAX_LAYERS];
    int64_t n[SL_MAX_LAYERS];
};

// Opens the recall. Nothing to search (remote KV NULL): nothing is counted. SL_ERR_EXHAUSTED: no memory. Close it in
// any case.
enum sl_status sl_recall_open(const struct sl_plan *plan, const struct sl_ops *ops,
                              const struct sl_remote_kv *remote_kv, int64_t n_prompt, struct sl_recall *recall_out,
                              struct sl_error *err);
// Adds one row over the full cache: paid[n_heads][stride] is each query head's attention to each slot; overwrites the
// first head of each group.
enum sl_status sl_recall_add(struct sl_recall *recall, int layer, const struct sl_attend *attend, float *paid,
                             size_t stride, struct sl_error *err);
double sl_recall_mean(const struct sl_recall *recall, int layer); // -1: nothing was searched
void sl_recall_close(struct sl_recall *recall);
