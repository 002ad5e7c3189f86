// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a segment as bytes: a head, and the kept pages. A store writes a document's segments to its disk so, and sends
 *          them to other stores; files of documents have them (docs/CAPSULE.md).
 *
 * Design: the head has all that a store needs to build the segment and to find it. Key indexes are not there: they follow
 *         from the pages. Every segment of a document has a key, like a capsule: that of the document's segments, whose last
 *         16 bits are the segment's number. So one key protects them all, and what moves capsules moves segments.
 */
#pragma once

#include "engine/kvcache/capsule.h"
#include "engine/offload/remote_kv/remote_kv.h"

// The properties that all segments of a remote KV share. Without padding: compared as bytes.
struct sl_kv_family {
    uint64_t model_fingerprint;
    int32_t first_offloaded_head, n_offloaded_heads, head_dim;
    int32_t work, rows, scan; // enum sl_kv_format
};

// Computes the configuration of the segment [begin, end) of a family. SL_ERR_INVALID: its formats or sizes are out of
// bounds.
enum sl_status sl_kv_family_config(const struct sl_kv_family *family, int64_t begin, int64_t end,
                                   struct sl_kv_segment_config *config_out, struct sl_error *err);

#define SL_KV_SEGMENT_HEAD_VERSION 1

// Little-endian, without padding.
struct sl_kv_segment_head {
    char magic[8]; // "SLUICESG"
    uint32_t version;
    uint32_t index; // among the document's segments
    struct sl_kv_family family;
    int64_t begin, n_slots;
    struct sl_hash128 prefix_hash; // of all tokens up to its end
    uint64_t body_bytes;           // of the kept pages
};

// Makes the head of a segment whose pages are its own.
struct sl_kv_segment_head sl_kv_segment_head_make(const struct sl_kv_segment *segment,
                                                  const struct sl_kv_family *family, uint32_t index,
                                                  struct sl_hash128 prefix_hash);
// Returns whether these bytes begin like a head.
bool sl_kv_segment_head_is(const void *bytes, size_t n_bytes);
// Reads and checks a head of foreign bytes. SL_ERR_UNSUPPORTED: another version. SL_ERR_INVALID: anything else.
enum sl_status sl_kv_segment_head_read(const void *bytes, size_t n_bytes, struct sl_kv_segment_head *head_out,
                                       struct sl_kv_segment_config *config_out, struct sl_error *err);
/*
 * Checks that a head that was read is that of segment `index` of this family, for tokens from `begin` up to `end` at most.
 * SL_ERR_PRECONDITION: it is another one; err names what differs.
 */
enum sl_status sl_kv_segment_head_follows(const struct sl_kv_segment_head *head, const struct sl_kv_family *family,
                                          uint32_t index, int64_t begin, int64_t end, struct sl_error *err);

#define SL_MAX_DOCUMENT_SEGMENTS 65536
// Returns the key of a document's segments, by that of its capsule; scan: enum sl_kv_format.
struct sl_capsule_id sl_document_segments_id(const struct sl_capsule_id *capsule, int32_t n_offloaded_heads,
                                             int32_t scan);
// Returns the key of segment `index`, below SL_MAX_DOCUMENT_SEGMENTS, of such a key.
struct sl_capsule_id sl_document_segment_id(const struct sl_capsule_id *segments, uint32_t index);
// Splits the key of a segment; of any other key, the result is not a document's.
struct sl_capsule_id sl_document_segments_of(const struct sl_capsule_id *segment, uint32_t *index_out);
