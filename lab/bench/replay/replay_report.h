// SPDX-License-Identifier: Apache-2.0
// Purpose: replays of one workload for every policy and size (store_replay.h), as JSON lines, a table and a picture.
#pragma once

#include "lab/bench/replay/store_replay.h"

#define SL_REPLAY_MAX_SIZES    16
#define SL_REPLAY_MAX_POLICIES 16
#define SL_REPLAY_CHUNK_TOKENS 512 // of prefill workers, by default

struct sl_replay_report {
    struct sl_replay_config config;     // the caller's, but for workload, policy and store_bytes
    const char *source;                 // of the workload, for a person
    struct sl_workload workload;        // the caller cleans it up
    int64_t sizes[SL_REPLAY_MAX_SIZES]; // of the store, bytes
    int n_sizes, n_policies;
    // [n_sizes][n_policies], in the order of sl_eviction_at(); without requests: it was not replayed
    struct sl_replay_result results[SL_REPLAY_MAX_SIZES][SL_REPLAY_MAX_POLICIES];
    double limit;       // hit share by tokens of a store that never evicts
    double total_bytes; // of the capsules of all requests
};

struct sl_replay_source {
    const char *trace; // a file; NULL: drawn conversations
    int64_t n_requests;
    uint64_t seed; // of these
};

// Loads the workload and computes the limit and the bytes. SL_ERR_INVALID names the line; SL_ERR_NOT_FOUND.
enum sl_status sl_replay_load(struct sl_replay_report *report, const struct sl_replay_source *source,
                              struct sl_error *err);
// Replays every size under every policy; json: prints a line for each. After a failure the results so far are there.
enum sl_status sl_replay_all(struct sl_replay_report *report, bool json, struct sl_error *err);

void sl_replay_print_table(const struct sl_replay_report *report);
// Draws the hit share by size, and the prefill time that each policy saves beyond the first one.
enum sl_status sl_replay_draw(const struct sl_replay_report *report, const char *png, struct sl_error *err);
