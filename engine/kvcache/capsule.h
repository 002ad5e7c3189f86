// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a capsule is the KV state of a session as bytes: a protobuf header (proto/sluice/v1/capsule.proto) and a
 *          body.
 *
 * Design: the body is the used pages of layer 0, head 0, then head 1, ... then layer 1. Each page is whole and has
 *         its in-memory layout. Since the body is only pages, it is sent from the pages in place (in as few
 *         contiguous pieces as the arena allows). The receiver adopts a body without a copy, once it is in one block
 *         of its arena. A layer can be sent as soon as it is final; only the header waits for the last layer.
 *         Offloaded layers appear in the header alone: kvstores have their pages, even if the session still holds
 *         some.
 *
 * Trust: a header comes from the network. sl_capsule_open() trusts nothing: it checks versions, geometry against the
 *        model's, layouts, counts and the exact body size before it builds a page table.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/salted_hash.h"
#include "engine/kvcache/session.h"

#define SL_CAPSULE_VERSION 2
// A larger header is rejected as an attack on memory: SL_MAX_LAYERS layers of SL_MAX_HEADS heads with two numbers
// each fit.
#define SL_CAPSULE_MAX_HEADER_BYTES ((size_t)4 << 20)

// A contiguous piece of the body, in its current memory.
struct sl_capsule_piece {
    const void *data;
    size_t bytes;
    size_t offset; // in the body
};

// Returns the bytes that layer `layer` takes in the body, as the session is now.
size_t sl_capsule_layer_bytes(const struct sl_session *session, int layer);
size_t sl_capsule_body_bytes(const struct sl_session *session);

/*
 * Passes the pieces of one layer to `fn` in order; adjacent pages are joined up to max_piece_bytes. body_offset is
 * where the layer begins in the body. Stops at the first status of fn that is not SL_OK, and returns it.
 */
typedef enum sl_status (*sl_capsule_piece_fn)(void *arg, const struct sl_capsule_piece *piece);
enum sl_status sl_capsule_layer_pieces(const struct sl_session *session, int layer, size_t body_offset,
                                       size_t max_piece_bytes, sl_capsule_piece_fn fn, void *arg);

// Copies the body to memory of sl_capsule_body_bytes().
void sl_capsule_copy_body(const struct sl_session *session, void *body_out);
// Clears the slots without a token in a copy of the session's body: the pages' memory may have held another session's.
void sl_capsule_clear_body(const struct sl_session *session, void *body);

struct sl_capsule_id {
    uint64_t model_fingerprint;
    uint64_t recipe_fingerprint;
    struct sl_hash128 prefix_hash; // hash of the tokens read: sl_prefix_hash()
};

/*
 * Serializes the header. *bytes_out is malloc'd and the caller's to free.
 */
enum sl_status sl_capsule_write_header(const struct sl_session *session, const struct sl_capsule_id *id,
                                       uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err);

// Checked contents of a header, for a store that keeps capsules of models it does not know.
struct sl_capsule_info {
    struct sl_capsule_id id;
    struct sl_kv_geometry geometry;
    int64_t n_tokens;
    size_t body_bytes;
    bool evicted; // some head of a resident layer holds fewer slots than tokens were read: it cannot be truncated
};
enum sl_status sl_capsule_read_header(const void *header, size_t header_bytes, struct sl_capsule_info *info_out,
                                      struct sl_error *err);

// Writes the same header with another prefix hash: a capsule's key depends on the tenant that may find it. *bytes_out is
// malloc'd and the caller's to free. SL_ERR_INVALID, SL_ERR_EXHAUSTED.
enum sl_status sl_capsule_rekey_header(const void *header, size_t header_bytes, const struct sl_hash128 *prefix_hash,
                                       uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err);

// A capsule that was received, or read from a file.
struct sl_capsule_bytes {
    void *body; // a block of an arena
    size_t body_bytes;
    uint8_t *header; // malloc'd
    size_t header_bytes;
};
void sl_capsule_bytes_free(struct sl_capsule_bytes *capsule, struct sl_arena *arena); // zeroes *capsule

/*
 * Builds a session over a capsule whose body lies in `arena`. On success the session owns the body; everything else
 * stays the caller's. `geometry` and `id` (the fingerprints; prefix_hash of zeros matches any) are what this worker
 * expects. The body's actual size counts, not the size that the header claims. max_slots as in sl_session_config;
 * raised to the capsule's slots if they are more. SL_ERR_INVALID (malformed), SL_ERR_PRECONDITION (another model or
 * recipe), SL_ERR_EXHAUSTED.
 */
enum sl_status sl_capsule_open(const struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                               const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id, int64_t max_slots,
                               struct sl_session **session_out, struct sl_error *err);
// Does the same as sl_capsule_open(), and consumes *capsule in any case.
enum sl_status sl_capsule_adopt(struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                                const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id,
                                int64_t max_slots, struct sl_session **session_out, struct sl_error *err);

/*
 * Computes prefix keys: hashes of the first n tokens, chained over blocks of SL_PREFIX_BLOCK tokens so that all keys
 * of a prompt cost one pass. keys_out[i] is the key of the first (i+1) * SL_PREFIX_BLOCK tokens; returns how many
 * were written. The salt is that of the tenant that may find the prompt's cache entries (net/trust/tenant_salt.h).
 * With another salt the same tokens have other keys. Without tenants it is zeros.
 */
#define SL_PREFIX_BLOCK 64
struct sl_hash128 sl_prefix_hash(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens);
// Does the same with the keys of the prompt's whole blocks, up to n_tokens at least.
struct sl_hash128 sl_prefix_hash_after(const struct sl_hash128 *salt, const struct sl_hash128 *keys,
                                       const int32_t *tokens, int64_t n_tokens);
int64_t sl_prefix_keys(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens,
                       struct sl_hash128 *keys_out, int64_t max_keys);
