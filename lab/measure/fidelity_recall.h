// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what searching an offloaded layer by a few channels, in few bits, misses: of the topk prompt slots that a query
 *          attends to most over the full cache (mean over the group; sinks and recent slots are not searched), the share
 *          that the search finds with the same query. What prediction loses on top of that is in a job's statistics.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/offload/annex/annex.h"

struct sl_recall {
    const struct sl_ops *ops;
    const struct sl_annex *annex; // all lanes; borrowed
    struct sl_lanes lanes;
    struct sl_annex_scratch *scratch;
    int64_t first, last; // tokens that are searched
    uint32_t topk;
    int n_channels;
    float *mean;            // [head_dim]
    uint32_t *found, *best; // [topk]
    double sum[SL_MAX_LAYERS];
    int64_t n[SL_MAX_LAYERS];
};

// Nothing to search (annex NULL): nothing is counted. SL_ERR_EXHAUSTED. To be closed in any case.
enum sl_status sl_recall_open(const struct sl_plan *plan, const struct sl_ops *ops, const struct sl_annex *annex,
                              int64_t n_prompt, struct sl_recall *recall_out, struct sl_error *err);
// One row over the full cache: paid[n_heads][stride] is what each query head pays to each slot; its first head of a group
// is overwritten.
enum sl_status sl_recall_add(struct sl_recall *recall, int layer, const struct sl_attend *attend, float *paid,
                             size_t stride, struct sl_error *err);
double sl_recall_mean(const struct sl_recall *recall, int layer); // -1: nothing was searched
void sl_recall_close(struct sl_recall *recall);
