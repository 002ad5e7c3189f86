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
 * Threads: any number; one lock, under which nothing but reference counts changes.
 */
#pragma once

#include "engine/kvcache/capsule.h"
#include "kvstore/memory/segments.h"

struct sl_remote_kv_pins;

// A document as the coordinator names it. Without padding: compared as bytes.
struct sl_document_remote_kv {
    struct sl_capsule_id capsule;
    int32_t n_offloaded_heads; // all of the document; a remote KV of fewer is not pinned
    int32_t scan;              // enum sl_kv_format, of the key indexes
};

enum sl_status sl_remote_kv_pins_create(struct sl_kv_segments *segments, size_t max_bytes,
                                        struct sl_remote_kv_pins **pins_out, struct sl_error *err);
void sl_remote_kv_pins_destroy(struct sl_remote_kv_pins **pins); // accepts NULL, nulls

// Replaces the documents. capsule_bytes: of documents' capsules that are in memory alone, which count, too.
// SL_ERR_EXHAUSTED: nothing changes.
enum sl_status sl_remote_kv_pins_set(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *documents,
                                     size_t n_documents, size_t capsule_bytes, struct sl_error *err);
// Pins the segments of a complete remote KV, if it is a document's and none is pinned for that yet. The caller
// holds references to the segments.
void sl_remote_kv_pins_offer(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *capsule,
                             const struct sl_kv_family *family, const struct sl_remote_kv *remote_kv);
// Returns the bytes that are pinned for this document, or, of NULL, for all; 0: none.
int64_t sl_remote_kv_pins_bytes(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document);
