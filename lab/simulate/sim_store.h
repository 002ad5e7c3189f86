// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the memory of a kvstore under the caller's clock: the store's own capsule cache, room and eviction policies on
 *          an arena of address space. Capsules have real headers, keys and sizes, and bodies that are never written.
 */
#pragma once

#include "engine/kvcache/session.h"
#include "kvstore/memory/capsule_cache.h"
#include "kvstore/memory/eviction.h"

struct sl_sim_store_config {
    const struct sl_eviction_policy *policy;
    int64_t store_bytes, keep_ms, ttl_ms;
    struct sl_kv_geometry geometry;
    enum sl_kv_format format;     // of full pages
    int64_t (*now_ns)(void *arg); // never 0, which has a meaning for the store
    void *arg;
};

struct sl_sim_store;

// SL_ERR_INVALID: too many layers or heads. SL_ERR_EXHAUSTED.
enum sl_status sl_sim_store_create(const struct sl_sim_store_config *config, struct sl_sim_store **store_out,
                                   struct sl_error *err);
void sl_sim_store_destroy(struct sl_sim_store **store);

// Stores a capsule of n tokens. SL_ERR_EXISTS: it is there already. SL_AGAIN: it finds no room.
enum sl_status sl_sim_store_put(struct sl_sim_store *store, const struct sl_capsule_keys *keys, int64_t n_tokens,
                                size_t body_bytes, struct sl_error *err);

/*
 * Returns how many tokens of the prompt a worker fetches, by its own rules: the whole of n_prompt, or at least a chunk
 * and a quarter of the capsule; 0: none. prefixes [n]: longest first. bytes_out: of the capsule.
 */
int64_t sl_sim_store_find(struct sl_sim_store *store, const struct sl_prefix *prefixes, size_t n, int64_t n_prompt,
                          int64_t chunk_tokens, size_t *bytes_out);

struct sl_sim_store_stats {
    int64_t n_evicted, used_bytes;
};
void sl_sim_store_get_stats(struct sl_sim_store *store, struct sl_sim_store_stats *stats_out);
