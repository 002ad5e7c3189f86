// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: evicts from offloaded layers: a recipe with place=offload and a budget chooses which slots of a layer are
 *          shipped.
 *
 *     tokens so far   0 .. sinks | chosen from          | undecided: newest `recent` | the chunk
 *     after a chunk   0 .. sinks | chosen from          | chosen from now  | undecided: newest `recent`
 *
 * Design: chosen slots are on their way to kvstores and cannot be recalled. So every slot is decided once, after the
 *         chunk with which it ceases to be one of the newest `recent`. The plan decides how many stay: after n tokens
 *         a head has sl_plan_offloaded_slots(plan, n) slots, which successive batches of candidates fill. All heads
 *         of all offloaded layers have equally many slots, so an index into remote KV is valid for every offloaded
 *         head. The score decides which stay. It must be one that a token has from the beginning (the retaining
 *         heads' score of cis, or a random one): attention that arrives later is too late, and shipped slots carry no
 *         score state.
 *
 * Invariants: pages before the first candidate are not touched: they may be on their way. sl_plan_offloaded_slots()
 *             grows by no more than the number of tokens. After n tokens it has room for sinks, recent, and one more
 *             slot: so every batch can keep its sinks, and no batch must keep more slots than it has.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/compress/evict/internal.h"

// State of one batch of one layer.
struct batch {
    struct sl_compressor *c;
    struct sl_session *session;
    int layer;
    const struct sl_attend *attend;
    int64_t first_token;          // the first candidate; those before it have been decided
    int64_t n_waiting;            // undecided of earlier chunks
    int64_t n_candidates, n_keep; // decided now, and how many of them stay
    int64_t n_undecided;          // undecided after this batch
};

// Allocates n numbers in device memory.
static void *alloc(struct sl_compressor *c, size_t n) {
    return sl_device_alloc(c->stream->device, SL_MEMORY_DEVICE, n * sizeof(float));
}

enum sl_status sl_thin_create(struct sl_compressor *c, struct sl_error *err) {
    size_t n_layers = (size_t)c->plan.geometry.n_layers, n_heads = (size_t)c->plan.geometry.n_kv_heads;
    struct sl_thin *thin = &c->thin;
    thin->n_recent = c->plan.recipe.recent.slots;
    thin->n_batch = thin->n_recent + c->plan.recipe.chunk_tokens;
    size_t n_batch = (size_t)thin->n_batch, stride = (n_batch + SL_PAGE_SLOTS + 15) / 16 * 16;
    thin->n_read = calloc(n_layers, sizeof *thin->n_read);
    thin->undecided = alloc(c, n_layers * n_heads * (size_t)thin->n_recent + 1);
    thin->batch = alloc(c, n_heads * n_batch);
    thin->scores = (struct sl_vectors){alloc(c, n_heads * stride), stride};
    thin->keep = (struct sl_lists){alloc(c, n_heads * stride), stride};
    thin->kept = calloc(n_heads, sizeof *thin->kept);
    thin->protections = calloc(n_heads, sizeof *thin->protections);
    return thin->n_read && thin->undecided && thin->batch && thin->scores.at && thin->keep.at && thin->kept &&
                   thin->protections
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to choose among %" PRId64 " slots",
                         thin->n_batch);
}

void sl_thin_destroy(struct sl_compressor *c) {
    struct sl_device *device = c->stream->device;
    struct sl_thin *thin = &c->thin;
    free(thin->n_read);
    sl_device_free(device, SL_MEMORY_DEVICE, thin->undecided);
    sl_device_free(device, SL_MEMORY_DEVICE, thin->batch);
    sl_device_free(device, SL_MEMORY_DEVICE, thin->scores.at);
    sl_device_free(device, SL_MEMORY_DEVICE, thin->keep.at);
    free(thin->kept);
    free(thin->protections);
    *thin = (struct sl_thin){0};
}

/*
 * Reads the retaining heads' scores of the batch's tokens, those that waited and those of the chunk, into scores from
 * slot `before` on. Scores of tokens that remain undecided wait for the next batch.
 */
static void read_importance(const struct batch *b, uint32_t before) {
    const struct sl_thin *thin = &b->c->thin;
    size_t n_heads = (size_t)b->c->plan.geometry.n_kv_heads, row_bytes = n_heads * sizeof *thin->batch;
    size_t n_waiting = (size_t)b->n_waiting, m = (size_t)b->attend->m, n_candidates = (size_t)b->n_candidates;
    float *undecided = thin->undecided + (size_t)(b->layer * thin->n_recent) * n_heads;
    struct sl_stream *stream = b->c->stream;
    sl_stream_copy(stream, thin->batch, undecided, n_waiting * row_bytes);
    sl_stream_copy(stream, thin->batch + n_waiting * n_heads, b->attend->importance, m * row_bytes);
    sl_stream_copy(stream, undecided, thin->batch + n_candidates * n_heads, (size_t)b->n_undecided * row_bytes);
    struct sl_vectors scores = {thin->scores.at + before, thin->scores.stride};
    b->c->ops->spread(b->c->stream, thin->batch, (int)n_heads, (int)(n_waiting + m), scores);
}

// Builds the heads of the session from the page of the first candidate on; *before_out: slots of that page that are
// already decided.
static enum sl_status heads_from_candidates(const struct batch *b, struct sl_kv_heads *heads_out, uint32_t *before_out,
                                            struct sl_error *err) {
    *heads_out = sl_session_heads(b->session, b->layer, b->c->kv);
    uint32_t first = b->c->kv[0].n_slots - (uint32_t)(b->n_candidates + b->n_undecided);
    for (int h = 0; h < heads_out->n; h++) {
        b->c->kv[h].pages += first / SL_PAGE_SLOTS;
        b->c->kv[h].n_slots -= first / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    }
    *before_out = first % SL_PAGE_SLOTS;
    return b->c->ops->publish(b->c->stream, heads_out, err);
}

static enum sl_status thin(const struct batch *b, struct sl_error *err) {
    const struct sl_compressor *c = b->c;
    const struct sl_thin *thin = &c->thin;
    uint32_t before;
    struct sl_kv_heads heads;
    SL_TRY(heads_from_candidates(b, &heads, &before, err));
    if (c->score->wants_importance) {
        read_importance(b, before);
    } else { // scores that depend on a token's position alone
        struct sl_score_input in = {.ops = c->ops,
                                    .stream = c->stream,
                                    .recipe = &c->plan.recipe,
                                    .heads = &heads,
                                    .layer = b->layer,
                                    .offset = b->first_token - before};
        c->method->read(&in, thin->scores);
    }
    if (b->n_keep == b->n_candidates) {
        return SL_OK;
    }
    int64_t sinks = c->plan.recipe.sinks - b->first_token;
    sinks = sinks < 0 ? 0 : sinks < b->n_candidates ? sinks : b->n_candidates;
    for (int h = 0; h < heads.n; h++) {
        thin->protections[h] = (struct sl_protection){before + sinks, b->n_undecided};
        thin->kept[h] = before + (uint32_t)(b->n_keep + b->n_undecided);
    }
    struct sl_counts kept = {.host = thin->kept};
    c->ops->protect(c->stream, &heads, thin->protections, thin->scores);
    c->ops->select(c->stream, &heads, thin->scores, (struct sl_vectors){0}, false, kept, thin->keep);
    c->ops->gather(c->stream, &heads, thin->keep, kept);
    return SL_OK;
}

static enum sl_status check_layer(const struct batch *b, struct sl_error *err) {
    const struct sl_layer *layer = &b->session->layers[b->layer];
    int64_t begin = b->session->n_tokens, n_read = b->c->thin.n_read[b->layer];
    SL_FAIL_IF(n_read != begin, err, SL_ERR_PRECONDITION,
               "compressor: layer %d is thinned as it is read, and of %" PRId64 " tokens %" PRId64
               " have been read here; read the prompt from its beginning",
               b->layer, begin, n_read);
    SL_FAIL_IF(b->attend->m > b->c->plan.recipe.chunk_tokens, err, SL_ERR_PRECONDITION,
               "compressor: %d tokens at a time, the recipe has chunk=%d", b->attend->m,
               b->c->plan.recipe.chunk_tokens);
    for (int h = 0; h < b->session->geometry.n_kv_heads; h++) {
        const struct sl_head *head = &layer->heads[h];
        SL_FAIL_IF(head->n_packed > 0 || head->n_slots != layer->heads[0].n_slots ||
                       (int64_t)head->n_slots < b->n_candidates + b->n_undecided,
                   err, SL_ERR_PRECONDITION,
                   "compressor: layer %d head %d holds %" PRIu32 " slots, %" PRId64 " have not been decided yet",
                   b->layer, h, head->n_slots, b->n_candidates + b->n_undecided);
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
    SL_TRY(check_layer(&b, err));
    SL_TRY(thin(&b, err));
    for (int h = 0; n_evicted > 0 && h < session->geometry.n_kv_heads; h++) {
        const struct sl_head *head = &session->layers[layer].heads[h];
        sl_session_set_slots(session, layer, h, head->n_slots - (uint32_t)n_evicted);
        c->stats.slots_evicted += n_evicted;
    }
    c->thin.n_read[layer] = end;
    return SL_OK;
}
