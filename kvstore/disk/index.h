// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what is in a folder of capsules, and under which keys it is found. The only user of LMDB.
 *
 * Design: five tables in one file, changed by transactions, so that a process that is killed leaves either the old state or
 *         the new one:
 *           about      name -> number       version of all this, and the next number to be given out
 *           capsules   id -> entry          struct sl_disk_entry
 *           lists      id -> hashes         the prefixes of a capsule that can be truncated
 *           prefixes   key -> id, tokens    every key under which a capsule is found
 *           uses       number -> id         ascending: used longest ago first
 *         Ids and uses are numbers of one sequence that never repeats, so a file's name never means another capsule.
 *         LMDB has no checksums: an entry carries one over itself and one over its list.
 *         A commit is synced to the disk, but for the page that says which commit is the last: the system's crash may undo the
 *         last change and nothing else.
 * Threads: any number; LMDB lets one change at a time and as many read as wish.
 *
 * Unless said otherwise functions return SL_OK, SL_ERR_NOT_FOUND or SL_ERR_IO.
 */
#pragma once

#include "kvstore/memory/shelf.h"

struct sl_disk_index;

struct sl_disk_entry {
    struct sl_capsule_id key;
    int64_t n_tokens;
    uint64_t header_bytes, body_bytes;
    uint64_t n_hashes;    // in its list; hashes[i] covers (i + 1) * stride tokens
    int64_t stride;       // tokens
    uint64_t use;         // its number in the order of use
    uint64_t file_digest; // of header and body
    uint64_t list_digest;
    uint64_t digest; // of all fields before this one but `use`
};
bool sl_disk_entry_is_damaged(const struct sl_disk_entry *entry);

/*
 * Open or make the index in the file `path`, which never grows beyond max_bytes (unless it is larger already).
 * SL_ERR_PRECONDITION: it is not ours, of another version, or cut short. SL_ERR_IO: it cannot be read or written.
 */
enum sl_status sl_disk_index_open(const char *path, size_t max_bytes, struct sl_disk_index **index_out,
                                  struct sl_error *err);
void sl_disk_index_close(struct sl_disk_index **index); // nobody may be using it

// A number that has not been given out before: for the id of a new capsule.
uint64_t sl_disk_index_next(struct sl_disk_index *index);

/*
 * Add a capsule as the one used last; digests of entry and list and its use are set here. hashes: [entry->n_hashes].
 * SL_AGAIN: the file may not hold so much more; remove something and try again.
 */
enum sl_status sl_disk_index_put(struct sl_disk_index *index, uint64_t id, const struct sl_disk_entry *entry,
                                 const uint64_t *hashes, struct sl_error *err);

// *entry_out is as it was, whether or not it is damaged; SL_ERR_NOT_FOUND: somebody else has removed it.
enum sl_status sl_disk_index_remove(struct sl_disk_index *index, uint64_t id, struct sl_disk_entry *entry_out,
                                    struct sl_error *err);

// Make it the one used last.
enum sl_status sl_disk_index_touch(struct sl_disk_index *index, uint64_t id, struct sl_error *err);

// Also SL_ERR_INVALID: it is damaged.
enum sl_status sl_disk_index_get(struct sl_disk_index *index, uint64_t id, struct sl_disk_entry *entry_out,
                                 struct sl_error *err);
// hashes_out: [entry->n_hashes]. Also SL_ERR_INVALID.
enum sl_status sl_disk_index_list(struct sl_disk_index *index, uint64_t id, const struct sl_disk_entry *entry,
                                  uint64_t *hashes_out, struct sl_error *err);

/*
 * The first of the prefixes (longest first) under which a capsule is found that holds at most four times as many tokens: no
 * worker fetches one that is of less use. Also SL_ERR_INVALID: the capsule *id_out is damaged.
 */
enum sl_status sl_disk_index_find(struct sl_disk_index *index, const struct sl_prefix *prefixes, size_t n_prefixes,
                                  size_t *at_out, uint64_t *id_out, struct sl_disk_entry *entry_out,
                                  struct sl_error *err);
// Whether this capsule is there, whole.
bool sl_disk_index_has(struct sl_disk_index *index, const struct sl_capsule_id *key, uint64_t *id_out);

// The capsule used longest ago.
enum sl_status sl_disk_index_oldest(struct sl_disk_index *index, uint64_t *id_out, struct sl_error *err);

// The first capsule whose id is at least `from`; for a pass over all.
enum sl_status sl_disk_index_walk(struct sl_disk_index *index, uint64_t from, uint64_t *id_out, struct sl_error *err);
