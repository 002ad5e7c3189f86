// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: capsules as files in a folder, found by prefix, never more bytes than allowed.
 *
 *          DIR/owner                          locked by the one process that uses the folder
 *          DIR/index.mdb, index.mdb-lock      kvstore/disk/index.h
 *          DIR/capsule-<id>                   header, then body, as they are in memory
 *
 * Design: a file is written first and then entered into the index, and goes the other way round; so what a killed process
 *         leaves is a file without an entry, which the next open removes. Files are not synced: what a crash of the system
 *         leaves half written fails its digest when it is read. A capsule is read with pread into the caller's block, hashed
 *         while it is in the caches: nothing is mapped, so that a bad disk is an error and no signal.
 *         Bodies are not values of LMDB: it would copy every byte once more through memory of its own, and large values of
 *         all sizes leave its file full of gaps.
 *         The index may take a 64th of the bytes (4 MiB at least), files the rest; when either is used up, the capsule that was used
 *         longest ago goes.
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
void sl_disk_folder_close(struct sl_disk_folder **folder);

/*
 * Write a capsule; others go for it. Asks go_on (may be NULL) between pieces. SL_ERR_EXISTS: it is there.
 * SL_ERR_EXHAUSTED: it is larger than the folder may become. SL_ERR_CANCELLED: go_on said no. SL_ERR_IO: the disk is full
 * or fails. In none of these cases a part of it stays.
 */
enum sl_status sl_disk_folder_write(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                    bool (*go_on)(void *arg), void *arg, struct sl_error *err);

struct sl_disk_found {
    uint64_t id;
    size_t at; // which of the prefixes
    struct sl_disk_entry entry;
};
/*
 * What is stored for the longest of these prefixes (longest first). SL_ERR_NOT_FOUND; SL_ERR_IO: the index cannot be read.
 */
enum sl_status sl_disk_folder_find(struct sl_disk_folder *folder, const struct sl_prefix *prefixes, size_t n_prefixes,
                                   struct sl_disk_found *found_out, struct sl_error *err);

/*
 * Read it into body[entry.body_bytes], which *capsule_out then has; its header and keys_out->hashes are malloc'd and the
 * caller's. SL_ERR_NOT_FOUND: it has gone meanwhile, or it was damaged and is now gone (logged).
 */
enum sl_status sl_disk_folder_read(struct sl_disk_folder *folder, const struct sl_disk_found *found, void *body,
                                   struct sl_capsule_bytes *capsule_out, struct sl_capsule_keys *keys_out,
                                   struct sl_error *err);
// It cannot be used, whatever its digests say: remove it and say why.
enum sl_status sl_disk_folder_discard(struct sl_disk_folder *folder, uint64_t id, const char *why,
                                      struct sl_error *err);
bool sl_disk_folder_has(struct sl_disk_folder *folder, const struct sl_capsule_id *key); // whole
// Count this capsule, whole, as the one used last. SL_ERR_NOT_FOUND, SL_ERR_IO.
enum sl_status sl_disk_folder_touch(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                    struct sl_error *err);

void sl_disk_folder_get_size(struct sl_disk_folder *folder, int64_t *n_capsules_out, int64_t *bytes_out);
