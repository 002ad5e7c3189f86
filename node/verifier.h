// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the thread that verifies what has arrived in a device's memory: a flush of what the network wrote, then its digests, on the
 *          device, behind the computation that is queued there.
 */
#pragma once

#include "node/direct.h"

struct sl_verifier;

struct sl_verifying {
    const struct sl_runtime *runtime; // whose device it is
    const struct sl_direct *direct;   // where it arrives
    // Of every status that is a failure: sl_node_check_device().
    enum sl_status (*check)(void *arg, enum sl_status status, struct sl_error *err);
    void *arg;
};

// what->... must outlive it.
enum sl_status sl_verifier_start(const struct sl_verifying *what, struct sl_verifier **verifier_out,
                                 struct sl_error *err);
void sl_verifier_take(void *verifier, struct sl_arrival *arrival); // from any thread; never waits
// Behind the last that is being verified; the others, and what comes from now on, end as SL_ERR_CANCELLED. Accepts NULL.
void sl_verifier_stop(struct sl_verifier *verifier);
void sl_verifier_destroy(struct sl_verifier **verifier); // stopped, when nothing can come. Accepts NULL, nulls
