// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the remote KVs of documents, whose segments a store does not evict.
 *
 * Design: a remote KV and the capsule of the same job have one prompt and recipe, but for how the layers are searched. So
 *         the capsule's key and the format of the search name a remote KV. The coordinator names the documents again and
 *         again, as for kvstore/memory/protected.h. When a document's remote KV is complete, each of its segments is
 *         referenced, and a segment in use is not evicted (kvstore/memory/segments.h). A document that is named no
 *         more loses its references, and its segments are freed when nothing else uses them. What exceeds max_bytes is
 *         not pinned, and the log says so: the coordinator does not count this store among those that have the document.
 *
 *     named --a segment--> partial --the last one--> complete      from the disk or another store, in order
 *       +------------------a complete remote KV----------^         that a job has read
 *
 *         A segment that is pinned can be held like a capsule, by its key (engine/offload/remote_kv/segment_head.h), for
 *         the disk and for a copy to another store. A partial remote KV is dropped if nothing more of it has come for
 *         partial_ms, or if, after this long, it has come at less than 16 bytes a millisecond.
 * Threads: any number; one lock, under which nothing but reference counts changes.
 */
#pragma once

#include "engine/kvcache/capsule.h"
#include "kvstore/memory/capsule_cache.h"
#include "kvstore/memory/segments.h"

struct sl_remote_kv_pins;

// A document as the coordinator names it. Without padding: compared as bytes.
struct sl_document_remote_kv {
    struct sl_capsule_id capsule;
    int64_t n_tokens;          // of the capsule, and of the remote KV
    int32_t n_offloaded_heads; // all of the document; a remote KV of fewer is not pinned
    int32_t scan;              // enum sl_kv_format, of the key indexes
};

enum sl_status sl_remote_kv_pins_create(struct sl_kv_segments *segments, size_t max_bytes, int64_t partial_ms,
                                        struct sl_remote_kv_pins **pins_out, struct sl_error *err);
// No segment may be held. Accepts NULL, nulls.
void sl_remote_kv_pins_destroy(struct sl_remote_kv_pins **pins);

// Replaces the documents. capsule_bytes: of documents' capsules that are in memory alone, which count, too.
// SL_ERR_EXHAUSTED: nothing changes.
enum sl_status sl_remote_kv_pins_set(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *documents,
                                     size_t n_documents, size_t capsule_bytes, int64_t now_ns, struct sl_error *err);
// Pins the segments of a complete remote KV, if it is a document's and none is pinned for that yet. The caller
// holds references to the segments.
void sl_remote_kv_pins_offer(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *capsule,
                             const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt,
                             const struct sl_remote_kv *remote_kv);
// Returns the bytes that are pinned for this document if it is complete, or, of NULL, for all; 0: none.
int64_t sl_remote_kv_pins_bytes(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document);
// Unpins a document's segments; it stays among the documents.
void sl_remote_kv_pins_drop(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document);

// --- segment by segment --------------------------------------------------------------------------------------------

/*
 * Checks whether the next segment of a document has this head: `segments` is the key of its segments. SL_ERR_NOT_FOUND: no
 * document has this key. SL_ERR_EXISTS: it has this segment. SL_ERR_PRECONDITION: one before it is missing now.
 * SL_ERR_EXHAUSTED: it exceeds max_bytes. SL_ERR_INVALID: it is another segment, or not of this document.
 */
enum sl_status sl_remote_kv_pins_check(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segments,
                                       const struct sl_kv_segment_head *head, struct sl_error *err);
// Notes that a piece has arrived, up to n_bytes of this segment: a sender that is slow, and goes on, does not lose those
// before it.
void sl_remote_kv_pins_note_arriving(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segment,
                                     size_t n_bytes, int64_t now_ns);
// Checks it, and pins it; takes its own reference.
enum sl_status sl_remote_kv_pins_add(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segments,
                                     const struct sl_kv_segment_head *head, struct sl_kv_segment *segment,
                                     struct sl_error *err);
// Holds a pinned segment by its key: its head and its kept pages as those of a capsule. The caller releases it by
// sl_capsule_cache_release() or sl_capsule_cache_unpin(). NULL: it is not pinned, or there is no memory.
struct sl_stored *sl_remote_kv_pins_hold(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segment);

// Describes the pinned segments of a document.
struct sl_pinned_document {
    struct sl_document_remote_kv document;
    struct sl_capsule_id segments; // the key of its segments
    uint32_t n_segments;           // pinned
    bool is_complete;
    bool is_refused; // it does not fit
};
// Describes document i; false: there are fewer.
bool sl_remote_kv_pins_at(struct sl_remote_kv_pins *pins, size_t i, struct sl_pinned_document *pinned_out);
// Describes this document; false: it is not named.
bool sl_remote_kv_pins_get(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document,
                           struct sl_pinned_document *pinned_out);
// Returns whether a document's segments should be offered to the disk now; after that, only again_ms later. has_no_room_out:
// the disk had no room for one.
bool sl_remote_kv_pins_try_disk(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document,
                                int64_t again_ms, bool *has_no_room_out);
