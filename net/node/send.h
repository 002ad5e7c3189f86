// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ships one contiguous capsule body to a peer that granted memory for it: a kvstore does so for a Fetch, and a
 *          prefill worker for its copy to the kvstore and for its segments.
 */
#pragma once

#include <stdbool.h>

#include "net/fabric/fabric.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct sl_send {
    const Sluice__V1__Grant *destination;
    const void *body;
    size_t body_bytes;
    const uint8_t *header;
    size_t header_bytes;
    int64_t deadline_ns;
    // Called every 50 ms until the acknowledgement is there; false cancels with SL_ERR_CANCELLED. May be NULL.
    bool (*go_on)(void *arg);
    void *arg;
};

// Blocks until the receiver has verified everything. The caller may free body and header when it has returned.
enum sl_status sl_send_capsule(struct sl_fabric *fabric, const struct sl_send *send, struct sl_error *err);

// Does the second half alone, for pieces that are scattered: all have been queued in *ship, which it always closes. Does
// not use destination, body, body_bytes and deadline_ns.
enum sl_status sl_send_finish(struct sl_ship **ship, const struct sl_send *send, struct sl_error *err);
