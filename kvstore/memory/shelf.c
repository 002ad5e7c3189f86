// SPDX-License-Identifier: Apache-2.0
// Stored capsules. See shelf.h.
#include "kvstore/memory/shelf.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

#define N_BUCKETS (1u << 16)

struct node { // of the index
    struct node *next;
    struct sl_capsule_key key;
    int64_t n_tokens;
    struct sl_stored *stored;
};

struct sl_shelf {
    struct sl_arena *arena;
    int64_t keep_ms;
    pthread_mutex_t mutex;
    struct node **buckets; // [N_BUCKETS]
    struct sl_stored *newest, *oldest;
    struct sl_shelf_stats stats; // without evictable_bytes
};

enum sl_status sl_shelf_create(struct sl_arena *arena, int64_t keep_ms, struct sl_shelf **shelf_out,
                               struct sl_error *err) {
    struct sl_shelf *shelf = calloc(1, sizeof *shelf);
    struct node **buckets = calloc(N_BUCKETS, sizeof *buckets);
    if (!shelf || !buckets) {
        free(shelf);
        free(buckets);
        return sl_fail(err, SL_ERR_EXHAUSTED, "shelf: out of memory");
    }
    shelf->arena = arena;
    shelf->keep_ms = keep_ms;
    shelf->buckets = buckets;
    pthread_mutex_init(&shelf->mutex, NULL);
    *shelf_out = shelf;
    return SL_OK;
}

// ---- index (lock held) --------------------------------------------------------------------------------------------

static struct node **find(struct sl_shelf *shelf, const struct sl_capsule_key *key) {
    struct node **at = &shelf->buckets[sl_hash(key, sizeof *key, 0) % N_BUCKETS];
    while (*at && memcmp(&(*at)->key, key, sizeof *key) != 0) {
        at = &(*at)->next;
    }
    return at;
}

static bool index_add(struct sl_shelf *shelf, const struct sl_capsule_key *key, int64_t n_tokens,
                      struct sl_stored *stored) {
    struct node **at = find(shelf, key);
    if (!*at) {
        struct node *node = calloc(1, sizeof *node);
        if (!node) {
            return false;
        }
        node->key = *key;
        *at = node;
    } else if (memcmp(&(*at)->stored->key, key, sizeof *key) == 0) {
        return true; // somebody's whole: better than a part of ours
    }
    (*at)->n_tokens = n_tokens;
    (*at)->stored = stored;
    return true;
}

static void index_remove(struct sl_shelf *shelf, const struct sl_capsule_key *key, const struct sl_stored *stored) {
    struct node **at = find(shelf, key);
    if (*at && (*at)->stored == stored) { // a younger capsule may have taken it over
        struct node *node = *at;
        *at = node->next;
        free(node);
    }
}

// ---- order of use (lock held) -------------------------------------------------------------------------------------

static void unlink_use(struct sl_shelf *shelf, struct sl_stored *stored) {
    *(stored->newer ? &stored->newer->older : &shelf->newest) = stored->older;
    *(stored->older ? &stored->older->newer : &shelf->oldest) = stored->newer;
}

static void link_newest(struct sl_shelf *shelf, struct sl_stored *stored) {
    stored->used_ns = sl_now_ns();
    stored->newer = NULL;
    stored->older = shelf->newest;
    *(shelf->newest ? &shelf->newest->newer : &shelf->oldest) = stored;
    shelf->newest = stored;
}

// ---- capsules -----------------------------------------------------------------------------------------------------

static void stored_free(struct sl_stored *stored) {
    free(stored->prefixes);
    free(stored->prefix_tokens);
    free(stored);
}

// Lock held: take it out of index and order; its memory goes.
static void discard(struct sl_shelf *shelf, struct sl_stored *stored) {
    unlink_use(shelf, stored);
    for (size_t i = 0; i < stored->n_prefixes; i++) {
        index_remove(shelf, &stored->prefixes[i], stored);
    }
    shelf->stats.n_capsules--;
    shelf->stats.bytes -= stored->body_bytes;
    sl_arena_free(shelf->arena, stored->body);
    free(stored->header);
    stored_free(stored);
}

void sl_shelf_destroy(struct sl_shelf **shelf_inout) {
    struct sl_shelf *shelf = *shelf_inout;
    if (!shelf) {
        return;
    }
    while (shelf->newest) {
        discard(shelf, shelf->newest);
    }
    pthread_mutex_destroy(&shelf->mutex);
    free(shelf->buckets);
    free(shelf);
    *shelf_inout = NULL;
}

bool sl_shelf_has(struct sl_shelf *shelf, const struct sl_capsule_key *key) {
    pthread_mutex_lock(&shelf->mutex);
    struct node *node = *find(shelf, key);
    // Found as the whole capsule, not as a prefix of a longer one: that is worth storing for decode's sake.
    bool has = node && memcmp(&node->stored->key, key, sizeof *key) == 0;
    pthread_mutex_unlock(&shelf->mutex);
    return has;
}

/*
 * The keys under which a capsule is found: its prefixes and, last, the whole.
 */
static enum sl_status list_keys(struct sl_stored *stored, const uint64_t *hashes, size_t n_hashes, int64_t stride) {
    stored->prefixes = malloc(sizeof *stored->prefixes * (n_hashes + 1));
    stored->prefix_tokens = malloc(sizeof *stored->prefix_tokens * (n_hashes + 1));
    if (!stored->prefixes || !stored->prefix_tokens) {
        return SL_ERR_EXHAUSTED;
    }
    for (size_t i = 0; i < n_hashes && (int64_t)(i + 1) * stride < stored->n_tokens; i++) {
        stored->prefixes[stored->n_prefixes] = stored->key;
        stored->prefixes[stored->n_prefixes].prefix_hash = hashes[i];
        stored->prefix_tokens[stored->n_prefixes++] = (int64_t)(i + 1) * stride;
    }
    stored->prefixes[stored->n_prefixes] = stored->key;
    stored->prefix_tokens[stored->n_prefixes++] = stored->n_tokens;
    return SL_OK;
}

static enum sl_status check_header(const struct sl_capsule_key *key, const uint8_t *header, size_t header_bytes,
                                   size_t body_bytes, struct sl_capsule_info *info_out, struct sl_error *err) {
    enum sl_status status = sl_capsule_read_header(header, header_bytes, info_out, err);
    if (status == SL_OK && (info_out->id.model_fingerprint != key->model_fingerprint ||
                            info_out->id.recipe_fingerprint != key->recipe_fingerprint ||
                            info_out->id.prefix_hash != key->prefix_hash || info_out->body_bytes != body_bytes)) {
        status = sl_fail(err, SL_ERR_INVALID, "the capsule that arrived is not the one that was announced");
    }
    return status;
}

enum sl_status sl_shelf_put(struct sl_shelf *shelf, const struct sl_capsule_key *key, void *body, size_t body_bytes,
                            uint8_t *header, size_t header_bytes, const uint64_t *hashes, size_t n_hashes,
                            int64_t stride, struct sl_error *err) {
    struct sl_capsule_info info;
    enum sl_status status = check_header(key, header, header_bytes, body_bytes, &info, err);
    if (status != SL_OK) {
        return status;
    }
    if (info.evicted || stride < 1) {
        n_hashes = 0;
    }
    n_hashes = n_hashes < SL_SHELF_MAX_PREFIXES - 1 ? n_hashes : SL_SHELF_MAX_PREFIXES - 1;
    struct sl_stored *stored = calloc(1, sizeof *stored);
    if (!stored) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "shelf: out of memory");
    }
    stored->key = *key;
    stored->n_tokens = info.n_tokens;
    if (list_keys(stored, hashes, n_hashes, stride) != SL_OK) {
        stored_free(stored);
        return sl_fail(err, SL_ERR_EXHAUSTED, "shelf: out of memory");
    }
    stored->body = body;
    stored->body_bytes = body_bytes;
    stored->header = header;
    stored->header_bytes = header_bytes;

    pthread_mutex_lock(&shelf->mutex);
    struct node *node = *find(shelf, key);
    if (node && memcmp(&node->stored->key, key, sizeof *key) == 0) {
        status = sl_fail(err, SL_ERR_EXISTS, "this capsule is on the shelf already");
    }
    if (status == SL_OK) {
        link_newest(shelf, stored);
        shelf->stats.n_capsules++;
        shelf->stats.bytes += body_bytes;
        for (size_t i = 0; i < stored->n_prefixes; i++) {
            index_add(shelf, &stored->prefixes[i], stored->prefix_tokens[i], stored); // one key fewer does no harm
        }
    }
    pthread_mutex_unlock(&shelf->mutex);
    if (status != SL_OK) {
        stored_free(stored);
    }
    return status;
}

struct sl_stored *sl_shelf_pin(struct sl_shelf *shelf, const struct sl_capsule_key *prefix, int64_t *covered_out) {
    pthread_mutex_lock(&shelf->mutex);
    struct node *node = *find(shelf, prefix);
    struct sl_stored *stored = node ? node->stored : NULL;
    if (stored) {
        unlink_use(shelf, stored);
        link_newest(shelf, stored);
        shelf->stats.n_pinned += stored->n_pins++ == 0;
        shelf->stats.n_hits++;
        *covered_out = node->n_tokens;
    }
    pthread_mutex_unlock(&shelf->mutex);
    return stored;
}

void sl_shelf_unpin(struct sl_shelf *shelf, struct sl_stored *stored) {
    pthread_mutex_lock(&shelf->mutex);
    shelf->stats.n_pinned -= --stored->n_pins == 0;
    unlink_use(shelf, stored);
    link_newest(shelf, stored);
    stored->kept_until_ns = stored->used_ns + shelf->keep_ms * SL_NS_PER_MS;
    pthread_mutex_unlock(&shelf->mutex);
}

struct sl_stored *sl_shelf_pin_longest(struct sl_shelf *shelf, const struct sl_prefix *prefixes, size_t n_prefixes,
                                       size_t *at_out) {
    for (size_t i = 0; i < n_prefixes; i++) {
        int64_t covered;
        struct sl_stored *stored = sl_shelf_pin(shelf, &prefixes[i].key, &covered);
        if (stored && covered == prefixes[i].n_tokens) {
            *at_out = i;
            return stored;
        }
        if (stored) { // hashes agree, lengths do not: not the same tokens
            sl_shelf_unpin(shelf, stored);
        }
    }
    return NULL;
}

struct sl_stored *sl_shelf_hold(struct sl_shelf *shelf, const struct sl_capsule_key *key) {
    pthread_mutex_lock(&shelf->mutex);
    struct node *node = *find(shelf, key);
    struct sl_stored *stored = node && memcmp(&node->stored->key, key, sizeof *key) == 0 ? node->stored : NULL;
    if (stored) {
        shelf->stats.n_pinned += stored->n_pins++ == 0;
    }
    pthread_mutex_unlock(&shelf->mutex);
    return stored;
}

void sl_shelf_let_go(struct sl_shelf *shelf, struct sl_stored *stored) {
    pthread_mutex_lock(&shelf->mutex);
    shelf->stats.n_pinned -= --stored->n_pins == 0;
    pthread_mutex_unlock(&shelf->mutex);
}

size_t sl_shelf_list(struct sl_shelf *shelf, struct sl_capsule_key *keys_out, size_t max_keys) {
    size_t n = 0;
    pthread_mutex_lock(&shelf->mutex);
    for (const struct sl_stored *stored = shelf->newest; stored && n < max_keys; stored = stored->older) {
        keys_out[n++] = stored->key;
    }
    pthread_mutex_unlock(&shelf->mutex);
    return n;
}

// Lock held.
static struct sl_stored *find_oldest(struct sl_shelf *shelf, int64_t now_ns) {
    struct sl_stored *stored = shelf->oldest;
    while (stored && (stored->n_pins > 0 || stored->kept_until_ns > now_ns)) {
        stored = stored->newer;
    }
    return stored;
}

bool sl_shelf_evict_one(struct sl_shelf *shelf, int64_t now_ns) {
    pthread_mutex_lock(&shelf->mutex);
    struct sl_stored *stored = find_oldest(shelf, now_ns);
    if (stored) {
        discard(shelf, stored);
        shelf->stats.n_evicted++;
    }
    pthread_mutex_unlock(&shelf->mutex);
    return stored != NULL;
}

int64_t sl_shelf_oldest_ns(struct sl_shelf *shelf, int64_t now_ns) {
    pthread_mutex_lock(&shelf->mutex);
    const struct sl_stored *stored = find_oldest(shelf, now_ns);
    int64_t used_ns = stored ? stored->used_ns : INT64_MAX;
    pthread_mutex_unlock(&shelf->mutex);
    return used_ns;
}

void sl_shelf_get_stats(struct sl_shelf *shelf, struct sl_shelf_stats *stats_out) {
    pthread_mutex_lock(&shelf->mutex);
    *stats_out = shelf->stats;
    for (const struct sl_stored *stored = shelf->newest; stored; stored = stored->older) {
        stats_out->evictable_bytes += stored->n_pins > 0 ? 0 : stored->body_bytes;
    }
    pthread_mutex_unlock(&shelf->mutex);
}

void sl_shelf_count_miss(struct sl_shelf *shelf) {
    pthread_mutex_lock(&shelf->mutex);
    shelf->stats.n_misses++;
    pthread_mutex_unlock(&shelf->mutex);
}
