// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieval over offloaded layers while decoding. See retrieve.h for the formulas.
 *
 * Design: everything that a step needs has been allocated at creation: a head's slot list never exceeds the static
 *         prompt slots, topk and what the session can still grow by, and heads rank their slots in parallel, each in
 *         scratch of its own. Queries of one row are host arithmetic of a few hundred numbers; only ops touch pages.
 * Invariants: channels chosen from a predicted query serve the very next attention of their layer and no later one, so
 *             an answer never depends on a step that was read in another way. A head whose prompt is not longer than
 *             sinks, recent and topk together lists all of its slots; a layer of such heads is plain attention.
 */
#include "compress/retrieve.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

// One KV head of one offloaded layer.
struct head {
    uint32_t n_prompt; // slots that prefill left
    float *absmax;     // [d] over those
    int *channels;     // [n_channels], ascending
};

struct sl_retriever {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_layers offloaded;
    int n_layers, n_heads, head_dim, n_channels; // n_heads: KV heads
    uint32_t sinks, recent, topk;
    struct head *heads;  // [n_layers][n_heads]; of offloaded layers only
    bool *is_chosen;     // [n_layers]: the channels are there for the layer's next attention
    uint32_t **slots;    // [n_heads] lists of slots_cap entries
    uint32_t *n_slots;   // [n_heads]
    float *means;        // [n_heads][d]: the group's mean query
    float *scores;       // [n_heads][scores_cap]
    uint32_t scores_cap; // prompt slots that can be ranked
    size_t slots_cap;
    float *floats;       // one allocation behind every absmax, means and scores
    int *channels;       // behind every head's
    uint32_t *slot_list; // behind slots
    int64_t n_fetched;
};

// --- creation ------------------------------------------------------------------------------------------------------

static struct head *layer_heads(const struct sl_retriever *r, int layer) {
    return r->heads + (size_t)layer * (size_t)r->n_heads;
}

// Prompt slots that a head attends to or fetches in any case: with no more than these there is nothing to choose.
static uint32_t kept_slots(const struct sl_retriever *r) {
    return r->sinks + r->recent + r->topk;
}

static struct sl_kv head_kv(const struct sl_session *session, int layer, int head) {
    const struct sl_layer *l = &session->layers[layer];
    const struct sl_head *h = &l->heads[head];
    return (struct sl_kv){h->pages, h->n_packed, h->n_slots, &l->work, &l->packed};
}

// How many layers are offloaded, the longest prompt in slots, and the longest list that a step can make.
static int measure(struct sl_retriever *r, const struct sl_session *session, int64_t n_prompt) {
    int n_offloaded = 0;
    for (int l = 0; l < r->n_layers; l++) {
        if (!sl_layers_has(&r->offloaded, l)) {
            continue;
        }
        n_offloaded++;
        for (int h = 0; h < r->n_heads; h++) {
            struct head *head = &layer_heads(r, l)[h];
            uint32_t held = session->layers[l].heads[h].n_slots; // evicted slots are gone: what is left is the prompt
            head->n_prompt = (int64_t)held < n_prompt ? held : (uint32_t)n_prompt;
            uint32_t listed = head->n_prompt < kept_slots(r) ? head->n_prompt : kept_slots(r);
            size_t most = (size_t)listed + (size_t)session->max_slots - head->n_prompt;
            r->slots_cap = most > r->slots_cap ? most : r->slots_cap;
            r->scores_cap = head->n_prompt > r->scores_cap ? head->n_prompt : r->scores_cap;
        }
    }
    // Channels are ranked in the same scratch.
    r->scores_cap = r->scores_cap > (uint32_t)r->head_dim ? r->scores_cap : (uint32_t)r->head_dim;
    r->slots_cap = r->slots_cap > (size_t)r->head_dim ? r->slots_cap : (size_t)r->head_dim;
    return n_offloaded;
}

static bool allocate(struct sl_retriever *r, int n_offloaded) {
    size_t n_heads = (size_t)r->n_heads, d = (size_t)r->head_dim;
    r->floats = calloc(n_heads * ((size_t)n_offloaded * d + d + r->scores_cap), sizeof *r->floats);
    r->channels = calloc(n_heads * (size_t)n_offloaded * (size_t)r->n_channels, sizeof *r->channels);
    r->slot_list = calloc(n_heads * r->slots_cap, sizeof *r->slot_list);
    r->slots = calloc(n_heads, sizeof *r->slots);
    r->n_slots = calloc(n_heads, sizeof *r->n_slots);
    if (r->floats == NULL || r->channels == NULL || r->slot_list == NULL || r->slots == NULL || r->n_slots == NULL) {
        return false;
    }
    float *next = r->floats;
    int *next_channels = r->channels;
    for (int l = 0; l < r->n_layers; l++) {
        for (int h = 0; h < r->n_heads && sl_layers_has(&r->offloaded, l); h++) {
            layer_heads(r, l)[h].absmax = next;
            layer_heads(r, l)[h].channels = next_channels;
            next += d;
            next_channels += r->n_channels;
        }
    }
    r->means = next;
    r->scores = next + n_heads * d;
    for (size_t h = 0; h < n_heads; h++) {
        r->slots[h] = r->slot_list + h * r->slots_cap;
    }
    return true;
}

// Largest magnitudes of the prompt's keys, which no later token changes.
struct absmax_task {
    struct sl_retriever *retriever;
    const struct sl_session *session;
};

static void find_absmax(void *arg, int64_t begin, int64_t end, int member) {
    const struct absmax_task *task = arg;
    struct sl_retriever *r = task->retriever;
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        int layer = (int)(i / r->n_heads), head = (int)(i % r->n_heads);
        if (sl_layers_has(&r->offloaded, layer)) {
            struct sl_kv kv = head_kv(task->session, layer, head);
            r->ops->channel_absmax(&kv, 0, r->heads[i].n_prompt, r->heads[i].absmax);
        }
    }
}

static enum sl_status check(const struct sl_plan *plan, const struct sl_session *session, int64_t n_prompt,
                            struct sl_error *err) {
    const struct sl_recipe *recipe = &plan->recipe;
    if (session->positions != SL_POSITION_ORIGINAL) {
        return sl_fail(err, SL_ERR_INVALID, "retrieval ranks keys after RoPE: it needs positions=original");
    }
    if (recipe->topk < 1 || recipe->topk > UINT32_MAX / 4 || recipe->channels < 1 || recipe->sinks < 0 ||
        recipe->sinks > UINT32_MAX / 4 || recipe->recent.slots < 0 || recipe->recent.slots > UINT32_MAX / 4) {
        return sl_fail(err, SL_ERR_INVALID,
                       "retrieval of %lld slots by %d channels, with %lld sinks and %lld recent slots: expected at "
                       "least one slot and one channel",
                       (long long)recipe->topk, recipe->channels, (long long)recipe->sinks,
                       (long long)recipe->recent.slots);
    }
    if (n_prompt < 0) {
        return sl_fail(err, SL_ERR_INVALID, "retrieval from a prompt of %lld tokens", (long long)n_prompt);
    }
    return SL_OK;
}

enum sl_status sl_retriever_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                   const struct sl_session *session, int64_t n_prompt,
                                   struct sl_retriever **retriever_out, struct sl_error *err) {
    enum sl_status status = check(plan, session, n_prompt, err);
    if (status != SL_OK) {
        return status;
    }
    const struct sl_kv_geometry *g = &session->geometry;
    struct sl_retriever *r = calloc(1, sizeof *r);
    if (r == NULL) {
        goto err_memory;
    }
    r->ops = ops;
    r->team = team;
    r->offloaded = plan->recipe.offload;
    r->n_layers = g->n_layers;
    r->n_heads = g->n_kv_heads;
    r->head_dim = g->head_dim;
    r->n_channels = plan->recipe.channels < g->head_dim ? plan->recipe.channels : g->head_dim;
    r->sinks = (uint32_t)plan->recipe.sinks;
    r->recent = (uint32_t)plan->recipe.recent.slots;
    r->topk = (uint32_t)plan->recipe.topk;
    r->heads = calloc((size_t)r->n_layers * (size_t)r->n_heads, sizeof *r->heads);
    r->is_chosen = calloc((size_t)r->n_layers, sizeof *r->is_chosen);
    if (r->heads == NULL || r->is_chosen == NULL || !allocate(r, measure(r, session, n_prompt))) {
        goto err_destroy;
    }
    struct absmax_task task = {r, session};
    sl_team_run(team, (int64_t)r->n_layers * r->n_heads, 1, find_absmax, &task);
    *retriever_out = r;
    return SL_OK;

err_destroy:
    sl_retriever_destroy(&r);
err_memory:
    return sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory to rank %lld slots", (long long)n_prompt);
}

void sl_retriever_destroy(struct sl_retriever **retriever) {
    struct sl_retriever *r = *retriever;
    if (r == NULL) {
        return;
    }
    free(r->floats);
    free(r->channels);
    free(r->slot_list);
    free(r->slots);
    free(r->n_slots);
    free(r->heads);
    free(r->is_chosen);
    free(r);
    *retriever = NULL;
}

// --- channels ------------------------------------------------------------------------------------------------------

// mean_out[c] = mean over the G query heads of KV head h of q[.][c]; signs cancel, as in the authors' code.
static void group_mean(const struct sl_attend *attend, const float *q, int h, float *mean_out) {
    int group = attend->n_heads / attend->n_kv_heads, d = attend->head_dim;
    const float *first = q + (int64_t)h * group * d;
    for (int c = 0; c < d; c++) {
        float sum = 0.0f;
        for (int g = 0; g < group; g++) {
            sum += first[g * d + c];
        }
        mean_out[c] = sum / (float)group;
    }
}

// The channels of one head in which |mean query| * absmax is largest. Scratch: scores [d], list [d].
static void choose_channels(const struct sl_retriever *r, struct head *head, const float *mean, float *scores,
                            uint32_t *list) {
    for (int c = 0; c < r->head_dim; c++) {
        scores[c] = fabsf(mean[c]) * head->absmax[c];
    }
    r->ops->select(scores, (uint32_t)r->head_dim, (uint32_t)r->n_channels, list);
    for (int i = 0; i < r->n_channels; i++) {
        head->channels[i] = (int)list[i];
    }
}

// Ahead of a layer: from the query that the layer before predicts for it.
static void choose_ahead(struct sl_retriever *r, int layer, const struct sl_attend *attend) {
    for (int h = 0; h < r->n_heads; h++) {
        group_mean(attend, attend->next_q, h, r->means);
        choose_channels(r, &layer_heads(r, layer)[h], r->means, r->scores, r->slots[0]);
    }
    r->is_chosen[layer] = true;
}

// --- slots ---------------------------------------------------------------------------------------------------------

struct list_task {
    struct sl_retriever *retriever;
    const struct sl_attend *attend;
    int layer;
    bool is_chosen;
};

static uint32_t add_range(uint32_t *list, uint32_t n, uint32_t begin, uint32_t end) {
    for (uint32_t j = begin; j < end; j++) {
        list[n++] = j;
    }
    return n;
}

// Heads [begin, end): sinks, the topk of the prompt slots between, recent, and all that came after the prompt.
static void list_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct list_task *task = arg;
    struct sl_retriever *r = task->retriever;
    (void)member;
    for (int64_t h = begin; h < end; h++) {
        struct head *head = &layer_heads(r, task->layer)[h];
        const struct sl_kv *kv = &task->attend->kv[h];
        uint32_t *list = r->slots[h];
        if (head->n_prompt <= kept_slots(r)) {
            r->n_slots[h] = add_range(list, 0, 0, kv->n_slots);
            continue;
        }
        float *mean = r->means + h * r->head_dim, *scores = r->scores + (size_t)h * r->scores_cap;
        group_mean(task->attend, task->attend->q, (int)h, mean);
        if (!task->is_chosen) {
            choose_channels(r, head, mean, scores, list);
        }
        uint32_t first = r->sinks, last = head->n_prompt - r->recent;
        r->ops->channel_scores(kv, mean, head->channels, r->n_channels, first, last, scores);
        uint32_t n = add_range(list, 0, 0, first);
        r->ops->select(scores, last - first, r->topk, list + n);
        for (uint32_t i = 0; i < r->topk; i++) {
            list[n++] += first;
        }
        r->n_slots[h] = add_range(list, n, last, kv->n_slots);
    }
}

// Whether any head of the layer has more prompt slots than are kept in any case.
static bool has_choice(const struct sl_retriever *r, int layer, int64_t *n_choosing_out) {
    int64_t n = 0;
    for (int h = 0; h < r->n_heads; h++) {
        n += layer_heads(r, layer)[h].n_prompt > kept_slots(r);
    }
    *n_choosing_out = n;
    return n > 0;
}

enum sl_status sl_retriever_attend(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                   struct sl_error *err) {
    struct sl_retriever *r = retriever;
    assert(layer >= 0 && layer < r->n_layers && attend->n_kv_heads == r->n_heads && attend->head_dim == r->head_dim);
    if (layer + 1 < r->n_layers && sl_layers_has(&r->offloaded, layer + 1)) {
        r->is_chosen[layer + 1] = false; // of a step that never came to that layer
        if (attend->m == 1 && attend->next_q != NULL) {
            choose_ahead(r, layer + 1, attend);
        }
    }
    int64_t n_choosing = 0;
    if (!sl_layers_has(&r->offloaded, layer) || attend->m != 1 || !has_choice(r, layer, &n_choosing)) {
        r->ops->attend(r->team, attend, 1);
        return SL_OK;
    }
    for (int h = 0; h < r->n_heads; h++) {
        const struct head *head = &layer_heads(r, layer)[h];
        uint32_t listed = head->n_prompt < kept_slots(r) ? head->n_prompt : kept_slots(r);
        uint32_t n_slots = attend->kv[h].n_slots;
        if (n_slots < head->n_prompt || listed + (size_t)(n_slots - head->n_prompt) > r->slots_cap) {
            return sl_fail(err, SL_ERR_INTERNAL, "retrieval: layer %d, head %d has %u slots, %u of them the prompt's",
                           layer, h, n_slots, head->n_prompt);
        }
    }
    struct list_task task = {r, attend, layer, r->is_chosen[layer]};
    sl_team_run(r->team, r->n_heads, 1, list_heads, &task);
    r->is_chosen[layer] = false;
    r->ops->attend_slots(r->team, attend, (const uint32_t *const *)r->slots, r->n_slots);
    r->n_fetched += n_choosing * r->topk;
    return SL_OK;
}

int64_t sl_retriever_fetched(const struct sl_retriever *retriever) {
    return retriever->n_fetched;
}
