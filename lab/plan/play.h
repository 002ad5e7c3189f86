// SPDX-License-Identifier: Apache-2.0
// Purpose: simulates jobs on a given number of workers: waiting times, and times to first token. No threads, no
// clock.
#pragma once

#include <stdint.h>

#include "base/status.h"

// Times in seconds.
struct sl_play_job {
    double at_s;
    double prefill_s; // time on a prefill worker
    double first_s;   // from then to the first token: shipping and a step
    double write_s;   // from then to the last token
    int64_t bytes;    // bytes in a decode worker's arena, from the start of prefill to the end
};

struct sl_play {
    double in_time; // share of jobs whose first token came within ttft_s
    double p50_s, p90_s, p99_s;
    double waited_prefill_s, waited_decode_s; // sums over all jobs: wait for a prefill worker, then for a decode worker
};

struct sl_play_config {
    const struct sl_play_job *jobs; // [n], in order of time; none is larger than an arena
    int64_t n;
    int64_t n_prefill, n_decode;   // workers, at least 1 each
    int64_t arena_bytes, n_places; // per decode worker
    double ttft_s;
};

// Runs the simulation. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_play(const struct sl_play_config *config, struct sl_play *play_out, struct sl_error *err);
