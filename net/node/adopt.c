// SPDX-License-Identifier: Apache-2.0
#include "net/node/adopt.h"

#include "engine/runtime/transfer.h"

// Moves a capsule from where it arrived into the arena of the device; always returns the block to `from`.
static enum sl_status move_up(struct sl_node *node, struct sl_arena *from, size_t bytes, size_t *promised_inout,
                              struct sl_session **session_inout, struct sl_error *err) {
    void *staged;
    struct sl_mark done;
    enum sl_status status = sl_transfer_session_in(&node->runtime, *session_inout, node->arena, &staged, &done, err);
    if (status == SL_OK) {
        sl_ledger_reconcile(node->ledger, promised_inout, *promised_inout, bytes);
        status = sl_mark_wait(&done, err);
        sl_arena_free(from, staged);
    }
    if (status != SL_OK) {
        sl_session_destroy(session_inout);
    }
    return status;
}

enum sl_status sl_node_adopt(struct sl_node *node, struct sl_capsule_bytes *capsule, size_t *promised_inout,
                             const struct sl_expected_capsule *expected, struct sl_session **session_out,
                             struct sl_error *err) {
    size_t bytes = capsule->body_bytes;
    if (!sl_node_stages(node)) {
        return sl_capsule_adopt(capsule, node->arena, expected->geometry, expected->id, expected->max_slots,
                                session_out, err);
    }
    struct sl_session *session;
    struct sl_arena *from = sl_node_arena_of(node, capsule->body);
    SL_TRY(sl_capsule_adopt(capsule, from, expected->geometry, expected->id, expected->max_slots, &session, err));
    SL_TRY(move_up(node, from, bytes, promised_inout, &session, err));
    *session_out = session;
    return SL_OK;
}
