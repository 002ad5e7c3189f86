// SPDX-License-Identifier: Apache-2.0
// Purpose: steps of decode over one offloaded layer in a store, without a model: their times and bytes.
#pragma once

#include "lab/bench/rig/store_rig.h"

struct sl_retrieve_steps_config {
    struct sl_store_rig *store; // filled with n_heads offloaded heads of n_tokens
    const struct sl_ops *ops;
    struct sl_stream *stream;
    const char *recipe; // "place=offload/1,retrieve=near,..."
    int n_heads, group, head_dim;
    int64_t n_tokens;
    int n_steps;
    /*
     * The query does a random walk: q' = sqrt(1 - drift^2) q + drift * noise, of variance 1. With a smaller drift
     * more of a step's rows remain from earlier steps. A prediction differs from the query as much as one step does.
     */
    double drift;
};

struct sl_retrieve_steps {
    double p50_us, p99_us; // of a step: from its first question to the layer's attention
    double bytes;          // of a step, both ways, all offloaded heads
    double kept;           // share of the wanted rows that were cached
    double recall;         // of predictions
    double store_us;       // mean time of the search
};

enum sl_status sl_retrieve_steps_run(const struct sl_retrieve_steps_config *config, struct sl_retrieve_steps *steps_out,
                                     struct sl_error *err);
