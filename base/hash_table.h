// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the hash table: finds entries by a key that they contain.
 * Design: entries are chained through a link inside them, so that adding one cannot fail and takes no memory, and an
 *         entry may be in several tables. The number of buckets is fixed: choose about the usual number of entries.
 *         Tables that are read in inner loops have their own open addressing (the tokenizer's, and row places).
 * Threads: one at a time, or under the caller's lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct sl_hash_link { // a member of each entry
    struct sl_hash_link *next;
};

struct sl_hash_table {
    struct sl_hash_link **buckets; // [mask + 1]
    size_t mask;
};

// Returns true if the entry of the link has the key.
typedef bool (*sl_hash_same_fn)(const struct sl_hash_link *link, const void *key);

// Returns the entry that contains a link as `member`; NULL for NULL.
#define SL_HASH_ENTRY(link, type, member) ((type *)sl_hash_entry_of((link), offsetof(type, member)))

static inline void *sl_hash_entry_of(const struct sl_hash_link *link, size_t offset) {
    return link ? (void *)((uintptr_t)link - offset) : NULL;
}

// Makes an empty table of at least n_buckets; memory of buckets that are never used stays untouched. False: no memory.
static inline bool sl_hash_table_init(struct sl_hash_table *table, size_t n_buckets) {
    size_t n = 1;
    while (n < n_buckets) {
        n *= 2;
    }
    *table = (struct sl_hash_table){.buckets = calloc(n, sizeof(struct sl_hash_link *)), .mask = n - 1};
    return table->buckets != NULL;
}

// Frees the table, and no entry. Accepts a zeroed one.
static inline void sl_hash_table_cleanup(struct sl_hash_table *table) {
    free(table->buckets);
    *table = (struct sl_hash_table){0};
}

// Returns the start of the chain with all entries of this hash. It may have entries of other hashes.
static inline struct sl_hash_link **sl_hash_table_bucket(const struct sl_hash_table *table, uint64_t hash) {
    return &table->buckets[hash & table->mask];
}

/*
 * Finds the most recently added entry with this key: returns where its link is stored, so that the caller can replace
 * or remove it there (`*at = (*at)->next`). If there is none, *at is NULL, and an entry can be added there.
 */
static inline struct sl_hash_link **sl_hash_table_find(const struct sl_hash_table *table, uint64_t hash,
                                                       sl_hash_same_fn same_fn, const void *key) {
    struct sl_hash_link **at = sl_hash_table_bucket(table, hash);
    while (*at && !same_fn(*at, key)) {
        at = &(*at)->next;
    }
    return at;
}

// Adds an entry, before others with the same key.
static inline void sl_hash_table_add(struct sl_hash_table *table, uint64_t hash, struct sl_hash_link *link) {
    struct sl_hash_link **bucket = sl_hash_table_bucket(table, hash);
    link->next = *bucket;
    *bucket = link;
}

// Removes an entry, which must be in the table under this hash.
static inline void sl_hash_table_remove(struct sl_hash_table *table, uint64_t hash, struct sl_hash_link *link) {
    struct sl_hash_link **at = sl_hash_table_bucket(table, hash);
    while (*at != link) {
        at = &(*at)->next;
    }
    *at = link->next;
    link->next = NULL;
}
