// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: computes how many workers of each role a workload needs under a recipe to meet its SLO.
 *
 * Design: arithmetic comes first, and all its terms are reported; then a simulation of the arrivals on that many
 *         workers.
 *
 *     prefill   rate * seconds of a prompt / headroom
 *     decode    rate * seconds that a job holds its slot / slots of a worker / headroom; slots: the smaller of
 *               what the arena holds, by the jobs' bytes, and of the batch that the time per token allows
 *     stores    (rate * kept seconds * bytes of a capsule + bytes of offloaded layers of those under way) / arena
 *
 * The play: The simulation takes jobs in order of arrival. One starts when a prefill worker is free and a decode
 *           worker has a slot and memory, which it holds from then on, as in the cluster. Its first token comes after
 *           prefill, shipping and a step. While too few jobs are in time, a worker is added to the role with the
 *           longer waits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/session.h"
#include "lab/plan/speed.h"
#include "lab/plan/workload.h"

struct sl_sizing_config {
    struct sl_speed speed;
    struct sl_kv_geometry geometry;
    int64_t max_positions;                            // of the model: longer requests are excluded
    double ttft_s, token_s;                           // the SLO: seconds to the first token, and per further token
    double in_time;                                   // share of jobs for which ttft_s must hold, 0 to 1
    double headroom;                                  // share of workers' time that arithmetic uses, 0 to 1
    int64_t prefill_arena, decode_arena, store_arena; // bytes
    int64_t max_batch;                                // of a decode worker
    double ship_rate;                                 // bytes a second into a decode worker
    double keep_s; // how long stores keep capsules; 0: no store, except for offloaded layers
};

struct sl_sizing {
    int64_t n_jobs, n_too_long, n_too_big; // planned; longer than the model's positions; larger than a worker's arena
    // Means over the jobs.
    double rate, prompt_tokens, output_tokens, reused_tokens;
    double prefill_s, capsule_bytes, decode_bytes, remote_kv_bytes,
        lifetime_s; // lifetime: from the first chunk to the last token
    int64_t largest_prefill_bytes, largest_decode_bytes;
    int64_t places_by_arena, places_by_time, places;    // per decode worker
    double step_s;                                      // with that many sequences
    double prefill_load, decode_load, stored_bytes;     // in workers; in bytes
    int64_t n_prefill, n_decode, n_stores;              // by arithmetic
    int64_t played_prefill, played_decode;              // required by the simulation; the answer is the larger of both
    double in_time, ttft_p50_s, ttft_p90_s, ttft_p99_s; // simulated with the answer
    const char *impossible;                             // NULL, or the reason why no number of workers suffices
};

// Computes the numbers. recipe: resolved. SL_ERR_EXHAUSTED, or a status of sl_plan_make().
enum sl_status sl_sizing_make(const struct sl_sizing_config *config, const struct sl_workload *workload,
                              const struct sl_recipe *recipe, struct sl_sizing *sizing_out, struct sl_error *err);
