// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: replays a trace against the memory of a store, to compare its eviction policies.
 *
 * Design: the store's own capsule cache and room work on an arena of address space: capsules have real headers, keys and
 *         sizes, and bodies that are never written. Time is the trace's. A request looks up its longest prefix under the
 *         prefill worker's rules. When its other tokens would have been read, by as many workers as that takes, its
 *         capsule is stored. Requests of one conversation (the same second block) belong to one tenant; tenant k draws
 *         1 / (k + 1) of the conversations of the first.
 */
#pragma once

#include "engine/kvcache/page.h"
#include "engine/kvcache/session.h"
#include "kvstore/memory/eviction.h"
#include "lab/simulate/workload.h"

#define SL_REPLAY_MAX_TENANTS 64

struct sl_replay_config {
    const struct sl_workload *workload;
    const struct sl_eviction_policy *policy;
    int64_t store_bytes, keep_ms, ttl_ms;
    struct sl_kv_geometry geometry;
    enum sl_kv_format format; // of full pages
    double ms_per_token;      // of a prompt's first tokens; later ones: sl_eviction_read_cost()
    int64_t chunk_tokens;     // a worker fetches no less
    int64_t n_tenants;        // 1 .. SL_REPLAY_MAX_TENANTS
    // Called for every request, may be NULL; the replay ends with a status that is not SL_OK.
    enum sl_status (*check)(void *arg, struct sl_error *err);
    void *arg;
};

struct sl_replay_tenant {
    int64_t prompt_tokens, hit_tokens;
};

struct sl_replay_result {
    int64_t n_requests, n_hits, prompt_tokens, hit_tokens;
    int64_t n_evicted, n_refused; // capsules; capsules that found no room
    double fetched_bytes, stored_bytes;
    int64_t most_bytes; // in the store at once
    double read_ms, saved_ms;
    struct sl_replay_tenant tenants[SL_REPLAY_MAX_TENANTS];
};

// Returns the bytes of the capsule of a prompt of n tokens, which keeps all of them.
enum sl_status sl_replay_capsule_bytes(const struct sl_replay_config *config, int64_t n_tokens, size_t *bytes_out,
                                       struct sl_error *err);

// SL_ERR_INVALID: the arena is too large, or a format has no such pages. SL_ERR_EXHAUSTED.
enum sl_status sl_replay_run(const struct sl_replay_config *config, struct sl_replay_result *result_out,
                             struct sl_error *err);
