// SPDX-License-Identifier: Apache-2.0
/*
 * Decode.Archive: sends a copy of a retained session to a store, so that the conversation outlives this worker.
 *
 * Design: the pages are copied first; a turn waits for this memcpy. A turn may take the session, or it may be dropped,
 *         while the copy is transferred. Copies are outside the arena, as prefill's are, and their total size is at
 *         most the arena's. Copies from a device are in staging memory. If the worker of a session without a copy is
 *         lost, the next turn takes longer, but nothing else is lost.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "decode/internal.h"
#include "engine/runtime/transfer.h"
#include "net/node/send.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define SHIP_MS 10000 // plus the time for the bytes

struct copy {
    void *body;
    size_t body_bytes;
    uint8_t *header;
    size_t header_bytes;
    struct sl_arena *staging;     // arena that body is a block of; NULL: malloc
    atomic_size_t *counted_inout; // total bytes of all such copies; NULL: this one is not counted in it
};

static void copy_free(struct copy *copy) {
    if (copy->staging && copy->body) {
        sl_arena_free(copy->staging, copy->body);
    } else {
        free(copy->body);
    }
    if (copy->counted_inout) {
        atomic_fetch_sub(copy->counted_inout, copy->body_bytes);
    }
    free(copy->header);
}

static enum sl_status take_body(struct sl_decode *decode, struct copy *copy, struct sl_error *err) {
    struct sl_node *node = &decode->node;
    if (sl_node_stages(node)) {
        copy->staging = node->staging;
        return sl_ledger_take_block(node->staging_ledger, "archive", copy->body_bytes, 0, &copy->body, err);
    }
    struct sl_arena_stats stats;
    sl_arena_get_stats(node->arena, &stats);
    copy->counted_inout = &decode->copied_bytes;
    SL_FAIL_IF(atomic_fetch_add(copy->counted_inout, copy->body_bytes) + copy->body_bytes > stats.capacity_bytes, err,
               SL_ERR_EXHAUSTED, "archive: copies of other sessions are still on their way");
    copy->body = malloc(copy->body_bytes);
    return copy->body ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "archive: no memory for %zu bytes", copy->body_bytes);
}

static enum sl_status copy_session(struct sl_decode *decode, const struct sl_session *session,
                                   const struct sl_capsule_id *id, struct copy *copy, struct sl_error *err) {
    copy->body_bytes = sl_capsule_body_bytes(session);
    SL_TRY(take_body(decode, copy, err));
    SL_TRY(sl_transfer_body_out(&decode->node.runtime, session, copy->body, err));
    sl_capsule_clear_body(session, copy->body); // the answer's last page is not packed
    return sl_capsule_write_header(session, id, &copy->header, &copy->header_bytes, err);
}

enum sl_status sl_decode_handle_archive(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                        struct sl_error *err) {
    struct sl_decode *decode = service;
    const Sluice__V1__ArchiveRequest *request = (const Sluice__V1__ArchiveRequest *)message;
    SL_TRY(sl_term_guard_check(&decode->node.term_guard, request->term, err));
    SL_FAIL_IF(!request->destination, err, SL_ERR_INVALID, "destination: missing");
    struct sl_capsule_id id = {0};
    SL_FAIL_IF(!sl_hash128_read(request->hash.data, request->hash.len, &id.prefix_hash), err, SL_ERR_INVALID,
               "hash: has %zu bytes, must have %zu", request->hash.len, sizeof id.prefix_hash);
    struct sl_kept_session *one = sl_kept_lend(&decode->kept, request->kept);
    SL_FAIL_IF(!one, err, SL_ERR_NOT_FOUND, "lease %s is unknown, has ended, or is in use",
               sl_lease_name(request->kept).text);
    struct copy copy = {0};
    id.model_fingerprint = one->id.model_fingerprint;
    id.recipe_fingerprint = one->id.recipe_fingerprint;
    enum sl_status status = copy_session(decode, one->session, &id, &copy, err);
    sl_kept_return(&decode->kept, one);
    status = sl_node_check_device(&decode->node, status, err);
    if (status == SL_OK) {
        int64_t limit = sl_deadline_in_ms(SHIP_MS + (int64_t)(copy.body_bytes / SL_SLOW_BYTES_PER_MS)),
                deadline = sl_rpc_call_deadline_ns(call);
        struct sl_send send = {.destination = request->destination,
                               .body = copy.body,
                               .body_bytes = copy.body_bytes,
                               .header = copy.header,
                               .header_bytes = copy.header_bytes,
                               .deadline_ns = deadline < limit ? deadline : limit,
                               .go_on = sl_rpc_call_wanted,
                               .arg = call};
        status = sl_send_capsule(decode->node.fabric, &send, err);
    }
    Sluice__V1__ArchiveReply reply = SLUICE__V1__ARCHIVE_REPLY__INIT;
    reply.bytes = (int64_t)(copy.body_bytes + copy.header_bytes);
    copy_free(&copy);
    if (status == SL_ERR_PEER_LOST) { // the store is lost; PEER_LOST in our answer would mean that this worker is lost
        status = err->status = SL_ERR_PEER_STALE;
    }
    return status == SL_OK ? sl_rpc_call_send(call, &reply.base) : status;
}
