// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: error estimates of a compressor as the Statistics message tells them. Estimated where slots are evicted and
 *          pages quantized, carried by the coordinator, printed by the client.
 */
#pragma once

#include "engine/compress/evict/compressor.h"
#include "proto/sluice/v1/inference.pb-c.h"

// n_layers 0: nothing is known, or was asked for. Arrays are of layers; see the message ErrorEstimates.
struct sl_error_statistics {
    int n_layers;
    float evicted_attention[SL_MAX_LAYERS];
    int64_t evicting_rows[SL_MAX_LAYERS];
    float key_error[SL_MAX_LAYERS], value_error[SL_MAX_LAYERS];
    Sluice__V1__ErrorEstimates message; // of sl_error_statistics_attach()
};

// Nothing known where the compressor was not asked to estimate.
void sl_error_statistics_read(const struct sl_compressor *compressor, struct sl_error_statistics *statistics_out);

// Add what steps have evicted behind prefill. Steps quantize nothing. Where either knows nothing, or they are of models
// with different numbers of layers, nothing changes.
void sl_error_statistics_add_steps(struct sl_error_statistics *statistics, const struct sl_error_statistics *steps);

// Have the message point into *statistics, which must outlive it and not move. Nothing known: the field is left empty.
void sl_error_statistics_attach(struct sl_error_statistics *statistics, Sluice__V1__Statistics *message);

// Copy out of a message of somebody else. What cannot be is taken as "nothing known", as in slot_statistics.h.
void sl_error_statistics_copy(const Sluice__V1__Statistics *message, struct sl_error_statistics *statistics_out);
