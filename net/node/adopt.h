// SPDX-License-Identifier: Apache-2.0
// Purpose: makes a session in this worker's arena of a capsule that has arrived.
#pragma once

#include "net/node/node.h"

// Describes the session that a capsule must hold.
struct sl_expected_capsule {
    const struct sl_kv_geometry *geometry;
    const struct sl_capsule_id *id;
    int64_t max_slots; // of the session
};

/*
 * Opens the capsule where it lies, or copies it into the device's arena: from staging memory, or from device memory
 * where it arrived straight. *capsule is used up, whatever the result. *promised_inout is its transfer's promise
 * (sl_inbound_take()); the bytes that the session now holds are subtracted. Statuses of sl_capsule_open() and
 * sl_transfer_in(); SL_ERR_EXHAUSTED.
 */
enum sl_status sl_node_adopt(struct sl_node *node, struct sl_capsule_bytes *capsule, size_t *promised_inout,
                             const struct sl_expected_capsule *expected, struct sl_session **session_out,
                             struct sl_error *err);
