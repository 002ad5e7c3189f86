// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: D2O's dynamic merging: an evicted slot that is much like one that stays goes into it.
 *
 *     u_i   = max over kept slots c of cos(K_i, K_c), per KV head and evicted slot i; c(i) where it is reached
 *     m_t   = mean of u_i over the heads and evicted slots of the layer
 *     tau_0 = m_0,  tau_t = (1 - beta) tau_{t-1} + beta m_t        one per layer, kept in the session
 *     i is merged into c(i) where u_i >= tau_t, with weight exp(u_i) against e for c(i) itself
 *
 * Cosines are within [-1, 1], so that the average stays one of cosines, which is what capsules are held to: rounding puts
 * keys that are alike (a token said again and again) beyond 1. A head that keeps nothing (heads=adaptive) has nothing to
 * merge into: its slots are dropped and take no part in the mean.
 *
 * The paper's equation prints weights that sum to more than 1 when two slots go into one, and the authors' code
 * weights that sum to less; this is what the text around the equation says. The scores of kept slots stay as they are.
 */
#include "engine/compress/evict/internal.h"

enum sl_status sl_merge_evicted(struct sl_compressor *c, const struct sl_eviction *e, const struct sl_kv_heads *heads,
                                struct sl_counts kept, struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    float *threshold = &e->session->layers[e->layer].merge_threshold;
    s->merged->threshold = *threshold;
    c->ops->nearest(c->stream, heads, s->keep, kept, s->evicted, s->nearest, s->cosine);
    c->ops->merge(c->stream, heads, kept, s->evicted, s->nearest, s->cosine, (float)c->plan.recipe.merge_beta,
                  &s->merged->threshold, &s->merged->n);
    enum sl_status status = sl_stream_wait(c->stream, err);
    if (status == SL_OK) {
        *threshold = s->merged->threshold;
        c->stats.slots_merged += s->merged->n;
    }
    return status;
}
