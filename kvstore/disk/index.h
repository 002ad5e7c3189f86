// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the in-memory index of a folder of capsules: by key, and in the order of last use.
 *
 * Design: built at every start from the heads of the files (kvstore/disk/file.h), so that nothing on disk can disagree
 *         with it. A key leads to one capsule: to the one that is exactly that prefix, or else to the youngest that
 *         begins with it. Bounded: when it would grow beyond max_bytes, the folder has to remove a capsule first.
 * Threads: any number; one lock, held briefly.
 */
#pragma once

#include "kvstore/disk/file.h"
#include "kvstore/memory/eviction.h"

struct sl_disk_index;

struct sl_disk_entry {
    uint64_t id;     // of the file; a process never uses one twice
    int64_t used_ns; // when it was last used, since 1970
    struct sl_disk_head head;
};

enum sl_status sl_disk_index_create(size_t max_bytes, struct sl_disk_index **index_out, struct sl_error *err);
void sl_disk_index_limit(struct sl_disk_index *index, size_t max_bytes); // another limit for what is added from now on
/*
 * Chooses what sl_disk_index_victim() finds: without a call the least recently used capsule. capacity_bytes: of the folder.
 * The configuration's clock is not used.
 */
void sl_disk_index_evict_by(struct sl_disk_index *index, const struct sl_eviction_config *eviction,
                            int64_t capacity_bytes);
void sl_disk_index_destroy(struct sl_disk_index **index); // accepts NULL, nulls

/*
 * Adds a capsule as the most recently used, whatever its used_ns; no other may have its key. hashes: [head.n_hashes]. SL_AGAIN: there is no
 * room; remove a capsule and try again. SL_ERR_EXHAUSTED.
 */
enum sl_status sl_disk_index_put(struct sl_disk_index *index, const struct sl_disk_entry *entry,
                                 const struct sl_hash128 *hashes, struct sl_error *err);

bool sl_disk_index_remove(struct sl_disk_index *index, const struct sl_disk_entry *entry); // false: it was removed
                                                                                           // before

// Finds the capsule with this key, whole.
bool sl_disk_index_get(struct sl_disk_index *index, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out);
// Returns whether this whole capsule is there and has a prefix with this hash.
bool sl_disk_index_begins_with(struct sl_disk_index *index, const struct sl_capsule_id *key,
                               const struct sl_hash128 *prefix_hash);
// Finds the whole capsule, and counts it as the most recently used.
bool sl_disk_index_touch(struct sl_disk_index *index, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out);
// Finds the capsule that the policy evicts next of those that are not in the set (NULL: an empty one).
bool sl_disk_index_victim(struct sl_disk_index *index, struct sl_protected *set, struct sl_disk_entry *entry_out);
// Returns whether the capsules that are not in the set take this many bytes.
bool sl_disk_index_can_free(struct sl_disk_index *index, struct sl_protected *set,
                            int64_t (*file_bytes)(const struct sl_disk_entry *entry), int64_t bytes);

/*
 * Finds the first of the prefixes (longest first) that leads to a capsule with at most four times as many tokens: a
 * longer capsule is not worth fetching for any worker.
 */
bool sl_disk_index_find(struct sl_disk_index *index, const struct sl_prefix *prefixes, size_t n_prefixes,
                        size_t *at_out, struct sl_disk_entry *entry_out);
