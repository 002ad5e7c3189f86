// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a session holds, layer by layer and format by format, as the Statistics message tells it. Measured
 *          where the answer is written, carried by the coordinator, printed by the client.
 */
#pragma once

#include "engine/kvcache/session.h"
#include "proto/sluice/v1/inference.pb-c.h"

// More are not told one by one: they would make the statistics of every job large. (80 layers of 64 heads are 5120.)
#define SL_MAX_TOLD_HEADS 8192

// All zero: nothing is known.
struct sl_slot_statistics {
    int n_layers;
    int32_t min[SL_MAX_LAYERS], max[SL_MAX_LAYERS]; // slots of a layer, over its KV heads
    float mean[SL_MAX_LAYERS];
    int n_told;                       // n_layers * n_kv_heads, or 0: too many to tell
    uint32_t told[SL_MAX_TOLD_HEADS]; // slots of every KV head: [n_layers][n_kv_heads]
    Sluice__V1__KvBytes bytes;
};

void sl_slot_statistics_measure(const struct sl_session *session, struct sl_slot_statistics *statistics_out);

// Have the message point into *statistics, which must outlive it and not move. Nothing known: the fields are left empty.
void sl_slot_statistics_attach(struct sl_slot_statistics *statistics, Sluice__V1__Statistics *message);

// Copy out of a message of somebody else. Lists of different or impossible lengths, or numbers that count nothing, are
// taken as "nothing known": statistics are told, never acted upon.
void sl_slot_statistics_copy(const Sluice__V1__Statistics *message, struct sl_slot_statistics *statistics_out);
