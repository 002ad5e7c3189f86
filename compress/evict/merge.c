// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: D2O's dynamic merging: an evicted slot that is much like one that stays goes into it.
 *
 *     u_i   = max over kept slots c of cos(K_i, K_c), per KV head and evicted slot i; c(i) where it is reached
 *     m_t   = mean of u_i over the heads and evicted slots of the layer
 *     tau_0 = m_0,  tau_t = (1 - beta) tau_{t-1} + beta m_t        one per layer, kept in the session
 *     i is merged into c(i) where u_i >= tau_t, with weight exp(u_i) against e for c(i) itself (ops->merge)
 *
 * A cosine that rounding puts beyond 1 (keys that are alike: a token said again and again) counts as 1, so that the
 * average stays one of cosines, which is what capsules are held to. A head that keeps nothing (heads=adaptive) has
 * nothing to merge into: its slots are dropped and take no part in the mean.
 *
 * The paper's equation prints weights that sum to more than 1 when two slots go into one, and the authors' code
 * weights that sum to less; this is what the text around the equation says. The scores of kept slots stay as they are.
 */
#include <math.h>
#include <string.h>

#include "compress/evict/internal.h"

struct task {
    struct sl_compressor *c;
    const struct sl_eviction *e;
};

// Slots that may be merged.
static uint32_t n_evicted(const struct sl_scratch *s, int64_t head) {
    return s->kept[head] > 0 ? s->n_slots[head] - s->kept[head] : 0;
}

// The slots that are not in keep[], which ascends.
static void list_evicted(const uint32_t *keep, uint32_t n_keep, uint32_t n, uint32_t *evicted) {
    for (uint32_t j = 0, i = 0; j < n; j++) {
        if (i < n_keep && keep[i] == j) {
            i++;
        } else {
            *evicted++ = j;
        }
    }
}

static void nearest_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    const struct sl_scratch *s = &task->c->scratch;
    for (int64_t h = begin; h < end; h++) {
        size_t at = (size_t)h * s->stride;
        if (n_evicted(s, h) > 0) {
            struct sl_kv kv = sl_session_kv(task->e->session, task->e->layer, (int)h);
            list_evicted(s->keep + at, s->kept[h], s->n_slots[h], s->evicted + at);
            task->c->ops->nearest(&kv, s->evicted + at, n_evicted(s, h), s->keep + at, s->kept[h], s->nearest + at,
                                  s->cosine + at);
            for (uint32_t i = 0; i < n_evicted(s, h); i++) {
                s->cosine[at + i] = fminf(fmaxf(s->cosine[at + i], -1), 1); // NaN becomes -1
            }
        }
    }
}

// False where no slot may be merged.
static bool mean_similarity(const struct sl_scratch *s, int n_heads, float *mean_out) {
    double sum = 0;
    int64_t count = 0;
    for (int h = 0; h < n_heads; h++) {
        for (uint32_t i = 0; i < n_evicted(s, h); i++, count++) {
            sum += (double)s->cosine[(size_t)h * s->stride + i];
        }
    }
    *mean_out = count > 0 ? (float)(sum / (double)count) : 0;
    return count > 0;
}

// Those above the threshold move to the front of their lists: they are what is merged.
static uint32_t list_merged(const struct sl_scratch *s, int64_t head, float threshold) {
    size_t at = (size_t)head * s->stride;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_evicted(s, head); i++) {
        if (s->cosine[at + i] >= threshold) {
            s->evicted[at + n] = s->evicted[at + i];
            s->nearest[at + n] = s->nearest[at + i];
            s->cosine[at + n] = s->cosine[at + i];
            n++;
        }
    }
    return n;
}

static void merge_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    const struct sl_scratch *s = &task->c->scratch;
    for (int64_t h = begin; h < end; h++) {
        size_t at = (size_t)h * s->stride;
        if (s->merged[h] > 0) {
            struct sl_kv kv = sl_session_kv(task->e->session, task->e->layer, (int)h);
            task->c->ops->merge(&kv, s->evicted + at, s->nearest + at, s->cosine + at, s->merged[h]);
        }
    }
}

void sl_merge_evicted(struct sl_compressor *c, const struct sl_eviction *eviction) {
    struct sl_scratch *s = &c->scratch;
    int n_heads = eviction->session->geometry.n_kv_heads;
    struct sl_layer *layer = &eviction->session->layers[eviction->layer];
    struct task task = {c, eviction};
    sl_team_run(c->team, n_heads, 1, nearest_heads, &task);

    float mean, beta = (float)c->plan.recipe.merge_beta;
    memset(s->merged, 0, (size_t)n_heads * sizeof *s->merged);
    if (!mean_similarity(s, n_heads, &mean)) {
        return;
    }
    bool first = layer->merge_threshold == 0;
    layer->merge_threshold = first ? mean : (1 - beta) * layer->merge_threshold + beta * mean;
    for (int h = 0; h < n_heads; h++) {
        s->merged[h] = list_merged(s, h, layer->merge_threshold);
        c->stats.slots_merged += s->merged[h];
    }
    sl_team_run(c->team, n_heads, 1, merge_heads, &task);
}
