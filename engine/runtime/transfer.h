// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: copies KV between a device's memory and the host's: received capsules to the device, outgoing pages to the
 *          host.
 *
 * Design: after the computation, pages of a layer are collected into one of two device blocks. The block leaves in
 *         one copy on the stream OUT, which overlaps computation. A received body is copied in on the stream IN, one
 *         copy per layer and rank. A device that shares the host's memory copies only what the caller asks for.
 * Threads: any thread; outbound transfers take turns on the compute stream.
 */
#pragma once

#include "engine/kvcache/session.h"
#include "engine/runtime/runtime.h"

// Copies the pages of a layer of a capsule (engine/kvcache/capsule.h), one after the other, into shared memory:
// sl_capsule_layer_bytes() are there after *done_out. The session may change when this returns. SL_ERR_EXHAUSTED: no
// room for the blocks.
enum sl_status sl_transfer_layer_out(const struct sl_runtime *runtime, const struct sl_session *session, int layer,
                                     void *to, struct sl_mark *done_out, struct sl_error *err);

// Does the same for any pieces of the device's memory (ops->collect), `bytes` in all.
enum sl_status sl_transfer_pieces_out(const struct sl_runtime *runtime, const struct sl_byte_range *pieces, uint32_t n,
                                      size_t bytes, void *to, struct sl_mark *done_out, struct sl_error *err);

// Device memory from which a network reads a layer, and the digests of its pieces.
struct sl_digested_layer {
    void *to;
    uint32_t piece_bytes; // the last piece may be shorter
    uint64_t *digests;    // one a piece (ops->digest), in shared memory
};
// Does the same into such memory.
enum sl_status sl_transfer_layer_digested(const struct sl_runtime *runtime, const struct sl_session *session, int layer,
                                          const struct sl_digested_layer *out, struct sl_mark *done_out,
                                          struct sl_error *err);

// Copies from device memory into shared memory, after everything that is queued.
struct sl_mark sl_transfer_out(const struct sl_runtime *runtime, void *to, const void *from, size_t bytes);

// Copies all layers: a body of sl_capsule_body_bytes(). Waits for it.
enum sl_status sl_transfer_body_out(const struct sl_runtime *runtime, const struct sl_session *session, void *to,
                                    struct sl_error *err);

// Copies from shared memory into the arena's, which may just have been freed. Waits: `from` may be freed on return.
enum sl_status sl_transfer_in(const struct sl_runtime *runtime, void *to, const void *from, size_t bytes,
                              struct sl_error *err);

// The two blocks; owned by runtime.c.
struct sl_transfer;
enum sl_status sl_transfer_create(struct sl_device *device, struct sl_transfer **transfer_out, struct sl_error *err);
void sl_transfer_destroy(struct sl_transfer **transfer); // before the device. Accepts NULL, leaves NULL

// Moves a session that was just adopted in shared memory to an arena of the runtime's device, and to the ranks that
// have its heads. It is there after *done_out; its block of shared memory is then the caller's. SL_ERR_EXHAUSTED: the
// session is unchanged.
enum sl_status sl_transfer_session_in(const struct sl_runtime *runtime, struct sl_session *session,
                                      struct sl_arena *arena, void **staged_out, struct sl_mark *done_out,
                                      struct sl_error *err);

// A session in the host's memory, for code that reads pages: the session itself if the host can reach it, else a copy
// of its capsule's contents, in an arena with as much room again.
struct sl_mirror {
    const struct sl_session *session;
    struct sl_session *copy; // NULL: none was needed
    struct sl_arena *arena;  // holds the copy
};
enum sl_status sl_mirror_open(const struct sl_runtime *runtime, const struct sl_session *session,
                              struct sl_mirror *mirror_out, struct sl_error *err);
void sl_mirror_close(struct sl_mirror *mirror); // accepts zeros, leaves zeros
