// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: eviction inside offloaded layers: a recipe with place=offload and a budget chooses what of a layer is shipped.
 *
 *     tokens so far   0 .. sinks | chosen from          | undecided: newest `recent` | the chunk
 *     behind a chunk  0 .. sinks | chosen from          | chosen from now  | undecided: newest `recent`
 *
 * Design: slots that have been chosen are on their way to kvstores, and nobody takes them back: so every slot is decided
 *         once, behind the chunk with which it ceases to be one of the newest `recent`. How many stay is not decided here:
 *         behind n tokens a head has sl_plan_offloaded_slots(plan, n) slots, which one batch of candidates after the other
 *         fills up. All heads of all offloaded layers have equally many, so a place in an annex is a place in every lane.
 *         Which stay is the score's matter: one that a token has from the beginning (the retaining heads' of cis, or chance),
 *         since its later attention comes too late and its place in the cache has no state to travel with.
 *
 * Invariants: pages before the first candidate are not touched: they may be on their way. sl_plan_offloaded_slots() grows by no
 *             more than tokens do, and behind n tokens it has room for sinks, recent, and one slot more: so every batch can
 *             keep its sinks, and none is asked for more slots than it has.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compress/evict/internal.h"

// One batch of one layer. Slots are counted in the session's pages, from the page of the first candidate on.
struct batch {
    struct sl_compressor *c;
    struct sl_session *session;
    int layer;
    const struct sl_attend *attend;
    int64_t first_token;          // the first candidate; those before it have been decided
    int64_t n_waiting;            // undecided of earlier chunks
    int64_t n_candidates, n_keep; // decided now, and how many of them stay
    int64_t n_undecided;          // behind those
};

enum sl_status sl_thin_create(struct sl_compressor *c, struct sl_error *err) {
    size_t n_layers = (size_t)c->plan.geometry.n_layers, n_heads = (size_t)c->plan.geometry.n_kv_heads;
    struct sl_thin *thin = &c->thin;
    thin->n_recent = c->plan.recipe.recent.slots;
    thin->n_batch = thin->n_recent + c->plan.recipe.chunk_tokens;
    thin->n_read = calloc(n_layers, sizeof *thin->n_read);
    thin->undecided = calloc(n_layers * n_heads * (size_t)thin->n_recent + 1, sizeof *thin->undecided);
    thin->scores = calloc(n_heads * (size_t)thin->n_batch, sizeof *thin->scores);
    thin->keep = calloc(n_heads * (size_t)(thin->n_batch + SL_PAGE_SLOTS), sizeof *thin->keep);
    return thin->n_read && thin->undecided && thin->scores && thin->keep
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to choose among %" PRId64 " slots",
                         thin->n_batch);
}

void sl_thin_destroy(struct sl_thin *thin) {
    free(thin->n_read);
    free(thin->undecided);
    free(thin->scores);
    free(thin->keep);
    *thin = (struct sl_thin){0};
}

// Scores of the chunk's tokens in one head.
static void score_chunk(const struct batch *b, int head, float *scores) {
    const struct sl_attend *attend = b->attend;
    if (b->c->score->wants_importance) {
        memcpy(scores, attend->importance + (size_t)head * (size_t)attend->m, (size_t)attend->m * sizeof *scores);
        return;
    }
    for (int j = 0; j < attend->m; j++) { // one by one: chance needs a position and no neighbour
        int64_t position = b->session->n_tokens + j;
        struct sl_kv slot = {.n_slots = 1};
        struct sl_score_input in = {.ops = b->c->ops,
                                    .recipe = &b->c->plan.recipe,
                                    .kv = &slot,
                                    .layer = b->layer,
                                    .head = head,
                                    .n_tokens = position + 1,
                                    .positions = &position};
        b->c->method->read(&in, &scores[j]);
    }
}

// keep[0 .. n_keep) are candidates that stay: the list of all slots from the first candidate's page on that stay.
static void compact(const struct batch *b, int head, uint32_t *keep) {
    struct sl_kv kv = sl_session_kv(b->session, b->layer, head);
    int64_t first = (int64_t)kv.n_slots - b->n_candidates - b->n_undecided;
    uint32_t n_pages = (uint32_t)(first / SL_PAGE_SLOTS), before = (uint32_t)(first % SL_PAGE_SLOTS);
    uint32_t n_keep = (uint32_t)b->n_keep, n = before + n_keep;
    for (uint32_t i = n_keep; i-- > 0;) {
        keep[before + i] = before + keep[i];
    }
    for (uint32_t i = 0; i < before; i++) {
        keep[i] = i;
    }
    for (int64_t i = 0; i < b->n_undecided; i++) {
        keep[n++] = before + (uint32_t)(b->n_candidates + i);
    }
    kv.pages += n_pages;
    kv.n_slots -= n_pages * SL_PAGE_SLOTS;
    b->c->ops->gather(&kv, keep, n);
}

static void thin_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct batch *b = arg;
    const struct sl_thin *thin = &b->c->thin;
    int64_t sinks = b->c->plan.recipe.sinks;
    for (int64_t h = begin; h < end; h++) {
        float *scores = thin->scores + h * thin->n_batch;
        float *undecided = thin->undecided + (b->layer * b->c->plan.geometry.n_kv_heads + h) * thin->n_recent;
        uint32_t *keep = thin->keep + h * (thin->n_batch + SL_PAGE_SLOTS);
        memcpy(scores, undecided, (size_t)b->n_waiting * sizeof *scores);
        score_chunk(b, (int)h, scores + b->n_waiting);
        memcpy(undecided, scores + b->n_candidates, (size_t)b->n_undecided * sizeof *scores);
        for (int64_t j = 0; j < b->n_candidates && b->first_token + j < sinks; j++) {
            scores[j] = INFINITY;
        }
        if (b->n_keep < b->n_candidates) {
            b->c->ops->select(scores, (uint32_t)b->n_candidates, (uint32_t)b->n_keep, keep);
            compact(b, (int)h, keep);
        }
    }
}

static enum sl_status check_layer(const struct batch *b, struct sl_error *err) {
    const struct sl_layer *layer = &b->session->layers[b->layer];
    int64_t begin = b->session->n_tokens, n_read = b->c->thin.n_read[b->layer];
    if (n_read != begin) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "compressor: layer %d is thinned as it is read, and of %" PRId64 " tokens %" PRId64
                       " have been read here; read the prompt from its beginning",
                       b->layer, begin, n_read);
    }
    if (b->attend->m > b->c->plan.recipe.chunk_tokens) {
        return sl_fail(err, SL_ERR_PRECONDITION, "compressor: %d tokens at a time, the recipe has chunk=%d",
                       b->attend->m, b->c->plan.recipe.chunk_tokens);
    }
    for (int h = 0; h < b->session->geometry.n_kv_heads; h++) {
        const struct sl_head *head = &layer->heads[h];
        if (head->n_packed > 0 || head->n_slots != layer->heads[0].n_slots ||
            (int64_t)head->n_slots < b->n_candidates + b->n_undecided) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "compressor: layer %d head %d holds %" PRIu32 " slots, %" PRId64
                           " have not been decided yet",
                           b->layer, h, head->n_slots, b->n_candidates + b->n_undecided);
        }
    }
    return SL_OK;
}

enum sl_status sl_thin_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                             const struct sl_attend *attend, struct sl_error *err) {
    const struct sl_plan *plan = &c->plan;
    int64_t begin = session->n_tokens, end = begin + attend->m;
    int64_t n_waiting = sl_plan_undecided_slots(plan, begin), n_undecided = sl_plan_undecided_slots(plan, end);
    int64_t n_evicted = sl_plan_offloaded_slots(plan, begin) + attend->m - sl_plan_offloaded_slots(plan, end);
    struct batch b = {.c = c,
                      .session = session,
                      .layer = layer,
                      .attend = attend,
                      .first_token = begin - n_waiting,
                      .n_waiting = n_waiting,
                      .n_candidates = n_waiting + attend->m - n_undecided,
                      .n_undecided = n_undecided};
    b.n_keep = b.n_candidates - n_evicted;
    assert(n_evicted >= 0 && b.n_keep >= 0);
    enum sl_status status = check_layer(&b, err);
    if (status != SL_OK) {
        return status;
    }
    sl_team_run(c->team, session->geometry.n_kv_heads, 1, thin_heads, &b);
    for (int h = 0; n_evicted > 0 && h < session->geometry.n_kv_heads; h++) {
        const struct sl_head *head = &session->layers[layer].heads[h];
        sl_session_set_slots(session, layer, h, head->n_slots - (uint32_t)n_evicted);
        c->stats.slots_evicted += n_evicted;
    }
    c->thin.n_read[layer] = end;
    return SL_OK;
}
