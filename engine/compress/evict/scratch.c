// SPDX-License-Identifier: Apache-2.0
// Purpose: allocates the scratch of an eviction, one block per kind of memory, and computes the attention of query
// heads, whose number is known only when the first attention arrives.
#include <stdlib.h>

#include "engine/compress/evict/internal.h"

#define LINE 64 // bytes: rows begin at multiples of LINE

// Returns the next piece of a block. With base NULL it only adds to *used, which measures the block.
static void *carve(char *base, size_t *used, bool wanted, size_t bytes) {
    void *piece = wanted && base != NULL ? base + *used : NULL;
    *used += wanted ? (bytes + LINE - 1) / LINE * LINE : 0;
    return piece;
}

static size_t lay_out(const struct sl_compressor *c, struct sl_scratch *s, char *base) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    size_t n_heads = (size_t)c->plan.geometry.n_kv_heads, used = 0, bytes = n_heads * s->stride * sizeof(float);
    bool merges = recipe->evicted == SL_EVICTED_MERGE, deviates = recipe->std > 0;
    struct {
        struct sl_vectors *vectors;
        bool wanted;
    } vectors[] = {{&s->scores, true},
                   {&s->base, recipe->value != SL_VALUE_OFF},
                   {&s->deviations, deviates},
                   {&s->work, true},
                   {&s->nearest.cosine, merges}};
    struct {
        struct sl_lists *lists;
        bool wanted;
    } lists[] = {{&s->keep, true}, {&s->nearest.evicted, merges}, {&s->nearest.into, merges}};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        *vectors[i].vectors = (struct sl_vectors){carve(base, &used, vectors[i].wanted, bytes), s->stride};
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        *lists[i].lists = (struct sl_lists){carve(base, &used, lists[i].wanted, bytes), s->stride};
    }
    s->decided = carve(base, &used, true, n_heads * sizeof *s->decided);
    return used;
}

static bool has_keys(const struct sl_compressor *c) {
    return c->plan.recipe.score == SL_SCORE_KEYDIFF;
}

static size_t lay_out_shared(const struct sl_compressor *c, struct sl_scratch *s, char *base) {
    size_t used = 0;
    s->decided_here = carve(base, &used, true, (size_t)c->plan.geometry.n_kv_heads * sizeof *s->decided_here);
    s->merged = carve(base, &used, true, sizeof *s->merged);
    s->shared_scores = carve(base, &used, has_keys(c), s->stride * sizeof *s->shared_scores);
    return used;
}

static size_t lay_out_host(const struct sl_compressor *c, struct sl_scratch *s, char *base) {
    size_t n_heads = (size_t)c->plan.geometry.n_kv_heads, used = 0;
    s->kept = carve(base, &used, true, n_heads * sizeof *s->kept);
    s->n_spared = carve(base, &used, true, n_heads * sizeof *s->n_spared);
    s->protections = carve(base, &used, true, n_heads * sizeof *s->protections);
    s->keys = carve(base, &used, has_keys(c), SL_PAGE_SLOTS * (size_t)c->plan.geometry.head_dim * sizeof *s->keys);
    return used;
}

static size_t stride_of(size_t n_slots) {
    return (n_slots * sizeof(float) + LINE - 1) / LINE * LINE / sizeof(float);
}

enum sl_status sl_scratch_create(struct sl_compressor *c, size_t n_slots, struct sl_error *err) {
    struct sl_scratch s = {.device = c->stream->device, .n_slots = n_slots, .stride = stride_of(n_slots)};
    s.block = sl_device_alloc(s.device, SL_MEMORY_DEVICE, lay_out(c, &s, NULL));
    s.shared = sl_device_alloc(s.device, SL_MEMORY_SHARED, lay_out_shared(c, &s, NULL));
    s.host = malloc(lay_out_host(c, &s, NULL));
    if (s.block == NULL || s.shared == NULL || s.host == NULL) {
        sl_scratch_destroy(&s);
        return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to rank %zu slots", n_slots);
    }
    lay_out(c, &s, s.block);
    lay_out_shared(c, &s, s.shared);
    lay_out_host(c, &s, s.host);
    sl_scratch_destroy(&c->scratch);
    c->scratch = s;
    return SL_OK;
}

void sl_scratch_destroy(struct sl_scratch *scratch) {
    if (scratch->device != NULL) {
        sl_device_free(scratch->device, SL_MEMORY_DEVICE, scratch->block);
        sl_device_free(scratch->device, SL_MEMORY_DEVICE, scratch->of_queries);
        sl_device_free(scratch->device, SL_MEMORY_SHARED, scratch->shared);
    }
    free(scratch->host);
    *scratch = (struct sl_scratch){0};
}

enum sl_status sl_take_sums(struct sl_compressor *c, const struct sl_attend *attend, int first_row,
                            struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    if (s->n_heads < attend->n_heads) {
        size_t n = (size_t)attend->n_heads * s->stride;
        size_t bytes = (sl_score_pools(&c->plan.recipe) ? 2 : 1) * n * sizeof(float);
        float *block = sl_device_alloc(s->device, SL_MEMORY_DEVICE, bytes);
        SL_FAIL_IF(block == NULL, err, SL_ERR_EXHAUSTED,
                   "compressor: no memory for the attention of %d heads to %zu slots", attend->n_heads, s->n_slots);
        sl_device_free(s->device, SL_MEMORY_DEVICE, s->of_queries);
        s->of_queries = block;
        s->n_heads = attend->n_heads;
        s->sums = (struct sl_vectors){block, s->stride};
        s->pooled = (struct sl_vectors){sl_score_pools(&c->plan.recipe) ? block + n : NULL, s->stride};
    }
    c->ops->window_sums(c->stream, attend, first_row, s->sums);
    return SL_OK;
}

enum sl_status sl_layer_heads(struct sl_compressor *c, const struct sl_session *session, int layer,
                              struct sl_kv_heads *heads_out, struct sl_error *err) {
    *heads_out = sl_session_heads(session, layer, c->kv);
    return c->ops->publish(c->stream, heads_out, err);
}
