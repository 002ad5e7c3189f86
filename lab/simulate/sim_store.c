// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/sim_store.h"

#include <stdlib.h>

#include "base/arena.h"
#include "engine/kvcache/page.h"
#include "kvstore/memory/room.h"
#include "net/node/ledger.h"
#include "proto/sluice/v1/capsule.pb-c.h"

#define FETCHED_SHARE 4 // a worker fetches a capsule if its prompt uses at least this part of it

struct sl_sim_store {
    struct sl_sim_store_config config;
    struct sl_arena *arena;
    struct sl_ledger *ledger;
    struct sl_capsule_cache *capsule_cache;
    struct sl_kv_segments *segments;
    struct sl_room room;
};

enum sl_status sl_sim_store_create(const struct sl_sim_store_config *config, struct sl_sim_store **store_out,
                                   struct sl_error *err) {
    SL_FAIL_IF(config->geometry.n_layers > SL_MAX_LAYERS || config->geometry.n_kv_heads > SL_MAX_HEADS, err,
               SL_ERR_INVALID, "more than %d layers or %d heads", SL_MAX_LAYERS, SL_MAX_HEADS);
    SL_NEW_OR_FAIL(struct sl_sim_store, s, err, "out of memory");
    s->config = *config;
    enum sl_status status = sl_arena_create_mapped((size_t)config->store_bytes, &s->arena, err);
    SL_THEN(status, sl_ledger_create(s->arena, &s->ledger, err));
    SL_THEN(status, sl_capsule_cache_create(s->arena, config->keep_ms, &s->capsule_cache, err));
    if (status == SL_OK) {
        sl_capsule_cache_evict_by(s->capsule_cache, &(struct sl_eviction_config){config->policy, config->ttl_ms,
                                                                                 config->now_ns, config->arg});
        status = sl_kv_segments_create(config->keep_ms, &s->segments, err);
    }
    SL_TRY_OR(status, sl_sim_store_destroy(&s));
    sl_room_init(&s->room, s->ledger, NULL, s->capsule_cache, s->segments);
    *store_out = s;
    return SL_OK;
}

void sl_sim_store_destroy(struct sl_sim_store **store_inout) {
    SL_TAKE_OR_RETURN(s, store_inout);
    if (s->segments) { // made last
        sl_room_cleanup(&s->room);
    }
    sl_kv_segments_destroy(&s->segments);
    sl_capsule_cache_destroy(&s->capsule_cache);
    sl_ledger_destroy(&s->ledger);
    sl_arena_destroy(&s->arena);
    free(s);
}

// Returns the slots of a head, in f16, of a capsule of this many bytes; rounds the bytes to whole pages.
static int64_t slots_in_f16(const struct sl_sim_store *s, int64_t n_tokens, size_t *body_bytes_inout) {
    struct sl_page_layout page;
    (void)sl_page_layout_init(&page, SL_KV_F16, s->config.geometry.head_dim, 0, false);
    size_t row = page.bytes * (size_t)s->config.geometry.n_kv_heads * (size_t)s->config.geometry.n_layers;
    size_t most = (size_t)sl_pages_for(n_tokens), n_pages = (*body_bytes_inout + row - 1) / row;
    n_pages = n_pages < most ? n_pages : most;
    *body_bytes_inout = n_pages * row;
    return n_pages < most ? (int64_t)n_pages * SL_PAGE_SLOTS : n_tokens;
}

// Writes the header of a capsule of n tokens, as a prefill worker sends it; has_all: with all of their slots.
static enum sl_status write_header(const struct sl_sim_store *s, const struct sl_capsule_id *id, int64_t n_tokens,
                                   bool has_all, struct sl_capsule_bytes *capsule, struct sl_error *err) {
    const struct sl_kv_geometry *g = &s->config.geometry;
    uint32_t slots[SL_MAX_HEADS], packed[SL_MAX_HEADS];
    for (int h = 0; h < g->n_kv_heads; h++) {
        size_t bytes = capsule->body_bytes;
        bool packs = has_all && sl_kv_format_is_quantized(s->config.format);
        slots[h] = (uint32_t)(has_all ? n_tokens : slots_in_f16(s, n_tokens, &bytes));
        packed[h] = (uint32_t)(packs ? n_tokens / SL_PAGE_SLOTS : 0);
    }
    Sluice__V1__CapsuleLayer layer = SLUICE__V1__CAPSULE_LAYER__INIT, *layers[SL_MAX_LAYERS];
    layer.work_format = SL_KV_F16;
    layer.packed_format = s->config.format;
    layer.n_n_slots = layer.n_n_packed = (size_t)g->n_kv_heads;
    layer.n_slots = slots;
    layer.n_packed = packed;
    for (int l = 0; l < g->n_layers; l++) {
        layers[l] = &layer;
    }
    Sluice__V1__CapsuleHeader header = SLUICE__V1__CAPSULE_HEADER__INIT;
    struct sl_hash128 hash = id->prefix_hash;
    header.version = SL_CAPSULE_VERSION;
    header.model_fingerprint = id->model_fingerprint;
    header.recipe_fingerprint = id->recipe_fingerprint;
    header.n_kv_heads = (uint32_t)g->n_kv_heads;
    header.head_dim = (uint32_t)g->head_dim;
    header.n_tokens = (uint64_t)n_tokens;
    header.body_bytes = capsule->body_bytes;
    header.n_layers = (size_t)g->n_layers;
    header.layers = layers;
    header.prefix_hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    capsule->header_bytes = sluice__v1__capsule_header__get_packed_size(&header);
    capsule->header = malloc(capsule->header_bytes);
    SL_FAIL_IF(!capsule->header, err, SL_ERR_EXHAUSTED, "out of memory");
    sluice__v1__capsule_header__pack(&header, capsule->header);
    return SL_OK;
}

enum sl_status sl_sim_store_put(struct sl_sim_store *s, const struct sl_capsule_keys *keys, int64_t n_tokens,
                                size_t body_bytes, struct sl_error *err) {
    struct sl_capsule_bytes capsule = {.body_bytes = body_bytes};
    struct sl_error why = {0};
    bool has_all = keys->n_hashes > 0; // of a recipe that evicts, no prefix is found
    if (!has_all) {
        (void)slots_in_f16(s, n_tokens, &capsule.body_bytes);
    }
    if (sl_capsule_cache_has(s->capsule_cache, &keys->id)) {
        return SL_ERR_EXISTS;
    }
    if (sl_room_take_block(&s->room, "simulated", capsule.body_bytes, &capsule.body, &why) != SL_OK) {
        return SL_AGAIN;
    }
    enum sl_status status = write_header(s, &keys->id, n_tokens, has_all, &capsule, err);
    SL_THEN(status, sl_capsule_cache_put(s->capsule_cache, keys, &capsule, err));
    if (status != SL_OK) {
        sl_capsule_bytes_free(&capsule, s->arena);
    }
    return status;
}

int64_t sl_sim_store_find(struct sl_sim_store *s, const struct sl_prefix *prefixes, size_t n, int64_t n_prompt,
                          int64_t chunk_tokens, size_t *bytes_out) {
    size_t at;
    struct sl_stored *stored = sl_capsule_cache_pin_longest(s->capsule_cache, prefixes, n, &at);
    if (!stored) {
        return 0;
    }
    int64_t covered = prefixes[at].n_tokens;
    bool pays = covered == n_prompt || (covered >= chunk_tokens && covered >= stored->n_tokens / FETCHED_SHARE);
    *bytes_out = stored->capsule.body_bytes;
    sl_capsule_cache_unpin(s->capsule_cache, stored);
    return pays ? covered : 0;
}

void sl_sim_store_get_stats(struct sl_sim_store *s, struct sl_sim_store_stats *stats_out) {
    struct sl_capsule_cache_stats cache;
    struct sl_arena_stats arena;
    sl_capsule_cache_get_stats(s->capsule_cache, &cache);
    sl_arena_get_stats(s->arena, &arena);
    *stats_out = (struct sl_sim_store_stats){cache.n_evicted, (int64_t)arena.used_bytes};
}
