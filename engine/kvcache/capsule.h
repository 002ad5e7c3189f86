// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a capsule is the KV state of a session as bytes: a protobuf header (proto/sluice/v1/capsule.proto) and a
 *          body.
 *
 * Design: the body is the used pages of layer 0, head 0, then head 1, ... then layer 1, each page whole and in the
 *         layout it has in memory. Because it is only pages, it is sent from where the pages lie (as few contiguous
 *         pieces as the arena allows) and, once received in one block of another arena, it is adopted without a copy.
 *         A layer can be sent as soon as it is final; only the header waits for the last one. Offloaded layers are in
 *         the header alone: kvstores have their pages, whatever the session still holds of them.
 *
 * Trust: a header comes from the network. sl_capsule_open() believes nothing: versions, geometry against the model's,
 *        layouts, counts and the exact body size are checked before a page table is built.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/salted_hash.h"
#include "engine/kvcache/session.h"

#define SL_CAPSULE_VERSION 2
// SL_MAX_LAYERS layers of SL_MAX_HEADS heads with two numbers each fit; more is not a header but an attack on memory.
#define SL_CAPSULE_MAX_HEADER_BYTES ((size_t)4 << 20)

// A contiguous stretch of the body, where it lies now.
struct sl_capsule_piece {
    const void *data;
    size_t bytes;
    size_t offset; // in the body
};

// Bytes that layer `layer` takes in the body, as the session is now.
size_t sl_capsule_layer_bytes(const struct sl_session *session, int layer);
size_t sl_capsule_body_bytes(const struct sl_session *session);

/*
 * Hand the pieces of one layer to `fn` in order; neighbouring pages are joined up to max_piece_bytes.
 * body_offset is where the layer begins in the body. Stops at, and returns, the first status of fn that is not SL_OK.
 */
typedef enum sl_status (*sl_capsule_piece_fn)(void *arg, const struct sl_capsule_piece *piece);
enum sl_status sl_capsule_layer_pieces(const struct sl_session *session, int layer, size_t body_offset,
                                       size_t max_piece_bytes, sl_capsule_piece_fn fn, void *arg);

struct sl_capsule_id {
    uint64_t model_fingerprint;
    uint64_t recipe_fingerprint;
    struct sl_hash128 prefix_hash; // of the tokens read: sl_prefix_hash()
};

/*
 * Serialize the header. *bytes_out is malloc'd and the caller's to free.
 */
enum sl_status sl_capsule_write_header(const struct sl_session *session, const struct sl_capsule_id *id,
                                       uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err);

// What a header says, checked; for a store that keeps capsules of models it does not know.
struct sl_capsule_info {
    struct sl_capsule_id id;
    struct sl_kv_geometry geometry;
    int64_t n_tokens;
    size_t body_bytes;
    bool evicted; // some head of a resident layer holds fewer slots than tokens were read: it cannot be truncated
};
enum sl_status sl_capsule_read_header(const void *header, size_t header_bytes, struct sl_capsule_info *info_out,
                                      struct sl_error *err);

// A capsule that has arrived, or been read from somewhere.
struct sl_capsule_bytes {
    void *body; // a block of an arena
    size_t body_bytes;
    uint8_t *header; // malloc'd
    size_t header_bytes;
};
void sl_capsule_bytes_free(struct sl_capsule_bytes *capsule, struct sl_arena *arena); // zeroes *capsule

/*
 * Build a session over a capsule whose body lies in `arena`; on success the session owns the body, everything else stays the
 * caller's. `geometry` and `id` (the fingerprints; prefix_hash of zeros means any) are what this worker expects. The size that counts
 * is that of the body, not the one that the header claims. max_slots as in sl_session_config; it is raised to what the capsule
 * holds. SL_ERR_INVALID (malformed), SL_ERR_PRECONDITION (another model or recipe), SL_ERR_EXHAUSTED.
 */
enum sl_status sl_capsule_open(const struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                               const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id, int64_t max_slots,
                               struct sl_session **session_out, struct sl_error *err);
// As sl_capsule_open(), and *capsule is used up, whatever the result.
enum sl_status sl_capsule_adopt(struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                                const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id,
                                int64_t max_slots, struct sl_session **session_out, struct sl_error *err);

/*
 * Prefix keys: hash of the first n tokens, chained over blocks of SL_PREFIX_BLOCK tokens so that all of a prompt's keys
 * cost one pass: keys_out[i] is the key of the first (i+1) * SL_PREFIX_BLOCK tokens; returns how many were written.
 * The salt is that of whoever may find what the prompt leaves behind: its tenant's (net/trust/tenant_salt.h). Under another one the
 * same tokens have other keys. Where nobody is told apart it is zeros.
 */
#define SL_PREFIX_BLOCK 64
struct sl_hash128 sl_prefix_hash(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens);
int64_t sl_prefix_keys(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens,
                       struct sl_hash128 *keys_out, int64_t max_keys);
