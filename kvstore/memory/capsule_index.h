// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds the capsules of a capsule cache by their keys.
 *
 * Design: one node for each key of each capsule. The nodes of one key form a list; the first one answers. That is the
 *         capsule that is exactly the prefix, or else the one that was added last. When the first capsule goes, the
 *         next one answers. A capsule counts its keys that other capsules have as well.
 * Threads: one at a time, under the cache's lock.
 */
#pragma once

#include "base/hash_table.h"
#include "kvstore/memory/capsule_cache.h"

// A key of a capsule.
struct sl_capsule_node {
    struct sl_hash_link link; // of the first node of a key
    struct sl_capsule_id id;
    int64_t n_tokens;
    struct sl_stored *stored;
    struct sl_capsule_node *next, *previous; // of the same key
};

struct sl_capsule_index {
    struct sl_hash_table by_id;
    struct sl_protected *protected; // NULL: none
};

bool sl_capsule_index_init(struct sl_capsule_index *index); // false: out of memory
void sl_capsule_index_cleanup(struct sl_capsule_index *index);

// Returns the node that answers for this key, or NULL.
const struct sl_capsule_node *sl_capsule_index_find(const struct sl_capsule_index *index,
                                                    const struct sl_capsule_id *id);
// Returns the capsule with this id, and not one that has it as a prefix; or NULL.
struct sl_stored *sl_capsule_index_find_whole(const struct sl_capsule_index *index, const struct sl_capsule_id *id);

// Adds the keys of a capsule; stored->nodes has room for n_hashes + 1.
void sl_capsule_index_add(struct sl_capsule_index *index, struct sl_stored *stored);
void sl_capsule_index_remove(struct sl_capsule_index *index, struct sl_stored *stored);
