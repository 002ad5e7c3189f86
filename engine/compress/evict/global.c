// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: heads=global: all slots of all heads of all layers that evict compete for the sum of their budgets, as in
 *          KVzip (Kim et al., section 3.3). Protected slots come first; no head has another share to itself.
 *          heads=pages: afterwards counts become whole pages, because the last, partial page of a head stays in f16,
 *          which takes a fifth to a half of the bytes of a few hundred slots in int4.
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

// Rounds the counts of evicting heads to whole pages. The sum stays below what it was: full pages go to the heads whose
// counts lack the least of one. Every head keeps the pages of its protected slots. n: heads; rests, grow: scratch [n].
static void round_to_pages(const struct sl_compressor *c, const struct sl_session *session, uint32_t *counts, int64_t n,
                           float *rests, uint32_t *grow) {
    const struct sl_plan *plan = &c->plan;
    int64_t n_heads = session->geometry.n_kv_heads, left = 0;
    uint32_t least = sl_pages_for(plan->recipe.sinks + plan->recent_slots + plan->tail_slots), n_partial = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t held = session->layers[i / n_heads].heads[i % n_heads].n_slots / SL_PAGE_SLOTS;
        uint32_t pages = counts[i] / SL_PAGE_SLOTS;
        rests[i] = -1;
        if (held >= least && counts[i] > 0) { // others have nothing to evict, or are shorter than what is protected
            left += counts[i];
            rests[i] = pages >= least && pages < held ? (float)(counts[i] % SL_PAGE_SLOTS) : -1;
            counts[i] = (pages < least ? least : pages) * SL_PAGE_SLOTS;
            left -= counts[i];
            n_partial += rests[i] >= 0;
        }
    }
    int64_t n_more = left > 0 ? left / SL_PAGE_SLOTS : 0;
    uint32_t n_grow = n_more < n_partial ? (uint32_t)n_more : n_partial;
    c->ops->host.select(rests, (uint32_t)n, n_grow, grow);
    for (uint32_t i = 0; i < n_grow; i++) {
        counts[grow[i]] += SL_PAGE_SLOTS;
    }
}

enum sl_status sl_count_globally(struct sl_compressor *c, struct sl_session *session, uint32_t *counts_out,
                                 struct sl_error *err) {
    int64_t n_layers = session->geometry.n_layers, n_heads = session->geometry.n_kv_heads, n_evicting = 0;
    size_t most = (size_t)(n_layers * n_heads); // slots of all heads, and room for a number of each head
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
        if (c->plan.recipe.heads == SL_HEADS_PAGES) {
            round_to_pages(c, session, counts_out, n_layers * n_heads, scores, keep);
        }
    } else {
        (void)sl_stream_wait(c->stream, NULL); // queued copies write to scores
    }
    sl_device_free(device, SL_MEMORY_SHARED, scores);
    free(begins);
    free(keep);
    return status;
}
