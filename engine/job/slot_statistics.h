// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the contents of a session, by layer and by format, in the form of the Statistics message. The worker that
 *          writes the answer measures it, the coordinator forwards it, the client prints it.
 */
#pragma once

#include "engine/kvcache/session.h"
#include "proto/sluice/v1/inference.pb-c.h"

// With more heads, the message omits per-head numbers: they would make the statistics of every job large. (80 layers
// of 64 heads are 5120.)
#define SL_MAX_TOLD_HEADS 8192

// All zero: nothing was measured.
struct sl_slot_statistics {
    int n_layers;
    int32_t min[SL_MAX_LAYERS], max[SL_MAX_LAYERS]; // slots of a layer, over its KV heads
    float mean[SL_MAX_LAYERS];
    Sluice__V1__KvBytes bytes;
    int n_told; // n_layers * n_kv_heads, or 0: too many to tell
    uint32_t
        told[SL_MAX_TOLD_HEADS]; // slots of every KV head: [n_layers][n_kv_heads]; last: a copy holds n_told of them
};

// Returns the bytes of a copy that holds only the heads that were told. They are a prefix of the struct.
size_t sl_slot_statistics_bytes(const struct sl_slot_statistics *statistics);

void sl_slot_statistics_measure(const struct sl_session *session, struct sl_slot_statistics *statistics_out);

// Makes the message point into *statistics, which must outlive it and not move. Leaves the fields empty if nothing
// was measured.
void sl_slot_statistics_attach(struct sl_slot_statistics *statistics, Sluice__V1__Statistics *message);

// Copies from a message that a peer sent. Lists of different or impossible lengths, or invalid numbers, count as
// "nothing measured": statistics are displayed, never acted upon.
void sl_slot_statistics_copy(const Sluice__V1__Statistics *message, struct sl_slot_statistics *statistics_out);
