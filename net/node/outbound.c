// SPDX-License-Identifier: Apache-2.0
#include "net/node/outbound.h"

#include "base/clock.h"
#include "engine/kvcache/capsule.h"

// Pieces have a size that suits the fabric: a page is far smaller, a layer may be far larger.
#define MAX_PIECE_BYTES ((size_t)4 << 20)

// At the end of the prompt, waits this long for a receiver that has not said how it is reached.
#define DECIDE_MS 1000

// Takes both blocks, or the capsule is staged.
static void take_outgoing(struct sl_outbound *outbound, struct sl_ledger *staging, struct sl_arena *outgoing,
                          const char *label, size_t bytes) {
    size_t most_digests = bytes / SL_DIGESTED_MAX_BYTES + SL_MAX_LAYERS;
    void *digests = NULL, *there = outgoing ? sl_arena_alloc(outgoing, bytes) : NULL;
    if (there && sl_ledger_take_block(staging, label, most_digests * sizeof(uint64_t), 0, &digests, NULL) != SL_OK) {
        sl_arena_free(outgoing, there);
        there = NULL;
    }
    if (there) {
        outbound->way = SL_OUTBOUND_UNDECIDED;
        outbound->outgoing = outgoing;
        outbound->there = there;
        outbound->digests = digests;
    }
}

enum sl_status sl_outbound_stage(struct sl_outbound *outbound, struct sl_ledger *staging, struct sl_arena *outgoing,
                                 const char *label, size_t bytes, struct sl_error *err) {
    void *body;
    SL_TRY(sl_ledger_take_block(staging, label, bytes, 0, &body, err));
    outbound->staging = sl_ledger_arena(staging);
    outbound->body = body;
    outbound->room_bytes = bytes;
    outbound->way = SL_OUTBOUND_STAGED;
    take_outgoing(outbound, staging, outgoing, label, bytes);
    return SL_OK;
}

static enum sl_status ship_piece(void *arg, const struct sl_capsule_piece *piece) {
    return sl_ship_piece(arg, piece->offset, piece->data, piece->bytes);
}

static enum sl_status ship_from_pages(struct sl_outbound *outbound, const struct sl_session *session, int layer) {
    size_t offset = atomic_load(&outbound->shipped_bytes);
    SL_TRY(sl_capsule_layer_pieces(session, layer, offset, MAX_PIECE_BYTES, ship_piece, outbound->ship));
    atomic_store(&outbound->shipped_bytes, offset + sl_capsule_layer_bytes(session, layer));
    return SL_OK;
}

/*
 * Decides between straight and staged as soon as the ship knows which is possible. At `until_ns`, or if the ship fails
 * before (its next piece reports that), the way is staged; with until_ns 0 it may stay open. Staged: the collected
 * layers are copied to the host at once.
 */
static void decide(struct sl_outbound *outbound, const struct sl_runtime *runtime, int64_t until_ns) {
    enum sl_ship_straight straight;
    enum sl_status status = SL_OK;
    while ((straight = sl_ship_straight(outbound->ship, outbound->there)) == SL_STRAIGHT_UNKNOWN &&
           sl_now_ns() < until_ns) {
        (void)sl_ship_progress(outbound->ship, &status);
        if (status != SL_OK) {
            break;
        }
        sl_sleep_ms(1);
    }
    if (straight == SL_STRAIGHT_YES) {
        outbound->way = SL_OUTBOUND_STRAIGHT;
    } else if (straight == SL_STRAIGHT_NO || until_ns > 0) {
        outbound->way = SL_OUTBOUND_STAGED;
        if (outbound->body_bytes > 0) {
            struct sl_mark down = sl_transfer_out(runtime, outbound->body, outbound->there, outbound->body_bytes);
            for (int i = 0; i < outbound->n_layers; i++) {
                outbound->layers[i].down = down;
            }
        }
    }
}

// Copies a layer into staging memory, or into the memory from which capsules leave straight.
static enum sl_status layer_out(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                const struct sl_session *session, int layer, struct sl_mark *done_out,
                                struct sl_error *err) {
    size_t begin = outbound->body_bytes;
    if (outbound->way == SL_OUTBOUND_UNDECIDED) {
        decide(outbound, runtime, 0);
    }
    if (outbound->way == SL_OUTBOUND_STAGED) {
        return sl_transfer_layer_out(runtime, session, layer, outbound->body + begin, done_out, err);
    }
    struct sl_digested_layer out = {.to = outbound->there + begin,
                                    .piece_bytes = (uint32_t)SL_DIGESTED_MAX_BYTES,
                                    .digests = outbound->digests + outbound->n_digests};
    size_t bytes = sl_capsule_layer_bytes(session, layer);
    outbound->n_digests += (bytes + SL_DIGESTED_MAX_BYTES - 1) / SL_DIGESTED_MAX_BYTES;
    return sl_transfer_layer_digested(runtime, session, layer, &out, done_out, err);
}

enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                 const struct sl_session *session, int layer, struct sl_error *err) {
    if (outbound->staging == NULL) {
        enum sl_status status = sl_stream_wait(runtime->stream, err); // pages are read in place
        return status == SL_OK ? ship_from_pages(outbound, session, layer) : status;
    }
    size_t begin = outbound->body_bytes, bytes = sl_capsule_layer_bytes(session, layer);
    SL_FAIL_IF(bytes > outbound->room_bytes - begin, err, SL_ERR_INTERNAL,
               "layer %d of the capsule ends at byte %zu, planned were %zu in all", layer, begin + bytes,
               outbound->room_bytes);
    struct sl_mark down = {0};
    enum sl_status status = layer_out(outbound, runtime, session, layer, &down, err);
    if (status == SL_OK) {
        outbound->body_bytes = begin + bytes;
        outbound->layers[outbound->n_layers].down = down;
        outbound->layers[outbound->n_layers++].end = begin + bytes;
    } else {
        (void)sl_mark_wait(&down, NULL); // a copy into the body may still be under way; its result is not needed
    }
    return status;
}

// Passes bytes that have been copied to the ship; straight ones with their digests: a layer's cover its own pieces.
static enum sl_status pass_on(struct sl_outbound *outbound, size_t end) {
    const bool is_straight = outbound->way == SL_OUTBOUND_STRAIGHT;
    const size_t most = is_straight ? SL_DIGESTED_MAX_BYTES : MAX_PIECE_BYTES;
    enum sl_status status = SL_OK;
    for (size_t at = atomic_load(&outbound->shipped_bytes); status == SL_OK && at < end;) {
        size_t bytes = end - at < most ? end - at : most;
        status = is_straight ? sl_ship_digested(outbound->ship, at, outbound->there + at, bytes,
                                                outbound->digests[outbound->n_digests_handed++])
                             : sl_ship_piece(outbound->ship, at, outbound->body + at, bytes);
        at += bytes;
        atomic_store(&outbound->shipped_bytes, status == SL_OK ? at : at - bytes);
    }
    return status;
}

enum sl_status sl_outbound_flush(struct sl_outbound *outbound, const struct sl_runtime *runtime, bool all,
                                 struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (outbound->way == SL_OUTBOUND_UNDECIDED && outbound->n_layers > 0) {
        decide(outbound, runtime, all ? sl_deadline_in_ms(DECIDE_MS) : 0);
        if (outbound->way == SL_OUTBOUND_UNDECIDED) {
            return SL_OK;
        }
    }
    while (status == SL_OK && outbound->n_handed < outbound->n_layers) {
        const struct sl_mark *down = &outbound->layers[outbound->n_handed].down;
        if (!all && !sl_mark_reached(down)) {
            break;
        }
        status = sl_mark_wait(down, err);
        if (status == SL_OK) {
            status = pass_on(outbound, outbound->layers[outbound->n_handed++].end);
        }
    }
    return status;
}

void *sl_outbound_take_body(struct sl_outbound *outbound, const struct sl_runtime *runtime) {
    void *body = outbound->body;
    if (body && outbound->way == SL_OUTBOUND_STRAIGHT && outbound->body_bytes > 0) {
        struct sl_mark down = sl_transfer_out(runtime, body, outbound->there, outbound->body_bytes);
        if (sl_mark_wait(&down, NULL) != SL_OK) {
            return NULL; // it goes with the other layers
        }
    }
    outbound->body = NULL;
    return body;
}

void sl_outbound_close(struct sl_outbound *outbound) {
    if (outbound->n_layers > 0) { // a failed device writes nothing any more either
        (void)sl_mark_wait(&outbound->layers[outbound->n_layers - 1].down, NULL);
    }
    if (outbound->staging != NULL) {
        sl_arena_free(outbound->staging, outbound->body);
        sl_arena_free(outbound->staging, outbound->digests);
    }
    if (outbound->outgoing != NULL) {
        sl_arena_free(outbound->outgoing, outbound->there);
    }
    outbound->outgoing = NULL;
    outbound->there = NULL;
    outbound->digests = NULL;
    outbound->n_digests = outbound->n_digests_handed = 0;
    outbound->staging = NULL;
    outbound->body = NULL;
    outbound->n_layers = 0;
}
