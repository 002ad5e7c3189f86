// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: KV between a device's memory and the host's: what has arrived goes up, what travels comes down.
 *
 * Design: pages of a layer are collected into one of two blocks of the device behind the computation, and leave it in one copy on
 *         the stream OUT, beside the computation. A body comes up on the stream IN, in one copy a layer and rank. A device that has one memory
 *         with the host copies nothing but what the caller asks for.
 * Threads: any; on the way out they take turns on the compute stream.
 */
#pragma once

#include "engine/kvcache/session.h"
#include "engine/runtime/runtime.h"

// Pages of a layer of a capsule (engine/kvcache/capsule.h), one behind the other, into shared memory: sl_capsule_layer_bytes() are there
// behind *done_out. The session may change when this returns. SL_ERR_EXHAUSTED: no room for the blocks.
enum sl_status sl_transfer_layer_out(const struct sl_runtime *runtime, const struct sl_session *session, int layer,
                                     void *to, struct sl_mark *done_out, struct sl_error *err);

// The same of any pieces of the device's memory (ops->collect), `bytes` in all.
enum sl_status sl_transfer_pieces_out(const struct sl_runtime *runtime, const struct sl_byte_range *pieces, uint32_t n,
                                      size_t bytes, void *to, struct sl_mark *done_out, struct sl_error *err);

// The same into device memory, for a network that reads it there: digests_out[i], in shared memory, is that of the i-th
// `piece_bytes` of the layer (ops->digest); the last piece may be shorter.
enum sl_status sl_transfer_layer_digested(const struct sl_runtime *runtime, const struct sl_session *session, int layer,
                                          uint32_t piece_bytes, void *to, uint64_t *digests_out,
                                          struct sl_mark *done_out, struct sl_error *err);

// From device memory into shared memory, behind everything that is queued.
struct sl_mark sl_transfer_out(const struct sl_runtime *runtime, void *to, const void *from, size_t bytes);

// All layers: a body of sl_capsule_body_bytes(). Waits for it.
enum sl_status sl_transfer_body_out(const struct sl_runtime *runtime, const struct sl_session *session, void *to,
                                    struct sl_error *err);

// From shared memory into the arena's, which may just have been given back. Waits: `from` may go on return.
enum sl_status sl_transfer_in(const struct sl_runtime *runtime, void *to, const void *from, size_t bytes,
                              struct sl_error *err);

// The two blocks; of runtime.c.
struct sl_transfer;
enum sl_status sl_transfer_create(struct sl_device *device, struct sl_transfer **transfer_out, struct sl_error *err);
void sl_transfer_destroy(struct sl_transfer **transfer); // before the device. Accepts NULL, leaves NULL

// A session that was just adopted in shared memory moves to an arena of the runtime's device, and to the ranks that have its heads. It is
// there behind *done_out, and its block of shared memory the caller's. SL_ERR_EXHAUSTED: it is as before.
enum sl_status sl_transfer_session_in(const struct sl_runtime *runtime, struct sl_session *session,
                                      struct sl_arena *arena, void **staged_out, struct sl_mark *done_out,
                                      struct sl_error *err);

// A session in the host's memory, for those who look into pages: the session itself where the host reaches it, else a copy of what is
// in its capsule, in an arena with as much room again.
struct sl_mirror {
    const struct sl_session *session;
    struct sl_session *copy; // NULL: none was needed
    struct sl_arena *arena;  // of the copy
};
enum sl_status sl_mirror_open(const struct sl_runtime *runtime, const struct sl_session *session,
                              struct sl_mirror *mirror_out, struct sl_error *err);
void sl_mirror_close(struct sl_mirror *mirror); // accepts zeros, leaves zeros
