// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/capsule_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "kvstore/memory/capsule_index.h"
#include "kvstore/memory/tenant_bytes.h"

#define BESIDE_SHARE     16 // of the arena, which is divided by this
#define MIN_BESIDE_BYTES ((size_t)16 << 20)
#define MALLOC_BYTES     16 // malloc's overhead per block

struct sl_capsule_cache {
    struct sl_arena *arena;
    int64_t keep_ms;
    size_t capacity_bytes, max_beside_bytes, max_protected_bytes;
    struct sl_eviction_config eviction;
    pthread_mutex_t mutex;
    struct sl_capsule_index index;
    struct sl_stored *newest, *oldest;
    struct sl_stored *next; // the one that is ranked next; NULL: the oldest
    struct sl_tenant_table tenants;
    double ms_per_token;                 // average of the measured ones; 0: none was measured
    struct sl_capsule_cache_stats stats; // without evictable_bytes
};

enum sl_status sl_capsule_cache_create(struct sl_arena *arena, int64_t keep_ms,
                                       struct sl_capsule_cache **capsule_cache_out, struct sl_error *err) {
    struct sl_capsule_cache *capsule_cache = calloc(1, sizeof *capsule_cache);
    if (!capsule_cache || !sl_capsule_index_init(&capsule_cache->index)) {
        free(capsule_cache);
        return sl_fail(err, SL_ERR_EXHAUSTED, "capsule cache: out of memory");
    }
    capsule_cache->arena = arena;
    capsule_cache->keep_ms = keep_ms;
    struct sl_arena_stats about;
    sl_arena_get_stats(arena, &about);
    capsule_cache->capacity_bytes = about.capacity_bytes;
    capsule_cache->max_beside_bytes = about.capacity_bytes / BESIDE_SHARE;
    capsule_cache->max_protected_bytes = about.capacity_bytes / SL_PROTECTED_SHARE;
    if (capsule_cache->max_beside_bytes < MIN_BESIDE_BYTES) {
        capsule_cache->max_beside_bytes = MIN_BESIDE_BYTES;
    }
    capsule_cache->eviction.policy = sl_eviction_find(SL_EVICTION_DEFAULT);
    pthread_mutex_init(&capsule_cache->mutex, NULL);
    *capsule_cache_out = capsule_cache;
    return SL_OK;
}

void sl_capsule_cache_protect(struct sl_capsule_cache *capsule_cache, struct sl_protected *set) {
    capsule_cache->index.protected = set;
}

void sl_capsule_cache_share(struct sl_capsule_cache *capsule_cache, size_t other_bytes) {
    size_t all = capsule_cache->capacity_bytes / SL_PROTECTED_SHARE;
    SL_WITH_LOCK(&capsule_cache->mutex,
                 capsule_cache->max_protected_bytes = all - (other_bytes < all ? other_bytes : all));
}

void sl_capsule_cache_evict_by(struct sl_capsule_cache *capsule_cache, const struct sl_eviction_config *eviction) {
    capsule_cache->eviction = *eviction;
}

const struct sl_eviction_config *sl_capsule_cache_eviction(const struct sl_capsule_cache *capsule_cache) {
    return &capsule_cache->eviction;
}

int64_t sl_capsule_cache_now_ns(const struct sl_capsule_cache *capsule_cache) {
    const struct sl_eviction_config *eviction = &capsule_cache->eviction;
    return eviction->now_ns ? eviction->now_ns(eviction->arg) : sl_now_ns();
}

static bool is_same(const struct sl_capsule_id *a, const struct sl_capsule_id *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

// ---- order of use (lock held) -------------------------------------------------------------------------------------

static void unlink_use(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    capsule_cache->next = capsule_cache->next == stored ? stored->newer : capsule_cache->next;
    *(stored->newer ? &stored->newer->older : &capsule_cache->newest) = stored->older;
    *(stored->older ? &stored->older->newer : &capsule_cache->oldest) = stored->newer;
}

static void link_newest(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    stored->used_ns = sl_capsule_cache_now_ns(capsule_cache);
    stored->newer = NULL;
    stored->older = capsule_cache->newest;
    *(capsule_cache->newest ? &capsule_cache->newest->newer : &capsule_cache->oldest) = stored;
    capsule_cache->newest = stored;
}

// ---- capsules -----------------------------------------------------------------------------------------------------

static void stored_free(struct sl_stored *stored) {
    free(stored->keys.hashes);
    free(stored->nodes);
    free(stored);
}

// Returns the bytes of its header and its keys: the hashes, and a node of the index for each.
static size_t beside_bytes(const struct sl_stored *stored) {
    size_t n_keys = stored->keys.n_hashes + 1;
    return sizeof *stored + stored->capsule.header_bytes + 3 * MALLOC_BYTES +
           n_keys * (sizeof(struct sl_hash128) + sizeof(struct sl_capsule_node));
}

// Call with the lock held. Takes it out of index and order; frees its memory.
static void discard(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    unlink_use(capsule_cache, stored);
    if (!stored->is_forgotten) {
        sl_capsule_index_remove(&capsule_cache->index, stored);
    }
    sl_tenant_bytes_remove(&capsule_cache->tenants, stored->tenant, stored->capsule.body_bytes);
    capsule_cache->stats.n_capsules--;
    capsule_cache->stats.bytes -= stored->capsule.body_bytes;
    capsule_cache->stats.beside_bytes -= beside_bytes(stored);
    sl_capsule_bytes_free(&stored->capsule, capsule_cache->arena);
    stored_free(stored);
}

void sl_capsule_cache_destroy(struct sl_capsule_cache **capsule_cache_inout) {
    SL_TAKE_OR_RETURN(capsule_cache, capsule_cache_inout);
    while (capsule_cache->newest) {
        discard(capsule_cache, capsule_cache->newest);
    }
    pthread_mutex_destroy(&capsule_cache->mutex);
    sl_capsule_index_cleanup(&capsule_cache->index);
    free(capsule_cache);
}

bool sl_capsule_cache_has(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id) {
    SL_LOCKED(&capsule_cache->mutex);
    // A longer capsule that begins like this one does not count: decode workers need the whole capsule.
    return sl_capsule_index_find_whole(&capsule_cache->index, id) != NULL;
}

static enum sl_status check_header(const struct sl_capsule_id *id, const struct sl_capsule_bytes *capsule,
                                   struct sl_capsule_info *info_out, struct sl_error *err) {
    SL_TRY(sl_capsule_read_header(capsule->header, capsule->header_bytes, info_out, err));
    SL_FAIL_IF(!is_same(&info_out->id, id) || info_out->body_bytes != capsule->body_bytes, err, SL_ERR_INVALID,
               "the capsule that arrived is not the one that was announced");
    return SL_OK;
}

// Makes a capsule with a copy of the keys that lead to it. NULL: no memory.
static struct sl_stored *make_stored(const struct sl_capsule_keys *keys, const struct sl_capsule_info *info,
                                     const struct sl_capsule_bytes *capsule) {
    size_t n_hashes = 0;
    while (!info->evicted && n_hashes < keys->n_hashes && n_hashes < SL_CAPSULE_CACHE_MAX_PREFIXES - 1 &&
           keys->stride > 0 && (int64_t)(n_hashes + 1) * keys->stride < info->n_tokens) {
        n_hashes++;
    }
    struct sl_stored *stored = calloc(1, sizeof *stored);
    struct sl_hash128 *hashes = malloc(sizeof *hashes * (n_hashes + 1));
    struct sl_capsule_node *nodes = calloc(n_hashes + 1, sizeof *nodes);
    if (!stored || !hashes || !nodes) {
        free(stored);
        free(hashes);
        free(nodes);
        return NULL;
    }
    if (n_hashes > 0) {
        memcpy(hashes, keys->hashes, sizeof *hashes * n_hashes);
    }
    stored->keys = *keys;
    stored->keys.hashes = hashes;
    stored->keys.n_hashes = n_hashes;
    stored->keys.stride = n_hashes > 0 ? keys->stride : 0;
    stored->nodes = nodes;
    stored->n_tokens = info->n_tokens;
    stored->capsule = *capsule;
    return stored;
}

// Returns whether the capsule is in the set of protected ones. The set is searched again only when it has changed: all capsules are looked at
// for each request for room.
static bool is_of_document(const struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    const uint64_t version = sl_protected_version(capsule_cache->index.protected); // before the set is searched
    if (stored->protected_version != version) {
        stored->is_protected = sl_protected_has(capsule_cache->index.protected, &stored->keys.id);
        stored->protected_version = version;
    }
    return stored->is_protected;
}

static bool may_go(const struct sl_stored *stored, int64_t now_ns) {
    return stored->n_pins == 0 && stored->kept_until_ns <= now_ns;
}

// Call with the lock held. Returns the least recently used capsule that may be evicted. Protected ones may only if they
// exceed their share: one that is on disk like any other, because a question gets it from there; others last, because their
// documents are read again. Looks no further than it must: room for one capsule may take many evictions.
static struct sl_stored *find_oldest(struct sl_capsule_cache *capsule_cache, int64_t now_ns) {
    struct sl_stored *oldest = NULL, *oldest_on_disk = NULL, *oldest_protected = NULL, **first;
    size_t protected_bytes = 0;
    bool exceeds = false, is_found = false;
    for (struct sl_stored *stored = capsule_cache->oldest; stored && !is_found; stored = stored->newer) {
        bool is_protected = is_of_document(capsule_cache, stored);
        protected_bytes += is_protected ? stored->capsule.body_bytes : 0;
        exceeds = protected_bytes > capsule_cache->max_protected_bytes;
        first = !is_protected ? &oldest : atomic_load(&stored->is_on_disk) ? &oldest_on_disk : &oldest_protected;
        *first = !*first && may_go(stored, now_ns) ? stored : *first;
        is_found = oldest_on_disk ? exceeds : oldest != NULL; // what follows was used later
    }
    if (exceeds && oldest_on_disk) {
        return oldest_on_disk;
    }
    return oldest || !exceeds ? oldest : oldest_protected;
}

// Call with the lock held.
static struct sl_eviction_rank rank(const struct sl_capsule_cache *capsule_cache, const struct sl_stored *stored,
                                    int64_t clock_ns) {
    const struct sl_eviction_config *eviction = &capsule_cache->eviction;
    bool is_all_shared = (size_t)stored->n_shared_keys == stored->keys.n_hashes + 1;
    return eviction->policy->rank(&(struct sl_eviction_entry){
        .n_tokens = stored->n_tokens,
        .shared_tokens = is_all_shared ? stored->n_tokens : stored->n_shared_keys * stored->keys.stride,
        .bytes = stored->capsule.body_bytes,
        .used_ns = stored->used_ns,
        .idle_ns = clock_ns - stored->used_ns,
        .age_ns = clock_ns - stored->stored_ns,
        .ttl_ns = eviction->ttl_ms * SL_NS_PER_MS,
        .ms_per_token = stored->ms_per_token,
        .tenant_bytes = stored->tenant->bytes,
        .share_bytes = capsule_cache->capacity_bytes / (size_t)capsule_cache->tenants.n,
    });
}

// Call with the lock held. Returns the capsule that the policy evicts next, or NULL.
static struct sl_stored *find_victim(struct sl_capsule_cache *capsule_cache, int64_t now_ns) {
    struct sl_stored *victim = find_oldest(capsule_cache, now_ns);
    if (!victim || capsule_cache->eviction.policy->is_by_use || is_of_document(capsule_cache, victim)) {
        return victim;
    }
    int64_t clock_ns = sl_capsule_cache_now_ns(capsule_cache); // not now_ns, which may be INT64_MAX
    struct sl_eviction_rank lowest = rank(capsule_cache, victim, clock_ns);
    struct sl_stored *begin = capsule_cache->next ? capsule_cache->next : capsule_cache->oldest, *stored = begin;
    int n = 0;
    do {
        struct sl_eviction_rank own = rank(capsule_cache, stored, clock_ns);
        if (sl_eviction_is_lower(&own, &lowest) && may_go(stored, now_ns) && !is_of_document(capsule_cache, stored)) {
            lowest = own;
            victim = stored;
        }
        stored = stored->newer ? stored->newer : capsule_cache->oldest;
    } while (++n < SL_EVICTION_RANKED && stored != begin);
    capsule_cache->next = stored;
    return victim;
}

// Call with the lock held.
static bool evict_one(struct sl_capsule_cache *capsule_cache, int64_t now_ns) {
    struct sl_stored *stored = find_victim(capsule_cache, now_ns);
    if (stored) {
        discard(capsule_cache, stored);
        capsule_cache->stats.n_evicted++;
    }
    return stored != NULL;
}

// Call with the lock held.
static bool make_room_beside(struct sl_capsule_cache *capsule_cache, size_t bytes) {
    while (capsule_cache->stats.beside_bytes + bytes > capsule_cache->max_beside_bytes &&
           (evict_one(capsule_cache, sl_capsule_cache_now_ns(capsule_cache)) || evict_one(capsule_cache, INT64_MAX))) {
    }
    return capsule_cache->stats.beside_bytes + bytes <= capsule_cache->max_beside_bytes;
}

// Call with the lock held. A capsule that is pinned is freed with its last pin.
static void forget(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    if (stored->n_pins > 0) {
        stored->is_forgotten = true;
        sl_capsule_index_remove(&capsule_cache->index, stored);
    } else {
        discard(capsule_cache, stored);
    }
}

// Returns the tokens of the longest prefix that two capsules of one prompt, the first of them the shorter, have as keys.
static int64_t longest_common(const struct sl_stored *shorter, const struct sl_stored *longer) {
    int64_t a = shorter->keys.stride, b = longer->keys.stride, longest = (int64_t)shorter->keys.n_hashes * a;
    while (b > 0) { // a becomes the greatest common divisor
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    int64_t multiple = a > 0 ? shorter->keys.stride / a * longer->keys.stride : 0;
    return multiple > 0 ? longest / multiple * multiple : longest;
}

// Call with the lock held, before `stored` takes over this prefix. Drops a checkpoint if it is the longest of its prefixes
// that `stored` has: keys of long prompts lie further apart, in a longer capsule at other places.
static void drop_checkpoint(struct sl_capsule_cache *capsule_cache, const struct sl_prefix *prefix,
                            const struct sl_stored *stored) {
    const struct sl_capsule_node *node = sl_capsule_index_find(&capsule_cache->index, &prefix->id);
    struct sl_stored *there = node ? node->stored : NULL;
    if (there && there != stored && there->keys.is_checkpoint && there->n_tokens <= stored->n_tokens &&
        prefix->n_tokens >= longest_common(there, stored)) {
        forget(capsule_cache, there);
    }
}

// Call with the lock held.
static enum sl_status enter(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored, struct sl_error *err) {
    size_t body_bytes = stored->capsule.body_bytes;
    stored->tenant = sl_tenant_bytes_add(&capsule_cache->tenants, stored->keys.tenant, body_bytes);
    SL_FAIL_IF(!stored->tenant, err, SL_ERR_EXHAUSTED, "capsule cache: out of memory");
    link_newest(capsule_cache, stored);
    stored->stored_ns = stored->used_ns;
    stored->ms_per_token = sl_eviction_ms_per_token(&capsule_cache->ms_per_token, stored->keys.read_ms,
                                                    stored->keys.read_tokens, stored->n_tokens);
    capsule_cache->stats.n_capsules++;
    capsule_cache->stats.bytes += body_bytes;
    capsule_cache->stats.beside_bytes += beside_bytes(stored);
    for (size_t i = 0; i <= stored->keys.n_hashes; i++) {
        struct sl_prefix prefix = sl_capsule_prefix(&stored->keys, stored->n_tokens, i);
        drop_checkpoint(capsule_cache, &prefix, stored);
    }
    sl_capsule_index_add(&capsule_cache->index, stored);
    return SL_OK;
}

enum sl_status sl_capsule_cache_put(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_keys *keys,
                                    const struct sl_capsule_bytes *capsule, struct sl_error *err) {
    struct sl_capsule_info info;
    SL_TRY(check_header(&keys->id, capsule, &info, err));
    struct sl_stored *stored = make_stored(keys, &info, capsule);
    SL_FAIL_IF(!stored, err, SL_ERR_EXHAUSTED, "capsule cache: out of memory");
    pthread_mutex_lock(&capsule_cache->mutex);
    enum sl_status status = SL_OK;
    if (sl_capsule_index_find_whole(&capsule_cache->index, &keys->id)) {
        status = sl_fail(err, SL_ERR_EXISTS, "this capsule is in the capsule cache already");
    } else if (!make_room_beside(capsule_cache, beside_bytes(stored))) {
        status = sl_fail(err, SL_ERR_EXHAUSTED,
                         "capsule cache: headers and keys of pinned and protected capsules take all of %zu bytes",
                         capsule_cache->max_beside_bytes);
    } else {
        status = enter(capsule_cache, stored, err);
    }
    pthread_mutex_unlock(&capsule_cache->mutex);
    if (status != SL_OK) {
        stored_free(stored);
    }
    return status;
}

struct sl_stored *sl_capsule_cache_pin(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *prefix,
                                       int64_t *covered_out) {
    SL_LOCKED(&capsule_cache->mutex);
    const struct sl_capsule_node *node = sl_capsule_index_find(&capsule_cache->index, prefix);
    struct sl_stored *stored = node ? node->stored : NULL;
    if (stored) {
        unlink_use(capsule_cache, stored);
        link_newest(capsule_cache, stored);
        capsule_cache->stats.n_pinned += stored->n_pins++ == 0;
        capsule_cache->stats.n_hits++;
        *covered_out = node->n_tokens;
    }
    return stored;
}

// Call with the lock held. May free *stored.
static void remove_pin(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    bool last = --stored->n_pins == 0;
    capsule_cache->stats.n_pinned -= last;
    if (last && stored->is_forgotten) {
        discard(capsule_cache, stored);
    }
}

void sl_capsule_cache_unpin(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    if (stored->release_fn) {
        stored->release_fn(stored);
        return;
    }
    SL_LOCKED(&capsule_cache->mutex);
    unlink_use(capsule_cache, stored);
    link_newest(capsule_cache, stored);
    stored->kept_until_ns = stored->used_ns + capsule_cache->keep_ms * SL_NS_PER_MS;
    remove_pin(capsule_cache, stored);
}

struct sl_stored *sl_capsule_cache_pin_longest(struct sl_capsule_cache *capsule_cache, const struct sl_prefix *prefixes,
                                               size_t n_prefixes, size_t *at_out) {
    for (size_t i = 0; i < n_prefixes; i++) {
        int64_t covered;
        struct sl_stored *stored = sl_capsule_cache_pin(capsule_cache, &prefixes[i].id, &covered);
        if (stored && covered == prefixes[i].n_tokens) {
            *at_out = i;
            return stored;
        }
        if (stored) { // hashes are equal, lengths are not: not the same tokens
            sl_capsule_cache_unpin(capsule_cache, stored);
        }
    }
    return NULL;
}

struct sl_stored *sl_capsule_cache_hold(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id) {
    SL_LOCKED(&capsule_cache->mutex);
    struct sl_stored *stored = sl_capsule_index_find_whole(&capsule_cache->index, id);
    if (stored) {
        capsule_cache->stats.n_pinned += stored->n_pins++ == 0;
    }
    return stored;
}

void sl_capsule_cache_release(struct sl_capsule_cache *capsule_cache, struct sl_stored *stored) {
    if (stored->release_fn) {
        stored->release_fn(stored);
        return;
    }
    SL_LOCKED(&capsule_cache->mutex);
    remove_pin(capsule_cache, stored);
}

bool sl_capsule_cache_forget(struct sl_capsule_cache *capsule_cache, const struct sl_capsule_id *id) {
    SL_LOCKED(&capsule_cache->mutex);
    struct sl_stored *stored = sl_capsule_index_find_whole(&capsule_cache->index, id);
    bool is_here = stored != NULL;
    if (is_here) {
        forget(capsule_cache, stored);
    }
    return is_here;
}

size_t sl_capsule_cache_list(struct sl_capsule_cache *capsule_cache, struct sl_capsule_id *ids_out, size_t max_ids) {
    size_t n = 0;
    SL_LOCKED(&capsule_cache->mutex);
    for (const struct sl_stored *stored = capsule_cache->newest; stored && n < max_ids; stored = stored->older) {
        ids_out[n] = stored->keys.id;
        n += !stored->is_forgotten;
    }
    return n;
}

bool sl_capsule_cache_evict_one(struct sl_capsule_cache *capsule_cache, int64_t now_ns) {
    SL_LOCKED(&capsule_cache->mutex);
    return evict_one(capsule_cache, now_ns);
}

int64_t sl_capsule_cache_oldest_ns(struct sl_capsule_cache *capsule_cache, int64_t now_ns) {
    SL_LOCKED(&capsule_cache->mutex);
    const struct sl_stored *stored = find_oldest(capsule_cache, now_ns);
    return stored ? stored->used_ns : INT64_MAX;
}

size_t sl_capsule_cache_evictable(struct sl_capsule_cache *capsule_cache, void **bodies_out, size_t max) {
    size_t n = 0, protected_bytes = 0;
    SL_LOCKED(&capsule_cache->mutex);
    for (struct sl_stored *stored = capsule_cache->newest; stored; stored = stored->older) {
        bool is_protected = is_of_document(capsule_cache, stored);
        protected_bytes += is_protected ? stored->capsule.body_bytes : 0;
    }
    bool any = protected_bytes > capsule_cache->max_protected_bytes;
    for (struct sl_stored *stored = capsule_cache->newest; stored && n < max; stored = stored->older) {
        if (stored->n_pins == 0 && (any || !is_of_document(capsule_cache, stored))) {
            bodies_out[n++] = stored->capsule.body;
        }
    }
    return n;
}

void sl_capsule_cache_get_stats(struct sl_capsule_cache *capsule_cache, struct sl_capsule_cache_stats *stats_out) {
    SL_LOCKED(&capsule_cache->mutex);
    *stats_out = capsule_cache->stats;
    size_t protected_bytes = 0, unpinned_bytes = 0; // of protected ones
    for (struct sl_stored *stored = capsule_cache->newest; stored; stored = stored->older) {
        bool is_protected = is_of_document(capsule_cache, stored);
        size_t bytes = stored->capsule.body_bytes;
        protected_bytes += is_protected ? bytes : 0;
        unpinned_bytes += is_protected && stored->n_pins == 0 ? bytes : 0;
        stats_out->checkpoint_bytes += stored->keys.is_checkpoint ? bytes : 0;
        stats_out->evictable_bytes += !is_protected && stored->n_pins == 0 ? bytes : 0;
    }
    if (protected_bytes > capsule_cache->max_protected_bytes) {
        size_t excess_bytes = protected_bytes - capsule_cache->max_protected_bytes;
        stats_out->evictable_bytes += excess_bytes < unpinned_bytes ? excess_bytes : unpinned_bytes;
    }
}

void sl_capsule_cache_count_miss(struct sl_capsule_cache *capsule_cache) {
    SL_LOCKED(&capsule_cache->mutex);
    capsule_cache->stats.n_misses++;
}
