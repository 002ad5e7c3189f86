// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one capsule in one file, which holds everything that a store has to know about it.
 *
 * Layout:  struct sl_disk_head, the hashes of its prefixes, its header, its body (engine/kvcache/capsule.h).
 *
 * Design: one digest covers head and hashes, so that a store that starts reads these alone. Another one covers header
 *         and body, and is checked when the capsule is read back. The head is written last: a file that a killed
 *         process leaves has none. Files are not synced: after a crash of the system, one of the two digests of a
 *         partly written file does not match.
 * Trust: files are read, not mapped, so that a bad disk causes an error and no signal. Digests find damage, not malice:
 *        every number is checked against the file's size before it is used.
 */
#pragma once

#include "kvstore/memory/capsule_cache.h"

#define SL_DISK_FILE_VERSION 3

struct sl_disk_head {
    char magic[8];
    uint32_t version;
    uint32_t n_hashes; // at most SL_CAPSULE_CACHE_MAX_PREFIXES - 1; hashes[i] covers (i + 1) * stride tokens
    struct sl_capsule_id key;
    int64_t n_tokens;
    int64_t stride; // tokens
    uint64_t header_bytes, body_bytes;
    uint64_t content_digest; // of header and body
    uint64_t digest;         // of all other fields, and of the hashes
    // For the eviction policy, as in struct sl_capsule_keys:
    uint64_t tenant;
    double read_ms;
    int64_t read_tokens;
    int64_t stored_ms; // when it was written, in ms since 1970
};

// Return the size of the whole file: of one with this head; of one that would hold this capsule.
int64_t sl_disk_head_file_bytes(const struct sl_disk_head *head);
int64_t sl_disk_stored_file_bytes(const struct sl_stored *stored);

struct sl_disk_name {
    char text[32];
};
struct sl_disk_name sl_disk_file_name(uint64_t id);
bool sl_disk_file_is_named(const char *name, uint64_t *id_out); // true for such a name

// Opens the file of this id for reading; -1: errno. Does not follow links or block on pipes.
int sl_disk_file_open(int dir_fd, uint64_t id);

/*
 * Writes a capsule to an empty file. Calls go_on (may be NULL) between pieces. SL_ERR_CANCELLED: go_on returned false.
 * SL_ERR_EXHAUSTED: the disk is full. SL_ERR_IO.
 */
enum sl_status sl_disk_file_write(int fd, const struct sl_stored *stored, bool (*go_on)(void *arg), void *arg,
                                  struct sl_disk_head *head_out, struct sl_error *err);

// Reads head and hashes. SL_ERR_INVALID: it is no such file, damaged or truncated. SL_ERR_IO: the disk does not give it.
// hashes_out is undefined then.
enum sl_status sl_disk_file_read_head(int fd, struct sl_disk_head *head_out,
                                      struct sl_hash128 hashes_out[SL_CAPSULE_CACHE_MAX_PREFIXES - 1],
                                      struct sl_error *err);

// Reads the rest, given the head: header_out[header_bytes], body_out[body_bytes]. SL_ERR_INVALID, SL_ERR_IO, as above.
enum sl_status sl_disk_file_read_content(int fd, const struct sl_disk_head *head, uint8_t *header_out, void *body_out,
                                         struct sl_error *err);
