// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ship one contiguous capsule body to whoever granted memory for it: what a kvstore does for a Fetch and a prefill
 *          worker for its copy to the kvstore and for its segments.
 */
#pragma once

#include <stdbool.h>

#include "fabric/fabric.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct sl_send {
    const Sluice__V1__Grant *destination;
    const void *body;
    size_t body_bytes;
    const uint8_t *header;
    size_t header_bytes;
    int64_t deadline_ns;
    // Asked about every 50 ms while bytes are on their way; false gives up with SL_ERR_CANCELLED. May be NULL.
    bool (*go_on)(void *arg);
    void *arg;
};

// Blocks until the receiver has verified everything. body and header may go when it has returned.
enum sl_status sl_send_capsule(struct sl_fabric *fabric, const struct sl_send *send, struct sl_error *err);

// The second half alone, for pieces that lie here and there: all send->body_bytes have been queued in *ship, which is
// closed in any case. destination, body and deadline_ns are not used.
enum sl_status sl_send_finish(struct sl_ship **ship, const struct sl_send *send, struct sl_error *err);
