// SPDX-License-Identifier: Apache-2.0
// Purpose: jobs played through so many workers: who waits for whom, and how long until their first tokens. No threads, no clock.
#pragma once

#include <stdint.h>

#include "base/status.h"

// Times in seconds.
struct sl_play_job {
    double at_s;
    double prefill_s; // that a prefill worker has it
    double first_s;   // from there to the first token: shipping and a step
    double write_s;   // from there to the last one
    int64_t bytes;    // of a decode worker's arena, from the beginning of prefill to the end
};

struct sl_play {
    double in_time; // share of jobs whose first token came within ttft_s
    double p50_s, p90_s, p99_s;
    double waited_prefill_s, waited_decode_s; // all jobs together: for a prefill worker, and then for a place in decode
};

struct sl_play_config {
    const struct sl_play_job *jobs; // [n], in order of time; none has more bytes than an arena
    int64_t n;
    int64_t n_prefill, n_decode;   // workers, at least 1 each
    int64_t arena_bytes, n_places; // of a decode worker
    double ttft_s;
};

// SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_play(const struct sl_play_config *config, struct sl_play *play_out, struct sl_error *err);
