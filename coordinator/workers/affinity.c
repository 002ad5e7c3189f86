// SPDX-License-Identifier: Apache-2.0
/*
 * Design: entry 0 is the head of the list in order of use (next: most recent, previous: least recent).
 */
#include "coordinator/workers/affinity.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash_table.h"
#include "base/locked.h"

struct entry {
    struct sl_hash_link link;
    uint64_t key; // a hash
    uint64_t worker;
    uint32_t next, prev; // order of use
};

struct sl_affinity {
    pthread_mutex_t mutex;
    struct entry *entries; // [max_entries + 1]
    struct sl_hash_table by_key;
    size_t max_entries;
    size_t n_entries;
};

enum sl_status sl_affinity_create(size_t max_entries, struct sl_affinity **affinity_out, struct sl_error *err) {
    SL_FAIL_IF(max_entries < 1 || max_entries > (1U << 28), err, SL_ERR_INVALID,
               "affinity: %zu entries, must be 1 to 2^28", max_entries);
    SL_NEW_OR_FAIL(struct sl_affinity, affinity, err, "affinity: no memory for %zu entries", max_entries);
    pthread_mutex_init(&affinity->mutex, NULL);
    affinity->max_entries = max_entries;
    affinity->entries = calloc(max_entries + 1, sizeof(*affinity->entries));
    if (affinity->entries == NULL || !sl_hash_table_init(&affinity->by_key, max_entries)) {
        sl_affinity_destroy(&affinity);
        return sl_fail(err, SL_ERR_EXHAUSTED, "affinity: no memory for %zu entries", max_entries);
    }
    *affinity_out = affinity;
    return SL_OK;
}

void sl_affinity_destroy(struct sl_affinity **affinity_in) {
    SL_TAKE_OR_RETURN(affinity, affinity_in);
    pthread_mutex_destroy(&affinity->mutex);
    free(affinity->entries);
    sl_hash_table_cleanup(&affinity->by_key);
    free(affinity);
}

static uint64_t hash_of(uint64_t key) {
    return key ^ key >> 32;
}

static bool has_key(const struct sl_hash_link *link, const void *key) {
    return SL_HASH_ENTRY(link, struct entry, link)->key == *(const uint64_t *)key;
}

// Returns the entry's index; 0: there is none.
static uint32_t find(struct sl_affinity *affinity, uint64_t key) {
    const struct entry *entry =
        SL_HASH_ENTRY(*sl_hash_table_find(&affinity->by_key, hash_of(key), has_key, &key), struct entry, link);
    return entry == NULL ? 0 : (uint32_t)(entry - affinity->entries);
}

static void unlink_use(struct sl_affinity *affinity, uint32_t i) {
    struct entry *e = &affinity->entries[i];
    affinity->entries[e->prev].next = e->next;
    affinity->entries[e->next].prev = e->prev;
}

static void link_most_recent(struct sl_affinity *affinity, uint32_t i) {
    struct entry *head = &affinity->entries[0], *e = &affinity->entries[i];
    e->prev = 0;
    e->next = head->next;
    affinity->entries[head->next].prev = i;
    head->next = i;
}

static uint32_t take_entry(struct sl_affinity *affinity) {
    if (affinity->n_entries < affinity->max_entries) {
        return (uint32_t)++affinity->n_entries;
    }
    uint32_t oldest = affinity->entries[0].prev;
    unlink_use(affinity, oldest);
    sl_hash_table_remove(&affinity->by_key, hash_of(affinity->entries[oldest].key), &affinity->entries[oldest].link);
    return oldest;
}

static void put_one(struct sl_affinity *affinity, uint64_t key, uint64_t worker) {
    uint32_t i = find(affinity, key);
    if (i != 0) {
        unlink_use(affinity, i);
    } else {
        i = take_entry(affinity);
        affinity->entries[i].key = key;
        sl_hash_table_add(&affinity->by_key, hash_of(key), &affinity->entries[i].link);
    }
    affinity->entries[i].worker = worker;
    link_most_recent(affinity, i);
}

void sl_affinity_put(struct sl_affinity *affinity, const uint64_t *keys, int64_t n_keys, uint64_t worker) {
    SL_LOCKED(&affinity->mutex);
    // Longest first: the short prefixes, which most prompts share, end up the most recently used.
    for (int64_t i = n_keys - 1; i >= 0; i--) {
        put_one(affinity, keys[i], worker);
    }
}

int64_t sl_affinity_match(struct sl_affinity *affinity, const uint64_t *keys, int64_t n_keys, uint64_t *worker_out) {
    int64_t n_blocks = 0;
    uint64_t worker = 0;
    pthread_mutex_lock(&affinity->mutex);
    for (int64_t n = n_keys; n > 0; n--) {
        uint32_t i = find(affinity, keys[n - 1]);
        if (i != 0) {
            unlink_use(affinity, i);
            link_most_recent(affinity, i);
            n_blocks = n;
            worker = affinity->entries[i].worker;
            break;
        }
    }
    pthread_mutex_unlock(&affinity->mutex);
    *worker_out = worker;
    return n_blocks;
}
