// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: capsules as files in a folder, found by prefix, never more bytes than allowed.
 *
 *          DIR/owner            locked by the one process that uses the folder
 *          DIR/capsule-<id>     kvstore/disk/file.h; its time of modification is that of its last use
 *
 * Design: there is nothing else. What is found under which key is in memory (kvstore/disk/index.h), made anew at every start from
 *         the heads of the files. So there is nothing beside the files that could be damaged or be at odds with them, and a damaged
 *         file costs its own capsule. What does not hold what its head must say is removed at the start: a file that a killed process
 *         left, one that is cut short or damaged, the older of two for the same capsule. Files of other names are let be.
 *         The index may take a 64th of the bytes in memory (4 MiB at least, 1 GiB at most); when it or the folder is full, the capsule
 *         that was used longest ago goes. Where others have filled the disk, as much as the new capsule needs goes; where they take that as well, capsules are dropped
 *         and nothing more goes for a minute.
 * Threads: one writes; any number find and read.
 */
#pragma once

#include "kvstore/disk/index.h"

#define SL_DISK_MIN_BYTES ((int64_t)16 << 20)

struct sl_disk_folder;

/*
 * Open the folder, or make it (but not its parents). SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION: it cannot be used;
 * err names it and the remedy.
 */
enum sl_status sl_disk_folder_open(const char *path, int64_t max_bytes, struct sl_disk_folder **folder_out,
                                   struct sl_error *err);
// Of a folder of so many bytes: memory that its index may take.
int64_t sl_disk_folder_index_bytes(int64_t max_bytes);
void sl_disk_folder_close(struct sl_disk_folder **folder);

/*
 * Write a capsule; others go for it. Asks go_on (may be NULL) between pieces. SL_ERR_EXISTS: it is there.
 * SL_ERR_EXHAUSTED: it is larger than the folder may become, or others have filled the disk (logged when that begins and ends).
 * SL_ERR_CANCELLED: go_on said no, or no file can be opened just now. SL_ERR_IO: the disk fails. In none of these cases a part of it stays.
 */
enum sl_status sl_disk_folder_write(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                    bool (*go_on)(void *arg), void *arg, struct sl_error *err);

// What is stored for the longest of these prefixes (longest first); *at_out is which one it is. False: nothing.
bool sl_disk_folder_find(struct sl_disk_folder *folder, const struct sl_prefix *prefixes, size_t n_prefixes,
                         size_t *at_out, struct sl_disk_entry *entry_out);

/*
 * Read it into body[entry->head.body_bytes], which *capsule_out then has; its header and keys_out->hashes are malloc'd and the
 * caller's. SL_ERR_NOT_FOUND: it has gone meanwhile, or it was damaged and is now gone (logged). SL_ERR_EXHAUSTED. SL_ERR_IO: what is
 * damaged cannot be removed.
 */
enum sl_status sl_disk_folder_read(struct sl_disk_folder *folder, const struct sl_disk_entry *entry, void *body,
                                   struct sl_capsule_bytes *capsule_out, struct sl_capsule_keys *keys_out,
                                   struct sl_error *err);
// It cannot be used, whatever its digests say: remove it and say why. SL_ERR_IO.
enum sl_status sl_disk_folder_discard(struct sl_disk_folder *folder, const struct sl_disk_entry *entry, const char *why,
                                      struct sl_error *err);
// The writer: nobody will ask for this capsule, whole, any more. SL_ERR_NOT_FOUND, SL_ERR_IO.
enum sl_status sl_disk_folder_forget(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                     struct sl_error *err);
// In two halves: anybody hides it, so that it is not found from now on, and the writer removes its file.
bool sl_disk_folder_get(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                        struct sl_disk_entry *entry_out);                                   // whole
bool sl_disk_folder_hide(struct sl_disk_folder *folder, const struct sl_disk_entry *entry); // false: it has gone
enum sl_status sl_disk_folder_remove(struct sl_disk_folder *folder, uint64_t id, struct sl_error *err); // SL_ERR_IO
bool sl_disk_folder_has(struct sl_disk_folder *folder, const struct sl_capsule_id *key);                // whole
// Count this capsule, whole, as the one used last. SL_ERR_NOT_FOUND, SL_ERR_IO.
enum sl_status sl_disk_folder_touch(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                    struct sl_error *err);

void sl_disk_folder_get_size(struct sl_disk_folder *folder, int64_t *n_capsules_out, int64_t *bytes_out);
