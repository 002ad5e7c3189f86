// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the thread that verifies what has arrived in device memory: it flushes what the network wrote, then computes
 *          the digests on the device, queued after the computation there.
 */
#pragma once

#include "net/node/direct.h"

struct sl_verifier;

struct sl_verifying {
    const struct sl_runtime *runtime; // the runtime whose device it is
    const struct sl_direct *direct;   // the memory in which it arrives
    // Called for every status that is a failure: sl_node_check_device().
    enum sl_status (*check)(void *arg, enum sl_status status, struct sl_error *err);
    void *arg;
};

// Starts the thread. Everything that `what` points to must outlive it.
enum sl_status sl_verifier_start(const struct sl_verifying *what, struct sl_verifier **verifier_out,
                                 struct sl_error *err);
void sl_verifier_take(void *verifier, struct sl_arrival *arrival); // from any thread; never waits
// Stops after the entry that is being verified; the others, and all later ones, end with SL_ERR_CANCELLED. Accepts
// NULL.
void sl_verifier_stop(struct sl_verifier *verifier);
void sl_verifier_destroy(struct sl_verifier **verifier); // stop it first, when no arrival can come. Accepts NULL, nulls
