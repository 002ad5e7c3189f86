// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/fidelity_recall.h"

#include <stdlib.h>
#include <string.h>

#include "base/ascending.h"

enum sl_status sl_recall_open(const struct sl_plan *plan, const struct sl_ops *ops,
                              const struct sl_remote_kv *remote_kv, int64_t n_prompt, struct sl_recall *recall_out,
                              struct sl_error *err) {
    const struct sl_recipe *recipe = &plan->recipe;
    struct sl_recall *r = recall_out;
    *r = (struct sl_recall){.ops = ops,
                            .remote_kv = remote_kv,
                            .first = recipe->sinks,
                            .last = n_prompt - recipe->recent.slots,
                            .topk = (uint32_t)recipe->topk,
                            .n_channels = recipe->channels};
    if (remote_kv == NULL) {
        return SL_OK;
    }
    sl_offloaded_heads_init(&r->offloaded_heads, &recipe->offload, &plan->geometry);
    r->scratch = sl_remote_kv_scratch_create(NULL);
    r->mean = calloc((size_t)plan->geometry.head_dim, sizeof *r->mean);
    r->found = calloc(r->topk, sizeof *r->found);
    r->best = calloc(r->topk, sizeof *r->best);
    return r->scratch && r->mean && r->found && r->best ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
}

void sl_recall_close(struct sl_recall *r) {
    if (r->scratch != NULL) {
        sl_remote_kv_scratch_destroy(&r->scratch);
    }
    free(r->mean);
    free(r->found);
    free(r->best);
    *r = (struct sl_recall){0};
}

// Sums the rows of KV head h's group into the first one, and sets r->mean to the mean query.
static float *sum_group(struct sl_recall *r, const struct sl_attend *attend, int h, float *paid, size_t stride) {
    int group = attend->n_heads / attend->heads.n, d = attend->head_dim;
    float *row = paid + (size_t)(h * group) * stride;
    memset(r->mean, 0, (size_t)d * sizeof *r->mean);
    for (int g = 0; g < group; g++) {
        const float *q = attend->q + (int64_t)(h * group + g) * d;
        for (int c = 0; c < d; c++) {
            r->mean[c] += q[c] / (float)group;
        }
        for (int64_t j = r->first; g > 0 && j < r->last; j++) {
            row[j] += paid[(size_t)(h * group + g) * stride + (size_t)j];
        }
    }
    return row;
}

enum sl_status sl_recall_add(struct sl_recall *r, int layer, const struct sl_attend *attend, float *paid, size_t stride,
                             struct sl_error *err) {
    if (r->remote_kv == NULL || r->offloaded_heads.index_of[layer] < 0 || r->last - r->first <= r->topk) {
        return SL_OK;
    }
    for (int h = 0; h < attend->heads.n; h++) {
        const float *row = sum_group(r, attend, h, paid, stride);
        struct sl_remote_kv_search search = {
            .remote_kv = r->remote_kv,
            .query = {.offloaded_head = sl_offloaded_heads_first(&r->offloaded_heads, layer) + h,
                      .q = r->mean,
                      .n_channels = r->n_channels,
                      .first = r->first,
                      .last = r->last,
                      .topk = r->topk},
            .tokens_out = r->found};
        SL_TRY(sl_remote_kv_search(&search, 1, r->scratch, err));
        r->ops->host.select(row + r->first, (uint32_t)(r->last - r->first), r->topk, r->best);
        for (uint32_t i = 0; i < r->topk; i++) {
            r->best[i] += (uint32_t)r->first;
        }
        r->sum[layer] += (double)sl_ascending_common(r->found, r->topk, r->best, r->topk) / r->topk;
        r->n[layer]++;
    }
    return SL_OK;
}

double sl_recall_mean(const struct sl_recall *r, int layer) {
    return r->n[layer] > 0 ? r->sum[layer] / (double)r->n[layer] : -1;
}
