// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: D2O's dynamic merging: an evicted slot that is similar to a kept slot is merged into it.
 *
 *     u_i   = max over kept slots c of cos(K_i, K_c), per KV head and evicted slot i; c(i) where it is reached
 *     m_t   = mean of u_i over the heads and evicted slots of the layer
 *     tau_0 = m_0,  tau_t = (1 - beta) tau_{t-1} + beta m_t        one per layer, kept in the session
 *     i is merged into c(i) where u_i >= tau_t, with weight exp(u_i) against e for c(i) itself
 *
 * Cosines are clamped to [-1, 1], because rounding puts the cosine of equal keys (a repeated token) above 1. So the
 * average stays within [-1, 1], which capsules are checked for. A head that keeps nothing (heads=adaptive) drops its
 * evicted slots; they take no part in the mean.
 *
 * The paper's equation prints weights that sum to more than 1 when two slots are merged into one, and the authors'
 * code uses weights that sum to less. This file follows the text around the equation. The scores of kept slots do not
 * change.
 */
#include "engine/compress/evict/internal.h"

enum sl_status sl_merge_evicted(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads,
                                struct sl_counts kept, struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    float *threshold = &e->session->layers[e->layer].merge_threshold;
    s->merged->threshold = *threshold;
    const struct sl_merge_threshold moving = {(float)c->plan.recipe.merge_beta, &s->merged->threshold, &s->merged->n};
    c->ops->nearest(c->stream, heads, s->keep, kept, s->nearest);
    c->ops->merge(c->stream, heads, kept, s->nearest, moving);
    SL_TRY(sl_stream_wait(c->stream, err));
    *threshold = s->merged->threshold;
    c->stats.slots_merged += s->merged->n;
    return SL_OK;
}
