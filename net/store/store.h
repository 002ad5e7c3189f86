// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a worker's client of the kvstore: finds a stored prefix of a prompt, and fetches it.
 * Threads: any number. Every call has a deadline of its own.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/kvcache/capsule.h"
#include "net/node/node.h"
#include "net/store/store_channels.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"

struct sl_store_client;

enum sl_status sl_store_client_create(struct sl_node *node, struct sl_store_client **client_out, struct sl_error *err);
void sl_store_client_destroy(struct sl_store_client **client);

struct sl_store_channels *sl_store_client_channels(struct sl_store_client *client); // owned by the client

/*
 * Returns the key of the state between two chunks after n_tokens. It depends on the budgets of the layers that have
 * evicted by then (sl_plan_evicts_within()); a budget that is a share of the prompt differs with the prompt's length.
 * Before the first eviction, and if a recipe evicts at the end only, every prompt with the same beginning goes through
 * the same state. A finished capsule of these tokens has been evicted to its end and quantized, so the key is not the
 * prefix's plain hash.
 */
struct sl_hash128 sl_store_boundary_hash(const struct sl_plan *plan, int64_t n_tokens,
                                         const struct sl_hash128 *prefix_hash);

// A job's view of its store. `alive` is called at least every 250 ms during a call; false gives the call up.
struct sl_store_job {
    struct sl_store_client *client;
    const char *address;
    const struct sl_plan *plan;
    const struct sl_capsule_id *id;
    const int32_t *tokens; // [plan->n_prompt]
    const struct sl_hash128 *salt;
    struct sl_rpc_call *parent; // every call inherits its cancellation and deadline
    bool (*alive)(void *arg);
    void *arg;
    int64_t max_slots;    // of the session that a capsule becomes; 0: the plan's
    int64_t whole_tokens; // the prompt is known to begin with a capsule of this many tokens; 0: not known
};

struct sl_store_match {
    int64_t n_tokens;       // tokens of the prompt that are covered
    int64_t capsule_tokens; // tokens that the capsule holds
    size_t capsule_bytes;
    struct sl_hash128 capsule_hash; // the id in the capsule
    bool is_checkpoint;             // of a prompt that is still being read; false from an older store
    char lease_id[64];
};

/*
 * Finds the longest stored prefix for this model and recipe. A recipe that evicts can resume only from a state between
 * two chunks; other recipes from any multiple of SL_PREFIX_BLOCK and, unless they offload, from the end of a capsule: its
 * last page is not packed. SL_ERR_NOT_FOUND: none. SL_ERR_PEER_STALE: the store has failed lately and was not asked.
 */
enum sl_status sl_store_lookup(const struct sl_store_job *job, struct sl_store_match *match_out, struct sl_error *err);

// Returns true if the match is the finished capsule of the whole prompt.
static inline bool sl_store_match_is_whole(const struct sl_store_job *job, const struct sl_store_match *match) {
    return match->n_tokens == job->plan->n_prompt && match->capsule_tokens == match->n_tokens;
}

// Returns true if fetching costs less than reading: the whole capsule is transferred, even if only a small part of it
// is useful.
bool sl_store_match_pays(const struct sl_store_job *job, const struct sl_store_match *match);

// Asks the store to ship the matched capsule to `destination`; *bytes_out is the number of bytes shipped. Ends the lease: match->lease_id
// is empty then.
enum sl_status sl_store_fetch(const struct sl_store_job *job, struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, int64_t *bytes_out, struct sl_error *err);

// Fetches the matched capsule into this worker's arena and opens it as a session of all its tokens.
enum sl_status sl_store_receive(const struct sl_store_job *job, struct sl_store_match *match,
                                struct sl_session **session_out, struct sl_error *err);
// Does the same, and cuts the session to match->n_tokens.
enum sl_status sl_store_resume(const struct sl_store_job *job, struct sl_store_match *match,
                               struct sl_session **session_out, struct sl_error *err);

// Returns why a stored prefix that could not be had is not used, as answers name it.
Sluice__V1__NotCached sl_store_not_cached(enum sl_status status);

// Ends a lease at a store, of a match or of a grant; "": none. Best effort: if this fails, the lease expires.
void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id);
