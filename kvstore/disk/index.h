// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what is in a folder of capsules, under which keys it is found, and in which order it was used; in memory.
 *
 * Design: made anew at every start from the heads of the files (kvstore/disk/file.h), so that nothing on disk can be at odds with it.
 *         A key leads to one capsule: to the one that is just that prefix, or else to the youngest that begins with it.
 *         Bounded: when it would grow beyond max_bytes, the folder has to remove a capsule first.
 * Threads: any number; one lock, held for short.
 */
#pragma once

#include "kvstore/disk/file.h"

struct sl_disk_index;

struct sl_disk_entry {
    uint64_t id; // of the file; a process gives none out twice
    struct sl_disk_head head;
};

enum sl_status sl_disk_index_create(size_t max_bytes, struct sl_disk_index **index_out, struct sl_error *err);
void sl_disk_index_destroy(struct sl_disk_index **index); // accepts NULL, nulls

/*
 * Add a capsule as the one used last; no other may have its key. hashes: [head.n_hashes]. SL_AGAIN: there is no room; remove something
 * and try again. SL_ERR_EXHAUSTED.
 */
enum sl_status sl_disk_index_put(struct sl_disk_index *index, const struct sl_disk_entry *entry,
                                 const struct sl_hash128 *hashes, struct sl_error *err);

bool sl_disk_index_remove(struct sl_disk_index *index, const struct sl_disk_entry *entry); // false: it has gone before

// The capsule of this key, whole.
bool sl_disk_index_get(struct sl_disk_index *index, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out);
// The same, and it is now the one used last.
bool sl_disk_index_touch(struct sl_disk_index *index, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out);
// The capsule used longest ago.
bool sl_disk_index_oldest(struct sl_disk_index *index, struct sl_disk_entry *entry_out);

/*
 * The first of the prefixes (longest first) under which a capsule is found that holds at most four times as many tokens: no
 * worker fetches one that is of less use.
 */
bool sl_disk_index_find(struct sl_disk_index *index, const struct sl_prefix *prefixes, size_t n_prefixes,
                        size_t *at_out, struct sl_disk_entry *entry_out);
