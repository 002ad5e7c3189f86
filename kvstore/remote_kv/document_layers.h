// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the offloaded layers of documents on the disk and on their way between stores, segment by segment.
 *
 * Design: when the coordinator names the documents, a document whose segments are all pinned (remote_kv_pins.h) has those
 *         written that the disk does not have, beside its capsule. One that the disk alone has is restored by a thread,
 *         segment by segment: the pages are read into the arena and checked by their digest, the key index is made anew,
 *         and the segment is pinned. So a restart of the store changes no bit of an answer. A prompt that comes meanwhile
 *         waits for its document, which then comes before the others. A document that was not restored is tried again after pause_ms; if a segment was
 *         damaged, the disk does not have the document any more, and the coordinator has its text read again.
 * Threads: one of its own; the functions from any.
 */
#pragma once

#include "base/team.h"
#include "kvstore/disk/disk.h"
#include "kvstore/remote_kv/remote_kv_pins.h"

struct sl_document_layers;

struct sl_document_layers_config {
    struct sl_remote_kv_pins *pins;
    struct sl_room *room; // with its segments
    const struct sl_ops *ops;
    struct sl_team *team;           // builds key indexes; may be NULL
    struct sl_disk *disk;           // NULL: none
    struct sl_protected *protected; // says whether the documents have been named yet
    int64_t pause_ms;
};

// Starts the thread. All in the configuration must outlive it. SL_ERR_EXHAUSTED.
enum sl_status sl_document_layers_create(const struct sl_document_layers_config *config,
                                         struct sl_document_layers **layers_out, struct sl_error *err);
void sl_document_layers_destroy(
    struct sl_document_layers **layers); // waits for a read that has begun; accepts NULL, nulls

struct sl_document_layers_copies {
    int64_t memory_bytes, disk_bytes; // 0: not all of them are there
    enum sl_disk_copy disk;           // as sl_disk_keep() says of a capsule
};
// Looks for the layers of a document that the pins name; has written or restored what is missing. Never blocks.
void sl_document_layers_look(struct sl_document_layers *layers, const struct sl_document_remote_kv *document,
                             struct sl_document_layers_copies *copies_out);
/*
 * Waits while a document with which this prompt begins is being restored; after a start also until the documents are named.
 * Returns 0, or at the deadline in how many milliseconds the rest is expected, by what was read so far: at least 1.
 */
int64_t sl_document_layers_await(struct sl_document_layers *layers, const struct sl_kv_family *family,
                                 const struct sl_prompt_hashes *prompt, int64_t deadline_ns);
// Returns whether a segment with this key is pinned; layers may be NULL.
bool sl_document_layers_have(struct sl_document_layers *layers, const struct sl_capsule_id *key);
// Holds a pinned segment, as sl_remote_kv_pins_hold() does.
struct sl_stored *sl_document_layers_hold(struct sl_document_layers *layers, const struct sl_capsule_id *key);
/*
 * Builds and pins a segment that has arrived under this key: its head and its pages, in a block of the arena. Zeroes *segment
 * if it took them over; else the caller still owns them. SL_ERR_INVALID, SL_ERR_UNSUPPORTED, and as
 * sl_remote_kv_pins_check().
 */
enum sl_status sl_document_layers_put(struct sl_document_layers *layers, const struct sl_capsule_id *key,
                                      struct sl_capsule_bytes *segment, struct sl_error *err);
// Forgets a document's layers, in memory and on disk. Returns whether there were any.
bool sl_document_layers_forget(struct sl_document_layers *layers, const struct sl_document_remote_kv *document);
