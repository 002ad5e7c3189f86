// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: heads=global: all slots of all heads of all layers that evict compete for the sum of their budgets, as in
 *          KVzip (Kim et al., section 3.3). Protected slots come first; no head has another share to itself.
 *
 * Design: the host selects from the scores of all heads in one array: by score, then by layer, head and slot.
 */
#include <stdlib.h>

#include "engine/compress/evict/internal.h"

// Copies the scores of every head, one after the other, into scores; writes where each head's begin into begins
// [n_layers * n_kv_heads + 1].
static enum sl_status collect_scores(struct sl_compressor *c, struct sl_session *session, float *scores,
                                     uint32_t *begins, struct sl_error *err) {
    int n_heads = session->geometry.n_kv_heads;
    enum sl_status status = SL_OK;
    begins[0] = 0;
    for (int l = 0; status == SL_OK && l < session->geometry.n_layers; l++) {
        struct sl_eviction eviction = {.session = session,
                                       .layer = l,
                                       .n_tokens = session->n_tokens,
                                       .budget = c->plan.budget_slots,
                                       .tail = c->plan.tail_slots};
        struct sl_kv_heads heads;
        bool evicts = sl_layer_evicts(c, l);
        status = evicts ? sl_rank_layer(c, &eviction, &heads, err) : SL_OK;
        for (int i = l * n_heads; status == SL_OK && i < (l + 1) * n_heads; i++) {
            uint32_t n = evicts ? heads.kv[i % n_heads].n_slots : 0;
            const float *from = c->scratch.scores.at + (size_t)(i % n_heads) * c->scratch.scores.stride;
            begins[i + 1] = begins[i] + n;
            if (n > 0) {
                sl_stream_copy(c->stream, scores + begins[i], from, n * sizeof *scores);
            }
        }
    }
    return status == SL_OK ? sl_stream_wait(c->stream, err) : status;
}

enum sl_status sl_count_globally(struct sl_compressor *c, struct sl_session *session, uint32_t *counts_out,
                                 struct sl_error *err) {
    int64_t n_layers = session->geometry.n_layers, n_heads = session->geometry.n_kv_heads, n_evicting = 0;
    size_t most = 0;
    for (int l = 0; l < n_layers; l++) {
        n_evicting += sl_layer_evicts(c, l);
        for (int h = 0; sl_layer_evicts(c, l) && h < n_heads; h++) {
            most += session->layers[l].heads[h].n_slots;
        }
    }
    struct sl_device *device = c->stream->device;
    float *scores = sl_device_alloc(device, SL_MEMORY_SHARED, most * sizeof *scores);
    uint32_t *begins = calloc((size_t)(n_layers * n_heads + 1), sizeof *begins), *keep = malloc(most * sizeof *keep);
    enum sl_status status = SL_OK;
    if (scores == NULL || begins == NULL || keep == NULL || most > UINT32_MAX) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to compare the %zu slots of all layers", most);
    }
    SL_THEN(status, collect_scores(c, session, scores, begins, err));
    if (status == SL_OK) {
        int64_t budget = (c->plan.total_budget + c->plan.tail_slots * n_evicting) * n_heads;
        uint32_t n = begins[n_layers * n_heads], stay = budget < n ? (uint32_t)budget : n;
        c->ops->host.select(scores, n, stay, keep);
        for (uint32_t i = 0, head = 0; i < stay; i++) {
            while (keep[i] >= begins[head + 1]) {
                head++;
            }
            counts_out[head]++;
        }
    } else {
        (void)sl_stream_wait(c->stream, NULL); // queued copies write to scores
    }
    sl_device_free(device, SL_MEMORY_SHARED, scores);
    free(begins);
    free(keep);
    return status;
}
