// SPDX-License-Identifier: Apache-2.0
// Purpose: a capsule that has arrived becomes a session in the arena of this worker.
#pragma once

#include "node/node.h"

/*
 * Where it lies, or copied into the device's arena, from staging memory or from where it arrived there straight. *capsule is used up, whatever the result. *promised_inout is its
 * transfer's promise (sl_inbound_take()): what the session now holds is taken off. Statuses of sl_capsule_open() and
 * sl_transfer_in(); SL_ERR_EXHAUSTED.
 */
enum sl_status sl_node_adopt(struct sl_node *node, struct sl_capsule_bytes *capsule, size_t *promised_inout,
                             const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id, int64_t max_slots,
                             struct sl_session **session_out, struct sl_error *err);
