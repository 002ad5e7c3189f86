// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/transfer.h"

#include <stdlib.h>

#include "base/array.h"
#include "engine/kvcache/capsule.h"

#define N_BLOCKS    2 // one is filled while the other is copied out
#define MIRROR_ROOM ((size_t)1 << 20)

struct block {
    void *at; // device memory
    size_t bytes;
    struct sl_mark left; // after the copy that reads it
};

struct sl_transfer {
    struct sl_device *device;
    struct block blocks[N_BLOCKS];
    unsigned next;
};

enum sl_status sl_transfer_create(struct sl_device *device, struct sl_transfer **transfer_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_transfer, transfer, err, "transfer: out of memory");
    transfer->device = device;
    *transfer_out = transfer;
    return SL_OK;
}

void sl_transfer_destroy(struct sl_transfer **transfer_inout) {
    struct sl_transfer *transfer = *transfer_inout;
    if (transfer != NULL) {
        for (int i = 0; i < N_BLOCKS; i++) {
            sl_device_free(transfer->device, SL_MEMORY_DEVICE, transfer->blocks[i].at);
        }
        free(transfer);
        *transfer_inout = NULL;
    }
}

// --- pieces ----------------------------------------------------------------------------------------------------------

struct pieces {
    struct sl_byte_range *at; // [room]
    size_t n, room;
};

static enum sl_status add_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct pieces *pieces = arg;
    if (!SL_GROW(pieces->at, pieces->n, pieces->room)) {
        return SL_ERR_EXHAUSTED;
    }
    pieces->at[pieces->n++] = (struct sl_byte_range){piece->data, piece->bytes};
    return SL_OK;
}

// --- down ------------------------------------------------------------------------------------------------------------

// Returns the block to fill next: when the compute stream continues, no copy reads it any more.
static enum sl_status next_block(struct sl_transfer *transfer, struct sl_stream *compute, size_t bytes,
                                 struct block **block_out, struct sl_error *err) {
    struct block *block = &transfer->blocks[transfer->next++ % N_BLOCKS];
    *block_out = block;
    if (bytes <= block->bytes) {
        if (block->left.stream != NULL) {
            sl_stream_after(compute, &block->left);
        }
        return SL_OK;
    }
    sl_device_free(transfer->device, SL_MEMORY_DEVICE, block->at); // after everything that is queued
    *block = (struct block){.at = sl_device_alloc(transfer->device, SL_MEMORY_DEVICE, bytes), .bytes = bytes};
    if (block->at == NULL) {
        block->bytes = 0;
        return sl_fail(err, SL_ERR_EXHAUSTED, "the device has no room for %zu bytes of a layer on its way out", bytes);
    }
    return SL_OK;
}

static enum sl_status collect_and_copy(const struct sl_runtime *r, const struct sl_byte_range *pieces, uint32_t n,
                                       size_t bytes, void *to, struct sl_mark *done_out, struct sl_error *err) {
    struct sl_stream *out = sl_device_stream(r->device, SL_STREAM_OUT);
    struct block *block;
    SL_TRY(next_block(r->transfer, r->stream, bytes, &block, err));
    r->ops->collect(r->stream, pieces, n, block->at);
    struct sl_mark collected = sl_stream_mark(r->stream);
    sl_stream_after(out, &collected);
    sl_stream_copy(out, to, block->at, bytes);
    *done_out = block->left = sl_stream_mark(out);
    return SL_OK;
}

enum sl_status sl_transfer_pieces_out(const struct sl_runtime *r, const struct sl_byte_range *pieces, uint32_t n,
                                      size_t bytes, void *to, struct sl_mark *done_out, struct sl_error *err) {
    *done_out = (struct sl_mark){0};
    if (bytes == 0) {
        return SL_OK;
    }
    if (r->device->ops->one_memory) {
        r->ops->collect(r->stream, pieces, n, to);
        return SL_OK;
    }
    sl_stream_hold(r->stream);
    enum sl_status status = collect_and_copy(r, pieces, n, bytes, to, done_out, err);
    return sl_stream_release_after(r->stream, status, err);
}

// Digests a layer of `bytes`, after the work that wrote it.
static enum sl_status digest(const struct sl_runtime *r, const struct sl_digested_layer *layer, size_t bytes,
                             struct sl_error *err) {
    size_t n = (bytes + layer->piece_bytes - 1) / layer->piece_bytes;
    uint32_t last_bytes = (uint32_t)(bytes - (n - 1) * layer->piece_bytes);
    const char *at = layer->to;
    struct sl_digest_piece *pieces = malloc(n * sizeof *pieces);
    SL_FAIL_IF(pieces == NULL, err, SL_ERR_EXHAUSTED, "transfer: out of memory");
    for (size_t i = 0; i < n; i++) {
        pieces[i] =
            (struct sl_digest_piece){at + i * layer->piece_bytes, i + 1 < n ? &layer->piece_bytes : &last_bytes, 1};
    }
    r->ops->digest(r->stream, pieces, (uint32_t)n, layer->digests);
    free(pieces);
    return SL_OK;
}

enum sl_status sl_transfer_layer_digested(const struct sl_runtime *r, const struct sl_session *session, int layer,
                                          const struct sl_digested_layer *out, struct sl_mark *done_out,
                                          struct sl_error *err) {
    struct pieces pieces = {0};
    size_t bytes = sl_capsule_layer_bytes(session, layer);
    *done_out = (struct sl_mark){0};
    enum sl_status status = sl_capsule_layer_pieces(session, layer, 0, SIZE_MAX, add_piece, &pieces);
    if (status != SL_OK) {
        sl_fail(err, status, "transfer: out of memory");
    } else if (bytes > 0) {
        sl_stream_hold(r->stream);
        r->ops->collect(r->stream, pieces.at, (uint32_t)pieces.n, out->to);
        status = digest(r, out, bytes, err);
        *done_out = sl_stream_mark(r->stream);
        status = sl_stream_release_after(r->stream, status, err);
    }
    free(pieces.at);
    return status;
}

struct sl_mark sl_transfer_out(const struct sl_runtime *r, void *to, const void *from, size_t bytes) {
    struct sl_stream *out = sl_device_stream(r->device, SL_STREAM_OUT);
    struct sl_mark before = sl_stream_mark(r->stream);
    sl_stream_after(out, &before);
    sl_stream_copy(out, to, from, bytes);
    return sl_stream_mark(out);
}

enum sl_status sl_transfer_layer_out(const struct sl_runtime *r, const struct sl_session *session, int layer, void *to,
                                     struct sl_mark *done_out, struct sl_error *err) {
    struct pieces pieces = {0};
    enum sl_status status = sl_capsule_layer_pieces(session, layer, 0, SIZE_MAX, add_piece, &pieces);
    if (status == SL_OK) {
        size_t bytes = sl_capsule_layer_bytes(session, layer);
        status = sl_transfer_pieces_out(r, pieces.at, (uint32_t)pieces.n, bytes, to, done_out, err);
    } else {
        sl_fail(err, status, "transfer: out of memory");
    }
    free(pieces.at);
    return status;
}

enum sl_status sl_transfer_body_out(const struct sl_runtime *r, const struct sl_session *session, void *to,
                                    struct sl_error *err) {
    struct sl_mark done = {0}, last = {0};
    enum sl_status status = SL_OK;
    for (int layer = 0; status == SL_OK && layer < session->geometry.n_layers; layer++) {
        status = sl_transfer_layer_out(r, session, layer, to, &done, err);
        last = done.stream != NULL ? done : last;
        to = (char *)to + sl_capsule_layer_bytes(session, layer);
    }
    enum sl_status waited = sl_mark_wait(&last, status == SL_OK ? err : NULL); // in any case, `to` is no longer in use
    return status == SL_OK ? waited : status;
}

// --- up --------------------------------------------------------------------------------------------------------------

// Returns the inbound stream, ordered after queued work: earlier users of the memory may still work in it.
static struct sl_stream *way_in(const struct sl_runtime *r) {
    struct sl_stream *in = sl_device_stream(r->device, SL_STREAM_IN);
    struct sl_mark before = sl_stream_mark(r->stream);
    sl_stream_after(in, &before);
    return in;
}

enum sl_status sl_transfer_in(const struct sl_runtime *r, void *to, const void *from, size_t bytes,
                              struct sl_error *err) {
    struct sl_stream *in = way_in(r);
    sl_stream_copy(in, to, from, bytes);
    return sl_stream_wait(in, err);
}

static void copy_piece(void *in, void *to, const void *from, size_t bytes) {
    sl_stream_copy(in, to, from, bytes);
}

enum sl_status sl_transfer_session_in(const struct sl_runtime *r, struct sl_session *session, struct sl_arena *arena,
                                      void **staged_out, struct sl_mark *done_out, struct sl_error *err) {
    struct sl_stream *in = way_in(r);
    enum sl_status status = sl_session_move(session, arena, copy_piece, in, staged_out);
    SL_FAIL_IF(status != SL_OK, err, status, "the arena has no room for a capsule of %zu bytes; retry in 500 ms",
               session->adopted.bytes);
    *done_out = sl_stream_mark(in);
    return SL_OK;
}

// --- for the host to read --------------------------------------------------------------------------------------------

static enum sl_status copy_session(const struct sl_runtime *r, const struct sl_session *session,
                                   struct sl_mirror *mirror, struct sl_error *err) {
    struct sl_capsule_bytes capsule = {.body_bytes = sl_capsule_body_bytes(session)};
    struct sl_capsule_id id = {0};
    capsule.body = sl_arena_alloc(mirror->arena, capsule.body_bytes);
    bool any = capsule.body_bytes > 0; // an empty range cannot be pinned
    enum sl_status status = any ? sl_device_share(r->device, capsule.body, capsule.body_bytes, err) : SL_OK;
    if (status == SL_OK && any) {
        status = sl_transfer_body_out(r, session, capsule.body, err);
        sl_device_unshare(r->device, capsule.body);
    }
    SL_THEN(status, sl_capsule_write_header(session, &id, &capsule.header, &capsule.header_bytes, err));
    SL_TRY_OR(status, sl_capsule_bytes_free(&capsule, mirror->arena));
    return sl_capsule_adopt(&capsule, mirror->arena, &session->geometry, &id, 1, &mirror->copy, err);
}

enum sl_status sl_mirror_open(const struct sl_runtime *r, const struct sl_session *session,
                              struct sl_mirror *mirror_out, struct sl_error *err) {
    *mirror_out = (struct sl_mirror){.session = session};
    if (r->device->ops->one_memory) {
        return SL_OK;
    }
    size_t bytes = sl_capsule_body_bytes(session);
    enum sl_status status = sl_arena_create_mapped(2 * bytes + MIRROR_ROOM, &mirror_out->arena, err);
    SL_THEN(status, copy_session(r, session, mirror_out, err));
    mirror_out->session = mirror_out->copy;
    if (status != SL_OK) {
        sl_mirror_close(mirror_out);
    }
    return status;
}

void sl_mirror_close(struct sl_mirror *mirror) {
    sl_session_destroy(&mirror->copy);
    sl_arena_destroy(&mirror->arena);
    *mirror = (struct sl_mirror){0};
}
