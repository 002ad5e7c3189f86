// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how many workers of each role a workload takes under a recipe, so that its promises are kept.
 *
 * Design: first arithmetic, whose terms are all told; then the arrivals themselves, played through that many workers.
 *
 *     prefill   rate * seconds of a prompt / headroom
 *     decode    rate * seconds that a job holds its place / places of a worker / headroom; a place is the smaller of
 *               what the arena holds of the jobs' bytes, and of what the time for a token leaves to a batch
 *     stores    (rate * kept seconds * bytes of a capsule + bytes of offloaded layers of those under way) / arena
 *
 * The play: jobs are taken in the order in which they come. One starts when a prefill worker is free and a decode worker has a place and
 * memory, which it holds from then on, as in the cluster; its first token comes after prefill, shipping and a step. A worker more is
 * added of the role that was waited for longer, until the share of jobs that must be in time is.
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
    int64_t max_positions;  // of the model: longer requests are left out
    double ttft_s, token_s; // what is promised: until the first token, and for each further one
    double in_time;         // share of jobs for which ttft_s must hold, 0 to 1
    double headroom;        // of the time of workers that arithmetic plans with, 0 to 1
    int64_t prefill_arena, decode_arena, store_arena; // bytes
    int64_t max_batch;                                // of a decode worker
    double ship_rate;                                 // bytes a second into a decode worker
    double keep_s; // how long stores keep capsules; 0: no store, but for offloaded layers
};

struct sl_sizing {
    int64_t n_jobs, n_too_long, n_too_big; // planned for; beyond the model's positions; that fit no worker's arena
    // Means over the jobs.
    double rate, prompt_tokens, output_tokens, reused_tokens;
    double prefill_s, capsule_bytes, decode_bytes, annex_bytes,
        lifetime_s; // lifetime: from the first chunk to the last token
    int64_t largest_prefill_bytes, largest_decode_bytes;
    int64_t places_by_arena, places_by_time, places;    // of a decode worker
    double step_s;                                      // with that many
    double prefill_load, decode_load, stored_bytes;     // in workers; in bytes
    int64_t n_prefill, n_decode, n_stores;              // by arithmetic
    int64_t played_prefill, played_decode;              // that the play wants; the answer is the larger of both
    double in_time, ttft_p50_s, ttft_p90_s, ttft_p99_s; // played with the answer
    const char *impossible;                             // NULL, or why no number of workers will do
};

// recipe: resolved. SL_ERR_EXHAUSTED, or what sl_plan_make() says.
enum sl_status sl_sizing_make(const struct sl_sizing_config *config, const struct sl_workload *workload,
                              const struct sl_recipe *recipe, struct sl_sizing *sizing_out, struct sl_error *err);
