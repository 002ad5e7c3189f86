// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: error estimates of a compressor in the form of the Statistics message. The worker estimates where it
 *          evicts slots and quantizes pages, the coordinator forwards the message, the client prints it.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "proto/sluice/v1/inference.pb-c.h"

// n_layers 0: nothing was measured or requested. Arrays have one entry per layer; see the message ErrorEstimates.
struct sl_error_statistics {
    int n_layers;
    float evicted_attention[SL_MAX_LAYERS];
    int64_t evicting_rows[SL_MAX_LAYERS];
    float key_error[SL_MAX_LAYERS], value_error[SL_MAX_LAYERS];
    Sluice__V1__ErrorEstimates message; // storage for sl_error_statistics_attach()
};

// Reads a compressor's estimates; n_layers is 0 if the compressor was not asked to estimate.
void sl_error_statistics_read(const struct sl_compressor *compressor, struct sl_error_statistics *statistics_out);

// Adds the estimates of decode steps to those of prefill. Steps quantize nothing. Changes nothing if either has no
// estimates, or if their models have different numbers of layers.
void sl_error_statistics_add_steps(struct sl_error_statistics *statistics, const struct sl_error_statistics *steps);

// Makes the message point into *statistics, which must outlive it and not move. Leaves the field empty if n_layers is
// 0.
void sl_error_statistics_attach(struct sl_error_statistics *statistics, Sluice__V1__Statistics *message);

// Copies from a message that a peer sent. Invalid contents count as "no estimates", as in slot_statistics.h.
void sl_error_statistics_copy(const Sluice__V1__Statistics *message, struct sl_error_statistics *statistics_out);
