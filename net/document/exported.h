// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the bytes of a document that travels as a file (docs/CAPSULE.md): a head, the text, and the capsule.
 *
 * Layout (little-endian). Each part is followed by the SHA-256 of all bytes of the file before it:
 *
 *     head      0  "SLUICEDC"                      8  u32 SL_EXPORTED_VERSION    12  u32 flags: 1 chat, 2 has the text
 *              16  u64 model fingerprint          24  u64 tokens                 32  u64 bytes of the text
 *              40  u64 bytes of the header        48  u64 bytes of the body      56  u32 bytes of the recipe, u32 0
 *              64  SHA-256 of the text            96  SHA-256 of the token ids, i32 each
 *             128  version 2 alone: u64 bytes of the offloaded layers: of all parts after the body, with their digests
 *                  recipe
 *     text         only with flag 2
 *     header       of the capsule, with a prefix hash of zeros: the key of stores stays in its cluster
 *     body         of the capsule (engine/kvcache/capsule.h)
 *     segment head, segment pages, segment head, segment pages, ...     version 2 alone: of the offloaded layers
 *                  (engine/offload/remote_kv/segment_head.h, its prefix hash zeros)
 *
 * A file without offloaded layers is of version 1.
 *
 * Design: a reader takes bytes in any pieces, keeps only the head, and gives out what it takes part by part.
 * Trust: a file is as untrusted as a message: the reader bounds every size before it is used. Digests find damage, not
 *        malice.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "net/trust/sha256.h"

#define SL_EXPORTED_MAGIC          "SLUICEDC"
#define SL_EXPORTED_VERSION        2    // with offloaded layers; without, 1
#define SL_EXPORTED_RECIPE_BYTES   2048 // with the terminating zero: as long as a recipe may be
#define SL_EXPORTED_HEAD_BYTES     (136 + SL_EXPORTED_RECIPE_BYTES)
#define SL_EXPORTED_MAX_TEXT_BYTES ((int64_t)4 << 20)  // as the message that adds a document
#define SL_EXPORTED_PIECE_BYTES    ((size_t)128 << 10) // of a file in one message
#define SL_EXPORTED_SEGMENT_BYTES                                                                                      \
    88 // of a segment's head; the u64 of its last SL_EXPORTED_SEGMENT_SIZE bytes: of its pages
#define SL_EXPORTED_SEGMENT_SIZE 8

enum sl_exported_part {
    SL_EXPORTED_HEAD,
    SL_EXPORTED_TEXT,
    SL_EXPORTED_HEADER,
    SL_EXPORTED_BODY,
    SL_EXPORTED_SEGMENT_HEAD,
    SL_EXPORTED_SEGMENT_PAGES, // then the next segment's head, or the end
    SL_EXPORTED_END
};

struct sl_exported_head {
    uint64_t model_fingerprint;
    int64_t n_tokens, text_bytes, header_bytes, body_bytes; // text_bytes also if the file has no text
    int64_t layers_bytes;                                   // with digests; 0: no layers are offloaded
    bool chat;                                              // read as a user's message
    bool has_text;
    uint8_t text_sha256[SL_SHA256_BYTES], tokens_sha256[SL_SHA256_BYTES];
    char recipe[SL_EXPORTED_RECIPE_BYTES]; // canonical text
};

static inline int sl_exported_version(const struct sl_exported_head *head) {
    return head->layers_bytes > 0 ? SL_EXPORTED_VERSION : 1;
}
// Returns what a segment with this many bytes of pages takes of head->layers_bytes.
int64_t sl_exported_segment_bytes(int64_t pages_bytes);
// Returns the bytes of the whole file.
int64_t sl_exported_file_bytes(const struct sl_exported_head *head);

// ---- writing --------------------------------------------------------------------------------------------------------

// Passes bytes on, in order. write_fn gets at most SL_EXPORTED_PIECE_BYTES a call; its failure is returned.
struct sl_exported_writer {
    struct sl_sha256 *sha;
    enum sl_status (*write_fn)(void *arg, const void *bytes, size_t n, struct sl_error *err);
    void *arg;
};
// Prepares a writer; clean it up in any case. SL_ERR_EXHAUSTED.
enum sl_status sl_exported_writer_init(struct sl_exported_writer *writer,
                                       enum sl_status (*write_fn)(void *arg, const void *bytes, size_t n,
                                                                  struct sl_error *err),
                                       void *arg, struct sl_error *err);
void sl_exported_writer_cleanup(struct sl_exported_writer *writer);
// Writes the whole head. The caller then writes the bytes of each other part, and ends it.
enum sl_status sl_exported_write_head(struct sl_exported_writer *writer, const struct sl_exported_head *head,
                                      struct sl_error *err);
enum sl_status sl_exported_write(struct sl_exported_writer *writer, const void *bytes, size_t n, struct sl_error *err);
enum sl_status sl_exported_end_part(struct sl_exported_writer *writer, struct sl_error *err);

// ---- reading --------------------------------------------------------------------------------------------------------

struct sl_exported_reader;
enum sl_status sl_exported_reader_create(struct sl_exported_reader **reader_out, struct sl_error *err);
void sl_exported_reader_destroy(struct sl_exported_reader **reader); // accepts NULL, nulls

struct sl_exported_slice {
    enum sl_exported_part part;
    const uint8_t *bytes; // of the part, in the caller's memory; the head's are not given out
    size_t n;
    bool ends; // the part is complete, and its digest agrees
};
/*
 * Takes bytes from the front of the next piece of the file, *n_inout > 0 of them, and moves on: at most to the end of a
 * part. SL_ERR_INVALID: this is no such file, it is damaged or edited (err says which part), or it goes on after its
 * end. SL_ERR_UNSUPPORTED: another version.
 */
enum sl_status sl_exported_reader_take(struct sl_exported_reader *reader, const uint8_t **bytes_inout, size_t *n_inout,
                                       struct sl_exported_slice *slice_out, struct sl_error *err);
// Returns the head, once its slice has ended; the reader owns it.
const struct sl_exported_head *sl_exported_reader_head(const struct sl_exported_reader *reader);
// Call it after the last piece. SL_ERR_INVALID: the file is cut short.
enum sl_status sl_exported_reader_finish(const struct sl_exported_reader *reader, struct sl_error *err);
