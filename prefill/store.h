// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the kvstore as a prefill worker sees it: find a prefix, have it shipped, store a capsule.
 * Threads: any number. Every call has a deadline of its own.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/kvcache/capsule.h"
#include "net/node/node.h"
#include "prefill/store_channels.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"

struct sl_store_client;

enum sl_status sl_store_client_create(struct sl_node *node, struct sl_store_client **client_out, struct sl_error *err);
void sl_store_client_destroy(struct sl_store_client **client);

struct sl_store_channels *sl_store_client_channels(struct sl_store_client *client); // the client's

/*
 * Returns the key of the state between two chunks after n_tokens. It depends on the budgets of the layers that have
 * evicted by then (sl_plan_evicts_within()); a share is another budget for another length of the prompt. Before that,
 * and where a recipe evicts at the end alone, every prompt with the same beginning goes through the same state. A
 * finished capsule of these tokens has been evicted to its end and quantized, so the key is not the prefix's plain hash.
 */
struct sl_hash128 sl_store_boundary_hash(const struct sl_plan *plan, int64_t n_tokens,
                                         const struct sl_hash128 *prefix_hash);

// A job's view of its store. `alive` is called at least every 250 ms while a call is waited for; false gives it up.
struct sl_store_job {
    struct sl_store_client *client;
    const char *address;
    const struct sl_plan *plan;
    const struct sl_capsule_id *id;
    const int32_t *tokens; // [plan->n_prompt]
    const struct sl_hash128 *salt;
    struct sl_rpc_call *parent; // its cancellation and deadline are those of every call
    bool (*alive)(void *arg);
    void *arg;
};

struct sl_store_match {
    int64_t n_tokens;       // of the prompt that are covered
    int64_t capsule_tokens; // that the capsule holds
    size_t capsule_bytes;
    char lease_id[64];
};

/*
 * The longest stored prefix under this model and recipe. A recipe that evicts can only go on from a state between two
 * chunks, others from any multiple of SL_PREFIX_BLOCK. SL_ERR_NOT_FOUND: none.
 */
enum sl_status sl_store_lookup(const struct sl_store_job *job, struct sl_store_match *match_out, struct sl_error *err);

// True when the match is the finished capsule of the whole prompt.
static inline bool sl_store_match_is_whole(const struct sl_store_job *job, const struct sl_store_match *match) {
    return match->n_tokens == job->plan->n_prompt && match->capsule_tokens == match->n_tokens;
}

// Whether fetching costs less than reading: a capsule comes whole, however little of it is of use.
bool sl_store_match_pays(const struct sl_store_job *job, const struct sl_store_match *match);

// Have the matched capsule shipped to `destination`; *bytes_out is what was shipped.
enum sl_status sl_store_fetch(const struct sl_store_job *job, const struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, int64_t *bytes_out, struct sl_error *err);

// Fetch the match into this worker's arena and open it as a session of match->n_tokens tokens.
enum sl_status sl_store_resume(const struct sl_store_job *job, const struct sl_store_match *match,
                               struct sl_session **session_out, struct sl_error *err);

// End a lease at a store: a match, or a grant. Best effort: what is lost ends with the lease.
void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id);
