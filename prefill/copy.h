// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one copy of a prompt's KV for a store: its keys, the location of its bytes, and its transfer.
 *
 * Design: a copy owns a finished session and is sent from its pages. A state between two chunks is sent from the pages
 *         of a session that is still being read, or from a block that the pages were copied into. The pages must not
 *         change while they are sent. A device with memory of its own always needs a block, in staging memory. A ship
 *         reads pieces of a few MiB directly from the pages, so that no second body is needed.
 * Threads: one at a time per copy.
 */
#pragma once

#include <stdbool.h>

#include "prefill/internal.h"

struct sl_copy {
    char store_address[128];
    struct sl_capsule_id id;
    int64_t n_tokens;
    bool is_checkpoint;
    // For the store's eviction policy:
    uint64_t tenant;
    double read_ms; // time that reading the last read_tokens tokens took
    int64_t read_tokens;
    uint8_t *header;
    size_t header_bytes;
    size_t body_bytes;
    // [n_prefixes], for copies that can be truncated: hash i covers (i + 1) * prefix_tokens tokens
    struct sl_hash128 *prefixes;
    size_t n_prefixes;
    int64_t prefix_tokens;
    // The body is one of these:
    struct sl_session *session;      // finished, and owned by the copy
    struct sl_capsule_piece *pieces; // [n_pieces] of a session that the copy does not own
    size_t n_pieces, max_pieces;
    void *body;               // a block with the body
    struct sl_arena *staging; // the arena of `body`; NULL: malloc
    size_t block_bytes;       // size of `body` if it is from malloc, for the archive's accounting
};

enum sl_copy_from { SL_COPY_FROM_PAGES, SL_COPY_FROM_BLOCK };

// Makes a copy of a finished session, without its body, or if the session is to be written on here, with its body in a
// block. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_copy_of_finished(const struct sl_prefill_job *job, struct sl_copy **copy_out);
// Does the same from the pages of a finished session, which must not change until the copy is destroyed.
enum sl_status sl_copy_of_pages(const struct sl_prefill_job *job, struct sl_copy **copy_out);
// Takes the job's session, or the block that it was staged in, as the body, unless it has one. SL_ERR_INTERNAL: the device has failed.
enum sl_status sl_copy_take_session(struct sl_copy *copy, struct sl_prefill_job *job);

/*
 * Makes a copy of a state between two chunks, on the engine's thread. FROM_PAGES: the pages must not change until the
 * copy is destroyed; a device with memory of its own uses a block nevertheless. SL_ERR_EXHAUSTED: no memory for a
 * block. Other statuses are the device's.
 */
enum sl_status sl_copy_of_boundary(const struct sl_prefill_job *job, const struct sl_session *session,
                                   enum sl_copy_from from, struct sl_copy **copy_out);
// Makes a copy of what was read so far, on the engine's thread. The same rules and statuses as FROM_PAGES.
enum sl_status sl_copy_of_checkpoint(const struct sl_prefill_job *job, const struct sl_session *session,
                                     struct sl_copy **copy_out);
void sl_copy_destroy(struct sl_copy **copy); // accepts NULL, nulls
// Gives the memory of the body back, and stops using another's pages. The copy keeps its keys.
void sl_copy_release_body(struct sl_copy *copy);

// Returns true if destroying the copy frees memory that jobs wait for: memory of the arena or staging memory.
static inline bool sl_copy_holds_memory(const struct sl_copy *copy) {
    return copy->session || copy->staging;
}

struct sl_copy_watch {
    // `on_grant` is called once, when the store has reserved memory and before a byte is read. `go_on` is called about
    // every 50 ms during the transfer. Either gives up by returning false.
    bool (*on_grant)(void *arg);
    bool (*go_on)(void *arg);
    void *arg;
};
/*
 * Sends the copy to its store, and blocks until the store has verified it. SL_ERR_EXISTS: the store has the capsule, or
 * is receiving it. SL_ERR_CANCELLED: a callback gave up. SL_ERR_INVALID, SL_ERR_EXHAUSTED: the store has no room.
 * Other errors: the store is lost or too slow.
 */
enum sl_status sl_copy_send(const struct sl_copy *copy, struct sl_prefill *prefill, const struct sl_copy_watch *watch,
                            struct sl_error *err);
