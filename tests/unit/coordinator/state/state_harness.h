// SPDX-License-Identifier: Apache-2.0
// Purpose: jobs that the test moves from state to state, a folder that keeps them, and the jobs that it restores.
#pragma once

#include "coordinator/state/state.h"

#define HARNESS_VOCABULARY 1000
#define HARNESS_NEW_TOKENS 400
#define HARNESS_MAX_JOBS   256

// QUEUED, of three prompt tokens.
struct sl_job *harness_job(const char *id);
// To DECODING, then tokens up to this many in all; token i is 10 + i.
void harness_decode(struct sl_job *job, int n_tokens);
void harness_finish(struct sl_job *job);

struct harness {
    struct sl_state *state;
    struct sl_job *jobs[HARNESS_MAX_JOBS]; // as they were restored, oldest first
    int n_jobs, n_prompt_tokens;           // of the last one
    bool no_reuse;                         // of the last one
};
enum sl_status harness_open(struct harness *harness, const char *folder, int64_t max_bytes, struct sl_error *err);
void harness_close(struct harness *harness); // releases the jobs, too

// Watchers may see all of its events.
void harness_await_told(struct sl_job *job);
struct sl_state_stats harness_stats(struct harness *harness);
// Until so many jobs are on disk, and so many have been lost.
void harness_await(struct harness *harness, int64_t n_jobs, int64_t n_lost);
// Every event of `now` is that of `before`, under its number, as far as it has any. Returns how many it has.
int64_t harness_assert_same_events(struct sl_job *before, struct sl_job *now);
