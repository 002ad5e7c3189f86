// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: capsules as files in a folder, found by prefix, never more bytes than allowed.
 *
 *          DIR/owner            locked by the one process that uses the folder
 *          DIR/capsule-<id>     kvstore/disk/file.h; its modification time is the time of its last use
 *
 * Design: the folder holds nothing else. The index by key is in memory (kvstore/disk/index.h) and is built at every
 *         start from the heads of the files. So no other file could be damaged or disagree with them, and a damaged
 *         file costs its own capsule only. The start removes every file that does not hold what its head must say: a
 *         file that a killed process left, one that is truncated or damaged, the older of two for the same capsule. It
 *         does not touch files with other names. A file that the disk does not give may be whole. At a start it is
 *         read twice, and removed if most other files can be read, one of them also at the end. If there are no others, it
 *         stays, and the folder is opened without it if the disk gives what is written. Later it is removed if it
 *         fails twice and another one was read in between, from the disk and not from the page cache, or if it fails
 *         eight times: that the folder was opened anew shows nothing, since heads may be in that cache.
 *         The index may take a 64th of the bytes in memory (4 MiB at least, 1 GiB at most). When it or the folder is
 *         full, capsules are evicted by the policy, at a start the least recently used ones. When other programs have filled the disk, as much is
 *         evicted as the new capsule needs; if they take that too, new capsules are dropped and nothing more is evicted
 *         for a minute.
 * Threads: one writes; any number find and read.
 */
#pragma once

#include <sys/types.h>

#include "kvstore/disk/index.h"

#define SL_DISK_MIN_BYTES ((int64_t)16 << 20)

struct sl_disk_folder;

/*
 * Opens the folder, or makes it (but not its parents). disk: sl_disk_folder_disk() of the opening before, as for
 * sl_owned_folder_open(); 0: there was none. set: the capsules that are not evicted, which must outlive the folder (NULL: none); while it is
 * not known, the folder may exceed max_bytes. SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION: it cannot be used; err names
 * it and the remedy.
 */
enum sl_status sl_disk_folder_open(const char *path, dev_t disk, int64_t max_bytes, struct sl_protected *set,
                                   struct sl_disk_folder **folder_out, struct sl_error *err);
// Returns the file system on which the folder is.
dev_t sl_disk_folder_disk(const struct sl_disk_folder *folder);
// Chooses what is evicted from now on, as sl_disk_index_evict_by().
void sl_disk_folder_evict_by(struct sl_disk_folder *folder, const struct sl_eviction_config *eviction);
// Returns the memory that the index of a folder of max_bytes may take.
int64_t sl_disk_folder_index_bytes(int64_t max_bytes);
void sl_disk_folder_close(struct sl_disk_folder **folder);

/*
 * Writes a capsule; evicts others for it. Calls go_on (may be NULL) between pieces. SL_ERR_EXISTS: it is on disk
 * already. SL_ERR_EXHAUSTED: it is larger than the folder may become, protected capsules leave no room, or other
 * programs have filled the disk (logged when that begins and ends). SL_ERR_CANCELLED: go_on returned false, or no file can be opened just now. SL_ERR_IO: the
 * disk fails. In none of these cases a part of it stays.
 */
enum sl_status sl_disk_folder_write(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                    bool (*go_on)(void *arg), void *arg, struct sl_error *err);

// Returns the index, by which any thread finds capsules: sl_disk_index_find(), _get() and _begins_with().
struct sl_disk_index *sl_disk_folder_index(const struct sl_disk_folder *folder);

// Files that could not be read when they were read last. Zeros at first; the caller keeps it when it opens the folder anew.
struct sl_disk_unread {
    struct sl_disk_unread_file {
        uint64_t id;
        int n_failures;
        bool others_were_read; // from the disk, since the first failure
    } files[8];                // [n]
    size_t n;
};

/*
 * Reads the capsule into body[entry->head.body_bytes], which *capsule_out then refers to; its header and
 * keys_out->hashes are malloc'd, and the caller frees them. SL_ERR_NOT_FOUND: it was removed meanwhile, or it was
 * damaged, or failed again after others were read, and is now removed (logged). SL_ERR_EXHAUSTED. SL_ERR_IO: it cannot be
 * read, and stays; or a damaged file cannot be removed.
 */
enum sl_status sl_disk_folder_read(struct sl_disk_folder *folder, const struct sl_disk_entry *entry,
                                   struct sl_disk_unread *unread, void *body, struct sl_capsule_bytes *capsule_out,
                                   struct sl_capsule_keys *keys_out, struct sl_error *err);
// Removes a capsule that cannot be used although its digests match, and logs why. SL_ERR_IO.
enum sl_status sl_disk_folder_discard(struct sl_disk_folder *folder, const struct sl_disk_entry *entry, const char *why,
                                      struct sl_error *err);
// Forgets this whole capsule; only the writer may call it. SL_ERR_NOT_FOUND, SL_ERR_IO.
enum sl_status sl_disk_folder_forget(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                     struct sl_error *err);
// The same in two steps: any thread hides the capsule, so that it is not found any more; the writer removes its file.
bool sl_disk_folder_hide(struct sl_disk_folder *folder, const struct sl_disk_entry *entry); // false: it was removed
enum sl_status sl_disk_folder_remove(struct sl_disk_folder *folder, uint64_t id, struct sl_error *err); // SL_ERR_IO
// Counts this whole capsule as the most recently used. SL_ERR_NOT_FOUND, SL_ERR_IO.
enum sl_status sl_disk_folder_touch(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                    struct sl_error *err);

void sl_disk_folder_get_size(struct sl_disk_folder *folder, int64_t *n_capsules_out, int64_t *bytes_out);
