// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decode's attention over offloaded layers: life cycle, and the two parts of a layer. See retriever.h.
 *
 * Design: every KV head of the current layer gets one page table: the pages of its hot cache, followed by those of the
 *         session. So one list of slots refers to rows of both, and attention is one operation that does not depend on
 *         where rows lie. Sinks and recent slots come from the source like all others, once: into the session if it has
 *         nothing else (resident_only), otherwise into pages after the hot cache, because the session's may be
 *         quantized and a source's rows are not. A method fetches rows into the hot cache (retriever_near.c,
 *         retriever_pull.c). Creation allocates everything that a step needs.
 * Invariants: a question that was asked ahead serves the very next attention of its layer and no later one, so an
 *             answer never depends on a step that was read otherwise.
 */
#include "engine/offload/retriever/retriever.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/offload/retriever/retriever_internal.h"

#define SEARCH_BYTES ((int64_t)4 << 20)
#define LEAST_RECALL 0.8
#define DEADLINE_MS  500
#define LOST_MS      3000
#define OPEN_MS      2000 // at least, for the answers that creation needs

// --- creation ------------------------------------------------------------------------------------------------------

static enum sl_status check(const struct sl_retriever_config *config, struct sl_error *err) {
    const struct sl_plan *plan = config->plan;
    const struct sl_recipe *recipe = &plan->recipe;
    SL_FAIL_IF(config->session->positions != SL_POSITION_ORIGINAL, err, SL_ERR_INVALID,
               "retrieval ranks keys after RoPE: it needs positions=original");
    SL_FAIL_IF(recipe->topk < 1 || recipe->topk > UINT32_MAX / 4 || recipe->channels < 1 || recipe->sinks < 0 ||
                   recipe->sinks > UINT32_MAX / 4 || recipe->recent.slots < 0 ||
                   recipe->recent.slots > UINT32_MAX / 4 || recipe->keep < 0 ||
                   recipe->topk + recipe->keep > SL_NEAR_MAX_PLACES,
               err, SL_ERR_INVALID,
               "retrieval of %lld slots by %d channels, with %lld sinks, %lld recent slots and keep=%lld: "
               "expected at least one slot and one channel, and no more than %u places",
               (long long)recipe->topk, recipe->channels, (long long)recipe->sinks, (long long)recipe->recent.slots,
               (long long)recipe->keep, SL_NEAR_MAX_PLACES);
    SL_FAIL_IF(config->n_prompt < 0, err, SL_ERR_INVALID, "retrieval from a prompt of %lld tokens",
               (long long)config->n_prompt);
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        int64_t expected = config->resident_only ? 0 : config->n_prompt;
        for (int h = 0; sl_layers_has(&recipe->offload, l) && h < plan->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &config->session->layers[l].heads[h];
            SL_FAIL_IF(head->n_slots != expected || head->n_packed > expected / SL_PAGE_SLOTS, err, SL_ERR_PRECONDITION,
                       "retrieval: layer %d, head %d of the session holds %u slots, expected %lld", l, h, head->n_slots,
                       (long long)expected);
        }
    }
    return SL_OK;
}

static const struct sl_retriever_way *method_of(const struct sl_recipe *recipe) {
    if (recipe->retrieve == SL_RETRIEVE_PULL) {
        return &sl_retriever_pull_way;
    }
    return recipe->ahead > 0 ? &sl_retriever_near_ahead_way : &sl_retriever_near_way;
}

bool sl_retriever_wants_next_q(const struct sl_recipe *recipe) {
    return sl_recipe_offloads(recipe) && method_of(recipe)->ahead != NULL;
}

static enum sl_status lay_out_parts(struct sl_retriever *r, struct sl_error *err) {
    int n_parts = 1; // also for no parts at all
    for (int i = 0; i < r->offloaded_heads.n_layers; i++) {
        n_parts += sl_retriever_find_parts(r, i, NULL);
    }
    r->parts = calloc((size_t)n_parts, sizeof *r->parts);
    SL_FAIL_IF(r->parts == NULL, err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    struct sl_retriever_part *next = r->parts;
    for (int i = 0; i < r->offloaded_heads.n_layers; i++) {
        r->layers[i].layer = r->offloaded_heads.layers[i];
        r->layers[i].parts = next;
        r->layers[i].n_parts = sl_retriever_find_parts(r, i, next);
        int covered = 0;
        for (int p = 0; p < r->layers[i].n_parts; p++) {
            covered += next[p].n_offloaded_heads;
        }
        SL_FAIL_IF(covered != r->n_heads, err, SL_ERR_INVALID,
                   "retrieval: %d of the %d KV heads of layer %d are in some share", covered, r->n_heads,
                   r->offloaded_heads.layers[i]);
        next += r->layers[i].n_parts;
    }
    return SL_OK;
}

// Allocates all rows of an array of arrays as one block.
static void *rows_of(size_t n_rows, size_t row_bytes, void **rows_out) {
    char *block = calloc(n_rows, row_bytes);
    for (size_t i = 0; i < n_rows && block != NULL; i++) {
        rows_out[i] = block + i * row_bytes;
    }
    return block;
}

// Lays out the shared memory; with base NULL only computes its size.
static size_t lay_out_shared(struct sl_retriever *r, char *base) {
    size_t n_heads = (size_t)r->n_heads, means = n_heads * (size_t)r->head_dim * sizeof *r->means;
    size_t slots = n_heads * r->slots.stride * sizeof *r->slots.at, fresh = n_heads * r->topk * sizeof *r->fresh.at;
    bool is_copied = !r->config.stream->device->ops->one_memory;
    size_t rows = is_copied ? n_heads * r->topk * sl_near_row_bytes(&r->shape) : 0;
    if (base != NULL) { // rows first, for their alignment
        r->rows = is_copied ? base : NULL;
        r->means = (float *)(base + rows);
        r->slots.at = (uint32_t *)(base + rows + means);
        r->fresh.at = (uint32_t *)(base + rows + means + slots);
    }
    return rows + means + slots + fresh;
}

// Takes the hot caches: one block per head, as the arena may have no contiguous range for all.
static enum sl_status take_blocks(struct sl_retriever *r, struct sl_error *err) {
    size_t n_heads = (size_t)r->n_heads;
    r->blocks = calloc((size_t)r->offloaded_heads.n_layers * n_heads, sizeof *r->blocks);
    SL_FAIL_IF(r->blocks == NULL, err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    for (int i = 0; i < r->offloaded_heads.n_layers; i++) {
        size_t bytes = r->n_block_pages * (size_t)r->config.plan->work[r->layers[i].layer].bytes;
        r->layers[i].blocks = r->blocks + (size_t)i * n_heads;
        for (size_t h = 0; h < n_heads && bytes > 0; h++) {
            r->layers[i].blocks[h] = sl_arena_alloc(r->config.arena, bytes);
            SL_FAIL_IF(r->layers[i].blocks[h] == NULL, err, SL_ERR_EXHAUSTED,
                       "retrieval: no room in the arena for hot caches of %zu bytes a layer", n_heads * bytes);
        }
        r->stats.hot_cache_bytes += n_heads * bytes;
    }
    return SL_OK;
}

static enum sl_status allocate(struct sl_retriever *r, struct sl_error *err) {
    size_t n_heads = (size_t)r->n_heads, session_slots = (size_t)r->config.session->max_slots;
    r->slots.stride = (size_t)r->sinks + r->topk + session_slots;
    r->fresh.stride = r->topk;
    r->tables_cap = r->n_block_pages + (size_t)sl_pages_for((int64_t)session_slots);
    r->request = malloc(sizeof(struct sl_near_request) + sl_retriever_request_cap(r));
    r->brought = calloc(n_heads, sizeof *r->brought);
    r->tables = calloc(n_heads, sizeof *r->tables);
    r->n_slots = calloc(n_heads, sizeof *r->n_slots);
    r->kv = calloc(n_heads, sizeof *r->kv);
    r->n_fresh = calloc(n_heads, sizeof *r->n_fresh);
    r->fresh_rows = calloc(n_heads, sizeof *r->fresh_rows);
    r->seen = calloc(SL_NEAR_SEEN_WORDS(r->n_places) + 1, sizeof *r->seen);
    r->shared = sl_device_alloc(r->config.stream->device, SL_MEMORY_SHARED, lay_out_shared(r, NULL));
    SL_FAIL_IF(r->shared == NULL || r->request == NULL || r->brought == NULL || r->tables == NULL ||
                   r->n_slots == NULL || r->kv == NULL || r->n_fresh == NULL || r->fresh_rows == NULL ||
                   r->seen == NULL || rows_of(n_heads, r->tables_cap * sizeof **r->tables, (void **)r->tables) == NULL,
               err, SL_ERR_EXHAUSTED, "retrieval: out of memory for lists of %zu slots", r->slots.stride);
    lay_out_shared(r, r->shared);
    return take_blocks(r, err);
}

static void set_up(struct sl_retriever *r, const struct sl_retriever_config *config) {
    const struct sl_plan *plan = config->plan;
    const struct sl_recipe *recipe = &plan->recipe;
    r->config = *config;
    r->config.least_recall = config->least_recall > 0 ? config->least_recall : LEAST_RECALL;
    r->config.search_bytes = config->search_bytes > 0 ? config->search_bytes : SEARCH_BYTES;
    r->config.deadline_ms = config->deadline_ms > 0 ? config->deadline_ms : DEADLINE_MS;
    r->config.lost_ms = config->lost_ms > 0 ? config->lost_ms : LOST_MS;
    r->answer_ms = r->config.deadline_ms > OPEN_MS ? r->config.deadline_ms : OPEN_MS;
    sl_offloaded_heads_init(&r->offloaded_heads, &recipe->offload, &plan->geometry);
    r->method = method_of(recipe);
    r->n_layers = plan->geometry.n_layers;
    r->n_heads = plan->geometry.n_kv_heads;
    r->head_dim = plan->geometry.head_dim;
    r->n_channels = recipe->channels < r->head_dim ? recipe->channels : r->head_dim;
    r->sinks = (uint32_t)recipe->sinks;
    r->recent = (uint32_t)recipe->recent.slots;
    r->topk = (uint32_t)recipe->topk;
    r->n_places = sl_hot_cache_places(plan, config->n_prompt);
    r->keeps_none = plan->recipe.keep == 0;
    r->n_block_pages = sl_pages_for(r->n_places);
    if (r->n_places > 0 && !config->resident_only) {
        r->n_block_pages += sl_pages_for(r->sinks + r->recent);
        r->first_page = (uint32_t)(config->n_prompt / SL_PAGE_SLOTS);
    }
    r->asked_layer = -1;
    r->shape = (struct sl_near_shape){.head_dim = r->head_dim,
                                      // the same for all layers:
                                      .rows = plan->work[r->offloaded_heads.layers[0]].format,
                                      // engine/compress/recipe/recipe.h
                                      .scan = sl_plan_scan_format(plan),
                                      .max_tokens = config->n_prompt};
}

enum sl_status sl_retriever_create(const struct sl_retriever_config *config, struct sl_retriever **retriever_out,
                                   struct sl_error *err) {
    SL_TRY(check(config, err));
    SL_NEW_OR_FAIL(struct sl_retriever, r, err, "retrieval: out of memory");
    set_up(r, config);
    if (config->source != NULL && !config->stream->device->ops->one_memory) {
        config->source->device = config->stream->device;
    }
    r->layers = calloc((size_t)r->offloaded_heads.n_layers, sizeof *r->layers);
    enum sl_status status = SL_OK;
    if (r->layers == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "retrieval: out of memory");
    }
    if (status == SL_OK && (r->n_places > 0 || (config->resident_only && config->n_prompt > 0))) {
        status = lay_out_parts(r, err);
        SL_THEN(status, allocate(r, err));
        SL_THEN(status, sl_retriever_fetch_resident(r, err));
        if (status == SL_OK && r->n_places > 0 && r->method->create != NULL) {
            status = r->method->create(r, err);
        }
    }
    SL_TRY_OR(status, sl_retriever_destroy(&r));
    r->config.plan = NULL; // the caller may free it now
    r->answer_ms = r->config.deadline_ms;
    *retriever_out = r;
    return SL_OK;
}

void sl_retriever_destroy(struct sl_retriever **retriever) {
    struct sl_retriever *r = *retriever;
    if (r == NULL) {
        return;
    }
    if (r->method->destroy != NULL) {
        r->method->destroy(r);
    }
    for (int i = 0; r->layers != NULL && i < r->offloaded_heads.n_layers; i++) {
        for (int p = 0; p < r->layers[i].n_parts; p++) {
            sl_retriever_give_up(r, &r->layers[i].parts[p].main);
            sl_retriever_give_up(r, &r->layers[i].parts[p].guessed);
            sl_retriever_give_up(r, &r->layers[i].parts[p].exact);
        }
        for (int h = 0; r->blocks != NULL && h < r->n_heads; h++) {
            sl_arena_free(r->config.arena, r->blocks[(size_t)i * (size_t)r->n_heads + (size_t)h]);
        }
    }
    free(r->blocks);
    free(r->parts);
    free(r->layers);
    free(r->request);
    free(r->brought);
    free(r->tables != NULL ? r->tables[0] : NULL);
    free(r->tables);
    free(r->n_slots);
    free(r->kv);
    (void)sl_mark_wait(&r->attended, NULL); // a failed device reads nothing any more
    sl_device_free(r->config.stream->device, SL_MEMORY_SHARED, r->shared);
    free(r->n_fresh);
    free(r->fresh_rows);
    free(r->seen);
    free(r);
    *retriever = NULL;
}

// --- attention -----------------------------------------------------------------------------------------------------

static struct sl_retriever_layer *find_layer(const struct sl_retriever *r, int layer) {
    bool is_served = r->n_places > 0 && layer < r->n_layers && r->offloaded_heads.index_of[layer] >= 0;
    return is_served ? &r->layers[r->offloaded_heads.index_of[layer]] : NULL;
}

bool sl_retriever_serves(const struct sl_retriever *retriever, int layer) {
    return find_layer(retriever, layer) != NULL;
}

enum sl_status sl_retriever_ask(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                struct sl_error *err) {
    struct sl_retriever *r = retriever;
    struct sl_retriever_layer *here = find_layer(r, layer), *next = find_layer(r, layer + 1);
    assert(layer >= 0 && layer < r->n_layers && attend->heads.n == r->n_heads && attend->head_dim == r->head_dim);
    assert((here == NULL && next == NULL) || attend->m == 1); // one query a step: the caller steps row by row
    r->asked_layer = layer;
    enum sl_status status = here != NULL ? r->method->ask(r, here, attend, err) : SL_OK;
    for (int p = 0; next != NULL && p < next->n_parts; p++) { // of an earlier step that never reached that layer
        if (next->parts[p].main.asked != NULL) {
            sl_retriever_give_up(r, &next->parts[p].main);
            next->parts[p].reset = true;
        }
    }
    if (status == SL_OK && next != NULL && attend->next_q != NULL && r->method->ahead != NULL) {
        status = r->method->ahead(r, next, attend, err);
    }
    return status;
}

static void count(struct sl_retriever *r, const struct sl_retriever_layer *l) {
    bool is_missing = false;
    for (int h = 0; h < r->n_heads; h++) {
        const struct sl_retriever_brought *brought = &r->brought[h];
        is_missing |= brought->is_missing;
        r->stats.rows_fetched += brought->is_missing ? 0 : brought->view.n_new;
        r->stats.rows_kept += brought->is_missing ? 0 : brought->view.n_rows - brought->view.n_new;
    }
    r->stats.n_asks++;
    r->stats.n_fallbacks += is_missing;
    if (is_missing && r->config.on_fallback != NULL) {
        r->config.on_fallback(r->config.arg, l->layer, r->why.text);
    }
}

enum sl_status sl_retriever_attend(struct sl_retriever *retriever, int layer, const struct sl_attend *attend,
                                   struct sl_error *err) {
    struct sl_retriever *r = retriever;
    enum sl_status status = r->asked_layer == layer ? SL_OK : sl_retriever_ask(r, layer, attend, err);
    struct sl_retriever_layer *l = find_layer(r, layer);
    r->asked_layer = -1;
    SL_TRY(status);
    if (l == NULL) {
        r->config.ops->attend(r->config.stream, attend, 1);
        return SL_OK;
    }
    uint32_t least = r->config.resident_only ? r->sinks + r->recent : (uint32_t)r->config.n_prompt;
    for (int h = 0; h < r->n_heads; h++) {
        const struct sl_kv *kv = &attend->heads.kv[h];
        SL_FAIL_IF(kv->n_packed > r->first_page || kv->n_slots < least || kv->n_slots > r->config.session->max_slots,
                   err, SL_ERR_INTERNAL, "retrieval: layer %d, head %d has %u slots in memory, %u pages packed", layer,
                   h, kv->n_slots, kv->n_packed);
    }
    SL_TRY(r->method->take(r, l, attend, err));
    SL_TRY(sl_mark_wait(&r->attended, err)); // the lists are reused
    sl_retriever_list_slots(r, l, attend);
    struct sl_attend combined = *attend;
    combined.heads = (struct sl_kv_heads){.kv = r->kv, .n = r->n_heads};
    SL_TRY(r->config.ops->publish(r->config.stream, &combined.heads, err));
    struct sl_counts n_fresh = {.host = r->n_fresh}, n_slots = {.host = r->n_slots};
    r->config.ops->put_rows(r->config.stream, &combined.heads, r->fresh, n_fresh, r->fresh_rows);
    SL_TRY(sl_stream_wait(r->config.stream, err)); // rows are reused
    r->method->release(r, l);
    r->config.ops->attend_slots(r->config.stream, &combined, r->slots, n_slots);
    r->attended = sl_stream_mark(r->config.stream);
    count(r, l);
    r->stats.n_steps += l == r->layers;
    l->n_steps++;
    return SL_OK;
}

void sl_retriever_get_stats(const struct sl_retriever *retriever, struct sl_retriever_stats *stats_out) {
    const struct sl_source *source = retriever->config.source;
    double recall = 0;
    int n = 0;
    for (int i = 0; i < retriever->offloaded_heads.n_layers; i++) {
        const struct sl_retriever_layer *l = &retriever->layers[i];
        recall += l->n_probes > 0 ? l->recall : 0;
        n += l->n_probes > 0;
    }
    *stats_out = retriever->stats;
    stats_out->recall = n > 0 ? recall / n : 1;
    if (source != NULL) {
        stats_out->bytes_sent = source->bytes_sent;
        stats_out->bytes_received = source->bytes_received;
        stats_out->n_replica_asks = (int64_t)source->n_replica_asks;
    }
}
