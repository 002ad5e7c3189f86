// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see affinity.h.
 * Design: entries and chains are indexes into two arrays, not pointers. Entry 0 is the head of the list in order of use
 *         (next: most recent, previous: least recent) and the end of every chain.
 */
#include "coordinator/workers/affinity.h"

#include <pthread.h>
#include <stdlib.h>

struct entry {
    uint64_t key;
    uint64_t worker;
    uint32_t chain;      // next entry in the same bucket, 0 at the end
    uint32_t next, prev; // order of use
};

struct sl_affinity {
    pthread_mutex_t mutex;
    struct entry *entries; // [max_entries + 1]
    uint32_t *buckets;     // [n_buckets], first entry of each chain
    size_t n_buckets;      // a power of two
    size_t max_entries;
    size_t n_entries;
};

enum sl_status sl_affinity_create(size_t max_entries, struct sl_affinity **affinity_out, struct sl_error *err) {
    if (max_entries < 1 || max_entries > (1U << 28)) {
        return sl_fail(err, SL_ERR_INVALID, "affinity: %zu entries, must be 1 to 2^28", max_entries);
    }
    struct sl_affinity *affinity = calloc(1, sizeof(*affinity));
    if (affinity == NULL) {
        goto err_memory;
    }
    affinity->max_entries = max_entries;
    affinity->n_buckets = 1;
    while (affinity->n_buckets < max_entries) {
        affinity->n_buckets *= 2;
    }
    affinity->entries = calloc(max_entries + 1, sizeof(*affinity->entries));
    affinity->buckets = calloc(affinity->n_buckets, sizeof(*affinity->buckets));
    if (affinity->entries == NULL || affinity->buckets == NULL) {
        goto err_free;
    }
    pthread_mutex_init(&affinity->mutex, NULL);
    *affinity_out = affinity;
    return SL_OK;

err_free:
    free(affinity->entries);
    free(affinity->buckets);
    free(affinity);
err_memory:
    return sl_fail(err, SL_ERR_EXHAUSTED, "affinity: no memory for %zu entries", max_entries);
}

void sl_affinity_destroy(struct sl_affinity **affinity_in) {
    struct sl_affinity *affinity = *affinity_in;
    if (affinity == NULL) {
        return;
    }
    pthread_mutex_destroy(&affinity->mutex);
    free(affinity->entries);
    free(affinity->buckets);
    free(affinity);
    *affinity_in = NULL;
}

static uint32_t *bucket_of(struct sl_affinity *affinity, uint64_t key) {
    return &affinity->buckets[(key ^ (key >> 32)) & (affinity->n_buckets - 1)];
}

static uint32_t find(struct sl_affinity *affinity, uint64_t key) {
    uint32_t i = *bucket_of(affinity, key);
    while (i != 0 && affinity->entries[i].key != key) {
        i = affinity->entries[i].chain;
    }
    return i;
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
    uint32_t *at = bucket_of(affinity, affinity->entries[oldest].key);
    while (*at != oldest) {
        at = &affinity->entries[*at].chain;
    }
    *at = affinity->entries[oldest].chain;
    return oldest;
}

static void put_one(struct sl_affinity *affinity, uint64_t key, uint64_t worker) {
    uint32_t i = find(affinity, key);
    if (i != 0) {
        unlink_use(affinity, i);
    } else {
        i = take_entry(affinity);
        uint32_t *bucket = bucket_of(affinity, key);
        affinity->entries[i].key = key;
        affinity->entries[i].chain = *bucket;
        *bucket = i;
    }
    affinity->entries[i].worker = worker;
    link_most_recent(affinity, i);
}

void sl_affinity_put(struct sl_affinity *affinity, const uint64_t *keys, int64_t n_keys, uint64_t worker) {
    pthread_mutex_lock(&affinity->mutex);
    // Longest first: the short prefixes, which most prompts share, end up the most recently used.
    for (int64_t i = n_keys - 1; i >= 0; i--) {
        put_one(affinity, keys[i], worker);
    }
    pthread_mutex_unlock(&affinity->mutex);
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

size_t sl_affinity_size(struct sl_affinity *affinity) {
    pthread_mutex_lock(&affinity->mutex);
    size_t size = affinity->n_entries;
    pthread_mutex_unlock(&affinity->mutex);
    return size;
}
