// SPDX-License-Identifier: Apache-2.0
// From staging memory into the arena, and open. See adopt.h.
#include "node/adopt.h"

#include "runtime/transfer.h"

// The body moves into the device's memory; staging has its block back in any case.
static enum sl_status move_up(struct sl_node *node, struct sl_capsule_bytes *capsule, size_t *promised_inout,
                              struct sl_error *err) {
    void *staged = capsule->body;
    capsule->body = sl_arena_alloc(node->arena, capsule->body_bytes);
    enum sl_status status = SL_OK;
    if (capsule->body == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "the arena has no block of %zu bytes for a capsule; retry in 500 ms",
                         capsule->body_bytes);
    } else {
        size_t promised = *promised_inout > capsule->body_bytes ? *promised_inout - capsule->body_bytes : 0;
        sl_ledger_settle(node->ledger, promised_inout, promised);
        status = sl_transfer_in(&node->runtime, capsule->body, staged, capsule->body_bytes, err);
    }
    sl_arena_free(node->staging, staged);
    return status;
}

enum sl_status sl_node_adopt(struct sl_node *node, struct sl_capsule_bytes *capsule, size_t *promised_inout,
                             const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id, int64_t max_slots,
                             struct sl_session **session_out, struct sl_error *err) {
    enum sl_status status = sl_node_stages(node) ? move_up(node, capsule, promised_inout, err) : SL_OK;
    if (status != SL_OK) {
        sl_capsule_bytes_free(capsule, node->arena);
        return status;
    }
    return sl_capsule_adopt(capsule, node->arena, geometry, id, max_slots, session_out, err);
}
