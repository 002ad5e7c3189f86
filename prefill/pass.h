// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one forward pass over the next chunks of one or more jobs, and the transfers that overlap it: each layer is
 *          shipped as soon as it is final, and offloaded layers go to kvstores. The engine's thread calls it layer by
 *          layer, and may advance another pass in between.
 */
#pragma once

#include "prefill/internal.h"
#include "engine/runner/reading.h"

struct sl_prefill_pass {
    struct sl_prefill_job *jobs[SL_READING_MAX_PROMPTS]; // [n]
    int n;                                               // 0: no pass
    struct sl_reading reading;
};

// Begins a pass. Returns the statuses of sl_reading_begin(). The pass must not move in memory until it ends.
enum sl_status sl_prefill_pass_begin(struct sl_prefill_pass *pass, struct sl_activations *activations,
                                     struct sl_prefill_job *const *jobs, int n, struct sl_error *err);
// Returns false when no layer is left, and when the pass or all of its jobs have failed.
bool sl_prefill_pass_layer(struct sl_prefill_pass *pass);
// Ends a pass. A failure applies to all jobs. Otherwise call sl_prefill_end_chunk() for each.
enum sl_status sl_prefill_pass_end(struct sl_prefill_pass *pass, struct sl_error *err);

// Ships final layers, counts memory and reports progress, after a chunk or after sl_reader_finish().
enum sl_status sl_prefill_end_chunk(struct sl_prefill_job *job, struct sl_error *err);
