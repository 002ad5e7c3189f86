// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the capsule cache: keeps capsules in memory, found by prefix, and evicts them by a policy.
 *
 * Design: an index from (model, recipe, prefix hash) to a capsule; a capsule that can be truncated is found under many
 *         prefixes, any other only under the whole. Of two capsules with a common prefix the younger one is found, but
 *         a capsule that is exactly that prefix is preferred to both; when it goes, the other is found. The policy
 *         (kvstore/memory/eviction.h) says which capsule is evicted first. Pinned ones stay, and those unpinned within the last keep_ms stay unless the caller passes INT64_MAX.
 *         A checkpoint goes when a longer capsule takes over the longest prefix that both have as a key.
 *         Bounded: at most SL_CAPSULE_CACHE_MAX_PREFIXES index entries a capsule. Headers and keys, which lie outside
 *         the arena, take at most a 16th of its size (16 MiB at least): beyond that capsules are
 *         evicted as well. A policy other than LRU ranks SL_EVICTION_RANKED capsules for each eviction. Documents beyond
 *         their share (kvstore/memory/protected.h) may be evicted, too.
 * Threads: any number; one lock, held briefly.
 */
#pragma once

#include <stdatomic.h>

#include "base/arena.h"
#include "engine/kvcache/capsule.h"
#include "kvstore/memory/eviction.h"
#include "kvstore/memory/protected.h"

#define SL_CAPSULE_CACHE_MAX_PREFIXES 1025

struct sl_capsule_cache;
struct sl_capsule_node;
struct sl_tenant_bytes;

// The keys of a capsule: its id and, if it can be truncated, also its prefixes.
struct sl_capsule_keys {
    struct sl_capsule_id id;
    struct sl_hash128 *hashes; // [n_hashes]: hashes[i] covers the first (i + 1) * stride tokens
    size_t n_hashes;
    int64_t stride;
    bool is_checkpoint; // of a prompt that is still being read: a longer capsule replaces it
    // For the eviction policy:
    uint64_t tenant; // 0: not known
    double read_ms;  // time that reading the last read_tokens tokens took; 0: not measured
    int64_t read_tokens;
};

// One of the prefixes of a prompt.
struct sl_prefix {
    struct sl_capsule_id id;
    int64_t n_tokens;
};
// Returns key i of a capsule of n_tokens: its prefixes for i < n_hashes, then the whole.
struct sl_prefix sl_capsule_prefix(const struct sl_capsule_keys *keys, int64_t n_tokens, size_t i);

// A cached capsule, or a segment of a document (kvstore/remote_kv/remote_kv_pins.h). Readable while pinned.
struct sl_stored {
    struct sl_capsule_keys keys;
    int64_t n_tokens;
    struct sl_capsule_bytes capsule;
    void (*release_fn)(struct sl_stored *stored); // of a segment: ends its use; NULL: of a capsule
    // Used by the capsule cache alone:
    int n_pins;
    bool is_forgotten; // not found any more: freed with its last pin
    int64_t stored_ns, used_ns, kept_until_ns;
    struct sl_capsule_node *nodes; // [n_hashes + 1], of its keys
    bool is_protected;             // in this version of the set of protected capsules
    uint64_t protected_version;
    int64_t n_shared_keys; // keys that other capsules have as well
    double ms_per_token;   // as in struct sl_eviction_entry
    struct sl_tenant_bytes *tenant;
    struct sl_stored *newer, *older; // by last use
    // Used by the disk alone (kvstore/disk/disk.h):
    atomic_bool disk_has_no_room;  // when it was last to be written
    atomic_bool is_on_disk;        // as sl_disk_keep() last found: of documents alone
    _Atomic int64_t disk_again_ns; // when to offer it again
};

enum sl_status sl_capsule_cache_create(struct sl_arena *arena, int64_t keep_ms,
                                       struct sl_capsule_cache **capsule_cache_out, struct sl_error *err);
void sl_capsule_cache_destroy(struct sl_capsule_cache **capsule_cache); // no capsule may be pinned

// Sets the capsules that are not evicted, before any is put in. Does not own the set, which must outlive the cache.
void sl_capsule_cache_protect(struct sl_capsule_cache *capsule_cache, struct sl_protected *set);
// Sets how much of the protected capsules' share other memory takes: the offloaded layers of documents.
void sl_capsule_cache_share(struct sl_capsule_cache *capsule_cache, size_t other_bytes);

// Chooses what is evicted, and the clock. Without a call of sl_capsule_cache_evict_by(): by the default policy and the real clock.
// Sets it, before any capsule is put in.
void sl_capsule_cache_evict_by(struct sl_capsule_cache *capsule_cache, const struct sl_eviction_config *eviction);
const struct sl_eviction_config *sl_capsule_cache_eviction(const struct sl_capsule_cache *capsule_cache);
int64_t sl_capsule_cache_now_ns(const struct sl_capsule_cache *capsule_cache); // by its clock

bool sl_capsule_cache_has(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id);

/*
 * Puts a capsule into the cache. On success the capsule cache owns its bytes (the body lies in the capsule cache's
 * arena). The hashes are copied, and ignored for capsules with evicted tokens. SL_ERR_EXISTS, SL_ERR_INVALID (header
 * and id differ), SL_ERR_EXHAUSTED (out of memory, or headers and keys of pinned capsules leave no room).
 */
enum sl_status sl_capsule_cache_put(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_keys *keys,
                                    const struct sl_capsule_bytes *capsule, struct sl_error *err);

/*
 * Finds and pins the capsule for this prefix; *covered_out is the prefix's length in tokens as the storing worker gave
 * it. NULL: none.
 */
struct sl_stored *sl_capsule_cache_pin(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *prefix,
                                       int64_t *covered_out);
void sl_capsule_cache_unpin(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored);
/*
 * Finds and pins the capsule for the longest of these prefixes (longest first); *at_out is the index of that prefix.
 * NULL: there is none that the storing worker gave the same length.
 */
struct sl_stored *sl_capsule_cache_pin_longest(struct sl_capsule_cache *capsule_cache, const struct sl_prefix *prefixes,
                                               size_t n_prefixes, size_t *at_out);

/*
 * Holds a whole capsule while it is copied elsewhere: it is not evicted, and not counted as used. NULL: it is not here.
 */
struct sl_stored *sl_capsule_cache_hold(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id);
void sl_capsule_cache_release(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored);
/*
 * Forgets this whole capsule: it is not found any more, and is freed when it is not pinned. False: it is not here.
 */
bool sl_capsule_cache_forget(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id);
// Lists the ids of at most max_ids capsules that can be found, most recently used first; returns how many.
size_t sl_capsule_cache_list(struct sl_capsule_cache *capsule_cache, struct sl_capsule_id *ids_out, size_t max_ids);

/*
 * Evicts the capsule that the policy chooses of those that are neither pinned nor protected, passing over those that are
 * kept beyond now_ns; INT64_MAX passes over none. False: there is none.
 */
bool sl_capsule_cache_evict_one(struct sl_capsule_cache *capsule_cache, int64_t now_ns);
// Returns when the least recently used of these capsules was last used; INT64_MAX: there is none.
int64_t sl_capsule_cache_oldest_ns(struct sl_capsule_cache *capsule_cache, int64_t now_ns);

// Lists the bodies of at most max capsules that are neither pinned nor protected, or, if protected ones exceed their share,
// that are not pinned; returns how many.
size_t sl_capsule_cache_evictable(struct sl_capsule_cache *capsule_cache, void **bodies_out, size_t max);

struct sl_capsule_cache_stats {
    int64_t n_capsules, n_pinned, n_evicted, n_hits, n_misses;
    size_t bytes, evictable_bytes; // of all; of those that are neither pinned nor protected
    size_t checkpoint_bytes;       // of checkpoints
    size_t beside_bytes;           // of headers and keys of all, outside the arena
};
void sl_capsule_cache_get_stats(struct sl_capsule_cache *capsule_cache, struct sl_capsule_cache_stats *stats_out);
void sl_capsule_cache_count_miss(struct sl_capsule_cache *capsule_cache);
