// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a capsule in a file, for inspection or for manual transfer.
 *
 * Layout (little-endian):
 *
 *     0   "SLUICECP"
 *     8   u32 SL_CAPSULE_FILE_VERSION     12  u32 bytes of the label
 *    16   u64 bytes of the header         24  u64 bytes of the body
 *    32   u64 digest of label and header  40  u64 digest of the body
 *    48   label (the recipe's text, for people), header, body (engine/kvcache/capsule.h)
 *
 *         The body's digest is chained over blocks of 1 MiB (digest = XXH3 of the block, seeded with the digest so
 *         far), so that it is computed while pages are written in place.
 * Trust: a file is as untrusted as a message: sizes are bounded and must add up to the file's size, digests must agree.
 */
#pragma once

#include "engine/kvcache/capsule.h"

#define SL_CAPSULE_FILE_VERSION 1
#define SL_CAPSULE_LABEL_BYTES  2048 // with the terminating zero: as long as a recipe may be

/*
 * Writes header and body of `session` to `path`: to a temporary file beside it first, which is then renamed, so
 * `path` never has half a capsule. label: printable text. SL_ERR_IO, SL_ERR_INVALID (label too long),
 * SL_ERR_EXHAUSTED.
 */
enum sl_status sl_capsule_file_write(const char *path, const struct sl_session *session, const struct sl_capsule_id *id,
                                     const char *label, struct sl_error *err);

struct sl_capsule_file {
    char label[SL_CAPSULE_LABEL_BYTES];
    uint8_t *header; // [header_bytes], owned
    size_t header_bytes;
    size_t body_bytes;
    struct sl_capsule_info info; // checked contents of the header
    uint64_t body_digest;
    int fd;
};

// Opens a capsule file; the caller closes it. SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_INVALID: no capsule file, damaged,
// or truncated.
enum sl_status sl_capsule_file_open(const char *path, struct sl_capsule_file *file, struct sl_error *err);

// Reads the body into body_out[file->body_bytes]. SL_ERR_PEER_CORRUPT: the digest differs.
enum sl_status sl_capsule_file_read_body(struct sl_capsule_file *file, void *body_out, struct sl_error *err);
void sl_capsule_file_close(struct sl_capsule_file *file);
