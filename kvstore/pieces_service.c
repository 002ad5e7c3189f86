// SPDX-License-Identifier: Apache-2.0
/*
 * Handlers of Store.Read and Store.Write: capsules and segments of documents, which travel as files, on the control plane.
 *
 * A capsule that is being written belongs to its call: if the call ends before its last piece, nothing is left.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvstore/internal.h"

#define PIECE_BYTES ((size_t)1 << 20)

// ---- reading --------------------------------------------------------------------------------------------------------

// Finds the whole capsule, in memory or on disk; *is_pinned_out says how it is released. NULL: the store does not have it.
static struct sl_stored *hold(struct sl_kvstore *kvstore, const struct sl_prefix *whole, int64_t deadline_ns,
                              bool *is_pinned_out) {
    size_t at;
    struct sl_stored *stored = sl_capsule_cache_hold(kvstore->capsule_cache, &whole->id);
    stored = stored != NULL ? stored : sl_document_layers_hold(kvstore->layers, &whole->id);
    *is_pinned_out = stored == NULL;
    if (stored == NULL) {
        stored = sl_disk_recall(kvstore->disk, whole, 1, deadline_ns, &at);
    }
    if (stored != NULL && memcmp(&stored->keys.id, &whole->id, sizeof whole->id) != 0) { // a longer one begins with it
        sl_capsule_cache_unpin(kvstore->capsule_cache, stored);
        stored = NULL;
    }
    return stored;
}

static enum sl_status send_pieces(struct sl_rpc_call *call, const struct sl_capsule_bytes *capsule) {
    Sluice__V1__CapsulePiece piece = SLUICE__V1__CAPSULE_PIECE__INIT;
    piece.header = (ProtobufCBinaryData){capsule->header_bytes, capsule->header};
    enum sl_status status = sl_rpc_call_send(call, &piece.base);
    piece.header = (ProtobufCBinaryData){0, NULL};
    for (size_t at = 0; at < capsule->body_bytes && status == SL_OK; at += piece.body.len) {
        size_t left = capsule->body_bytes - at;
        piece.body.data = (uint8_t *)capsule->body + at;
        piece.body.len = left < PIECE_BYTES ? left : PIECE_BYTES;
        status = sl_rpc_call_send(call, &piece.base);
    }
    return status;
}

enum sl_status sl_store_handle_read(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__StoreKey *key = (const Sluice__V1__StoreKey *)message;
    struct sl_prefix whole = {{key->model_fingerprint, key->recipe_fingerprint, {{0}}}, key->n_tokens};
    SL_FAIL_IF(!sl_hash128_read(key->prefix_hash.data, key->prefix_hash.len, &whole.id.prefix_hash), err,
               SL_ERR_INVALID, "prefix_hash: does not have %zu bytes", sizeof whole.id.prefix_hash);
    bool is_pinned;
    struct sl_stored *stored = hold(kvstore, &whole, sl_rpc_call_deadline_ns(call), &is_pinned);
    SL_FAIL_IF(stored == NULL, err, SL_ERR_NOT_FOUND, "the store does not have this capsule");
    enum sl_status status = send_pieces(call, &stored->capsule);
    if (is_pinned) {
        sl_capsule_cache_unpin(kvstore->capsule_cache, stored);
    } else {
        sl_capsule_cache_release(kvstore->capsule_cache, stored);
    }
    atomic_fetch_add(&kvstore->n_calls, 1);
    return status == SL_OK ? SL_OK : sl_fail(err, status, "%s", sl_status_text(status));
}

// ---- writing --------------------------------------------------------------------------------------------------------

// A capsule that is being written.
struct writing {
    struct sl_kvstore *kvstore;
    struct sl_rpc_call *call;
    struct sl_capsule_keys keys;     // its hashes are owned
    struct sl_capsule_bytes capsule; // owned, until the cache has it
    size_t n_written;                // of the body
};

// Checks the header of a capsule, or of a segment, against what was announced. Returns the bytes of its body.
static enum sl_status check_header(const struct writing *writing, const Sluice__V1__CapsulePiece *first,
                                   size_t *body_bytes_out, struct sl_error *err) {
    struct sl_capsule_info info = {.id = writing->keys.id};
    if (sl_kv_segment_head_is(first->header.data, first->header.len)) {
        struct sl_kv_segment_head head;
        struct sl_kv_segment_config config;
        SL_TRY(sl_kv_segment_head_read(first->header.data, first->header.len, &head, &config, err));
        info.body_bytes = (size_t)head.body_bytes;
    } else {
        SL_TRY(sl_capsule_read_header(first->header.data, first->header.len, &info, err));
    }
    SL_FAIL_IF(memcmp(&info.id, &writing->keys.id, sizeof info.id) != 0 || info.body_bytes < 1 ||
                   info.body_bytes != (uint64_t)first->what->capsule_bytes,
               err, SL_ERR_INVALID, "header: has another key, or another size, than announced");
    *body_bytes_out = info.body_bytes;
    return SL_OK;
}

// Checks the first message, and takes room for the capsule.
static enum sl_status begin(struct writing *writing, const Sluice__V1__CapsulePiece *first, struct sl_error *err) {
    struct sl_kvstore *kvstore = writing->kvstore;
    SL_FAIL_IF(first->what == NULL || first->header.len < 1 || first->header.len > SL_CAPSULE_MAX_HEADER_BYTES, err,
               SL_ERR_INVALID, "the first message has no keys, or a header of %zu bytes", first->header.len);
    size_t body_bytes = 0;
    enum sl_status status = sl_store_read_keys(kvstore, first->what, &writing->keys, err);
    struct sl_hash128 *hashes = status == SL_OK ? malloc(sizeof *hashes * (writing->keys.n_hashes + 1)) : NULL;
    if (hashes != NULL && writing->keys.n_hashes > 0) {
        memcpy(hashes, writing->keys.hashes, sizeof *hashes * writing->keys.n_hashes);
    }
    writing->keys.hashes = hashes;
    SL_THEN(status, hashes != NULL ? check_header(writing, first, &body_bytes, err)
                                   : sl_fail(err, SL_ERR_EXHAUSTED, "kvstore: out of memory"));
    SL_TRY(status);
    struct sl_capsule_bytes *capsule = &writing->capsule;
    capsule->header = malloc(first->header.len);
    SL_FAIL_IF(capsule->header == NULL, err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    memcpy(capsule->header, first->header.data, first->header.len);
    capsule->header_bytes = first->header.len;
    capsule->body_bytes = body_bytes;
    return sl_room_take_block(&kvstore->room, "import", body_bytes, &capsule->body, err);
}

// Receives the body, up to the piece that says that the capsule is complete.
static enum sl_status receive_body(struct writing *writing, struct sl_error *err) {
    struct sl_capsule_bytes *capsule = &writing->capsule;
    bool is_last = false, is_segment = sl_kv_segment_head_is(capsule->header, capsule->header_bytes);
    while (!is_last) {
        ProtobufCMessage *message;
        enum sl_status status =
            sl_rpc_call_receive(writing->call, &sluice__v1__capsule_piece__descriptor, &message, err);
        SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, SL_ERR_CANCELLED, "the capsule ended after %zu of %zu bytes",
                   writing->n_written, capsule->body_bytes);
        SL_TRY(status);
        const Sluice__V1__CapsulePiece *piece = (const Sluice__V1__CapsulePiece *)message;
        bool fits = piece->body.len <= capsule->body_bytes - writing->n_written;
        if (fits && piece->body.len > 0) {
            memcpy((char *)capsule->body + writing->n_written, piece->body.data, piece->body.len);
            writing->n_written += piece->body.len;
        }
        if (is_segment && piece->body.len > 0) {
            sl_remote_kv_pins_note_arriving(writing->kvstore->remote_kv_pins, &writing->keys.id, writing->n_written,
                                            sl_now_ns());
        }
        is_last = piece->is_last;
        protobuf_c_message_free_unpacked(message, NULL);
        SL_FAIL_IF(!fits || (is_last && writing->n_written < capsule->body_bytes), err, SL_ERR_INVALID,
                   "body: does not have the announced %zu bytes", capsule->body_bytes);
    }
    return SL_OK;
}

// Caches the capsule, or pins the segment.
static enum sl_status store(struct writing *writing, struct sl_error *err) {
    struct sl_kvstore *kvstore = writing->kvstore;
    if (sl_kv_segment_head_is(writing->capsule.header, writing->capsule.header_bytes)) {
        return sl_document_layers_put(kvstore->layers, &writing->keys.id, &writing->capsule, err);
    }
    SL_TRY(sl_capsule_cache_put(kvstore->capsule_cache, &writing->keys, &writing->capsule, err));
    sl_disk_offer(kvstore->disk, &writing->keys.id);
    return SL_OK;
}

static enum sl_status write_capsule(struct writing *writing, struct sl_error *err) {
    struct sl_kvstore *kvstore = writing->kvstore;
    ProtobufCMessage *first;
    enum sl_status status = sl_rpc_call_receive(writing->call, &sluice__v1__capsule_piece__descriptor, &first, err);
    if (status != SL_OK) {
        return status == SL_ERR_NOT_FOUND ? sl_fail(err, SL_ERR_INVALID, "the call has no message") : status;
    }
    status = begin(writing, (const Sluice__V1__CapsulePiece *)first, err);
    protobuf_c_message_free_unpacked(first, NULL);
    SL_THEN(status, receive_body(writing, err));
    SL_THEN(status, store(writing, err));
    SL_TRY_OR(status, sl_capsule_bytes_free(&writing->capsule, kvstore->room.arena));
    Sluice__V1__WriteReply reply = SLUICE__V1__WRITE_REPLY__INIT;
    reply.bytes = (int64_t)writing->n_written;
    return sl_rpc_call_send(writing->call, &reply.base);
}

enum sl_status sl_store_handle_write(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                     struct sl_error *err) {
    (void)no_request;
    struct writing writing = {.kvstore = service, .call = call};
    enum sl_status status = write_capsule(&writing, err);
    free(writing.keys.hashes);
    atomic_fetch_add(&writing.kvstore->n_calls, 1);
    return status;
}
