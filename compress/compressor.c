// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a recipe at work on one layer of a session.
 *
 *     accumulate   every chunk     the chunk's attention goes into the score state of the slots it saw
 *     evict        when=...        per KV head: scores, +inf for what scope protects, the best `budget` slots, compact
 *     pack         last chunk      full pages are quantized into new pages of the packed layout; the tail stays as it
 * is
 *
 * Design: only ops touch pages. Heads are independent: their scores and selections run in parallel, in scratch that was
 *         taken at creation. What changes page tables (and so the arena) is done by the calling thread alone.
 * Invariants: the attention of a chunk has been computed before anything of its layer is evicted; a layer is packed
 * only after its last eviction, because packed pages cannot be compacted.
 */
#include "compress/compress.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "compress/score.h"

struct sl_compressor {
    struct sl_plan plan;
    const struct sl_score_method *score;
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_compress_stats stats;
    float *scores;        // [team members][plan.max_slots]
    uint32_t *keep;       // [team members][plan.max_slots]
    void **new_pages;     // [n_kv_heads]: packed pages of one round, NULL where a head has none to pack
    size_t scratch_slots; // plan.max_slots, or 0 when nothing is ever evicted
};

enum sl_status sl_compressor_create(const struct sl_plan *plan, const struct sl_ops *ops, struct sl_team *team,
                                    struct sl_compressor **compressor_out, struct sl_error *err) {
    struct sl_compressor *c = calloc(1, sizeof *c);
    if (c == NULL) {
        goto err_memory;
    }
    c->plan = *plan;
    c->score = sl_score_method(plan->recipe.score);
    c->ops = ops;
    c->team = team;
    c->new_pages = calloc((size_t)plan->geometry.n_kv_heads, sizeof *c->new_pages);
    if (c->new_pages == NULL) {
        goto err_destroy;
    }
    if (sl_recipe_evicts(&plan->recipe)) {
        size_t members = team != NULL ? (size_t)sl_team_size(team) : 1;
        c->scratch_slots = (size_t)plan->max_slots;
        c->scores = calloc(members * c->scratch_slots, sizeof *c->scores);
        c->keep = calloc(members * c->scratch_slots, sizeof *c->keep);
        if (c->scores == NULL || c->keep == NULL) {
            goto err_destroy;
        }
    }
    *compressor_out = c;
    return SL_OK;

err_destroy:
    sl_compressor_destroy(&c);
err_memory:
    return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to rank %" PRId64 " slots", plan->max_slots);
}

void sl_compressor_destroy(struct sl_compressor **compressor) {
    struct sl_compressor *c = *compressor;
    if (c == NULL) {
        return;
    }
    free(c->scores);
    free(c->keep);
    free(c->new_pages);
    free(c);
    *compressor = NULL;
}

struct sl_compressor_wants sl_compressor_wants(const struct sl_compressor *compressor, bool stepping) {
    return (struct sl_compressor_wants){.lse = compressor->score->wants_lse && !stepping};
}

bool sl_compressor_steps(const struct sl_compressor *compressor) {
    (void)compressor;
    return false;
}

enum sl_status sl_compressor_begin_steps(struct sl_compressor *compressor, struct sl_session *session, int64_t n_prompt,
                                         struct sl_error *err) {
    (void)compressor, (void)session, (void)n_prompt, (void)err;
    return SL_OK;
}

enum sl_status sl_compressor_step(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                  const struct sl_attend *attend, struct sl_error *err) {
    (void)compressor, (void)session, (void)layer, (void)attend, (void)err;
    return SL_OK;
}

enum sl_status sl_compressor_attend(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                    const struct sl_attend *attend, struct sl_error *err) {
    (void)session, (void)layer, (void)err;
    compressor->ops->attend(compressor->team, attend);
    return SL_OK;
}

enum sl_status sl_compressor_end(struct sl_compressor *compressor, struct sl_session *session, struct sl_error *err) {
    (void)compressor, (void)session, (void)err;
    return SL_OK;
}

void sl_compressor_get_stats(const struct sl_compressor *compressor, struct sl_compress_stats *stats_out) {
    *stats_out = compressor->stats;
}

static struct sl_kv head_kv(const struct sl_layer *layer, const struct sl_head *head) {
    return (struct sl_kv){head->pages, head->n_packed, head->n_slots, &layer->work, &layer->packed};
}

// What the heads of a layer need to be worked on in parallel.
struct layer_task {
    struct sl_compressor *compressor;
    const struct sl_layer *layer;
};

// --- evict -------------------------------------------------------------------------------------------------------

// Heads [begin, end): pages are compacted, slot counts are not yet changed.
static void evict_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct layer_task *task = arg;
    struct sl_compressor *c = task->compressor;
    float *scores = c->scores + (size_t)member * c->scratch_slots;
    uint32_t *keep = c->keep + (size_t)member * c->scratch_slots;
    uint32_t budget = (uint32_t)c->plan.budget_slots;
    for (int64_t h = begin; h < end; h++) {
        struct sl_kv kv = head_kv(task->layer, &task->layer->heads[h]);
        uint32_t n = kv.n_slots;
        if (n <= budget) {
            continue;
        }
        c->score->read(c->ops, &kv, scores);
        // Protected slots win after scoring, whatever their score was. Sinks are never evicted, so they stay in front.
        for (uint32_t j = 0; j < (uint32_t)c->plan.recipe.sinks; j++) {
            scores[j] = INFINITY;
        }
        for (uint32_t j = n - (uint32_t)c->plan.recent_slots; j < n; j++) {
            scores[j] = INFINITY;
        }
        c->ops->select(scores, n, budget, keep);
        c->ops->gather(&kv, keep, budget);
    }
}

static enum sl_status evict_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                                  struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    uint32_t budget = (uint32_t)c->plan.budget_slots;
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        if (l->heads[h].n_slots > c->scratch_slots) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "compressor: layer %d head %d holds %" PRIu32 " slots, the plan foresees at most %zu", layer,
                           h, l->heads[h].n_slots, c->scratch_slots);
        }
    }
    struct layer_task task = {c, l};
    sl_team_run(c->team, session->geometry.n_kv_heads, 1, evict_heads, &task);
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        uint32_t n = l->heads[h].n_slots;
        if (n > budget) {
            sl_session_set_slots(session, layer, h, budget);
            c->stats.slots_evicted += n - budget;
        }
    }
    return SL_OK;
}

// --- pack --------------------------------------------------------------------------------------------------------

static void pack_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct layer_task *task = arg;
    const struct sl_layer *l = task->layer;
    for (int64_t h = begin; h < end; h++) {
        void *page = task->compressor->new_pages[h];
        if (page != NULL) {
            task->compressor->ops->quantize(&l->work, l->heads[h].pages[l->heads[h].n_packed], &l->packed, page);
        }
    }
}

static bool has_page_to_pack(const struct sl_head *head) {
    return ((int64_t)head->n_packed + 1) * SL_PAGE_SLOTS <= head->n_slots;
}

// A packed page for every head that has a page to pack, or none at all.
static enum sl_status take_new_pages(struct sl_compressor *c, struct sl_session *session, int layer, int *n_pages_out,
                                     struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    int n_heads = session->geometry.n_kv_heads, n_pages = 0;
    memset(c->new_pages, 0, (size_t)n_heads * sizeof *c->new_pages);
    for (int h = 0; h < n_heads; h++) {
        if (!has_page_to_pack(&l->heads[h])) {
            continue;
        }
        c->new_pages[h] = sl_arena_alloc(session->arena, l->packed.bytes);
        if (c->new_pages[h] == NULL) {
            while (h-- > 0) {
                sl_arena_free(session->arena, c->new_pages[h]);
            }
            return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no arena memory for quantized pages of layer %d", layer);
        }
        n_pages++;
    }
    *n_pages_out = n_pages;
    return SL_OK;
}

// Round by round, one page of every head: never more than one packed page per head beside the page that it replaces.
// If memory ends between rounds, the layer is valid as it is and packing can go on later.
static enum sl_status pack_layer(struct sl_compressor *c, struct sl_session *session, int layer, struct sl_error *err) {
    const struct sl_layer *l = &session->layers[layer];
    if (!sl_kv_format_is_quantized(l->packed.format)) {
        return SL_OK;
    }
    for (;;) {
        int n_pages = 0;
        enum sl_status status = take_new_pages(c, session, layer, &n_pages, err);
        if (status != SL_OK || n_pages == 0) {
            return status;
        }
        struct layer_task task = {c, l};
        sl_team_run(c->team, session->geometry.n_kv_heads, 1, pack_heads, &task);
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            if (c->new_pages[h] != NULL) {
                sl_session_pack_page(session, layer, h, c->new_pages[h]);
            }
        }
        c->stats.pages_quantized += n_pages;
    }
}

// --- the layer ---------------------------------------------------------------------------------------------------

static enum sl_status compress_layer(struct sl_compressor *c, struct sl_session *session, int layer,
                                     const struct sl_attend *attend, bool last, struct sl_error *err) {
    if (sl_recipe_evicts(&c->plan.recipe)) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            if (session->layers[layer].heads[h].n_packed > 0) {
                return sl_fail(err, SL_ERR_PRECONDITION,
                               "compressor: layer %d is quantized already; nothing can be evicted from it, so this "
                               "session cannot read more under an evicting recipe",
                               layer);
            }
        }
        if (c->score->accumulate != NULL) {
            c->score->accumulate(c->ops, c->team, attend);
        }
        if (last || (c->plan.recipe.when & SL_WHEN_CHUNK)) {
            enum sl_status status = evict_layer(c, session, layer, err);
            if (status != SL_OK) {
                return status;
            }
        }
    }
    return last ? pack_layer(c, session, layer, err) : SL_OK;
}

enum sl_status sl_compressor_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                   const struct sl_attend *attend, bool last, bool *final_out, struct sl_error *err) {
    *final_out = last;
    assert(layer >= 0 && layer < compressor->plan.geometry.n_layers);
    assert(session->geometry.n_kv_heads == compressor->plan.geometry.n_kv_heads);
    assert(!compressor->score->wants_lse || attend->lse != NULL);
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = compress_layer(compressor, session, layer, attend, last, err);
    compressor->stats.ns += sl_now_ns() - begin_ns;
    return status;
}

enum sl_status sl_compressor_finish_layer(struct sl_compressor *compressor, struct sl_session *session, int layer,
                                          struct sl_error *err) {
    assert(layer >= 0 && layer < compressor->plan.geometry.n_layers);
    assert(session->geometry.n_kv_heads == compressor->plan.geometry.n_kv_heads);
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = pack_layer(compressor, session, layer, err);
    compressor->stats.ns += sl_now_ns() - begin_ns;
    return status;
}
