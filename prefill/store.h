// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the kvstore as a prefill worker sees it: find a prefix, have it shipped, store a capsule.
 * Threads: any number. Every call has a deadline of its own.
 */
#ifndef SL_PREFILL_STORE_H
#define SL_PREFILL_STORE_H

#include "compress/recipe.h"
#include "kvcache/capsule.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "rpc/rpc.h"
#include "service/node.h"

struct sl_store_client;

enum sl_status sl_store_client_create(struct sl_node *node, struct sl_store_client **client_out, struct sl_error *err);
void sl_store_client_destroy(struct sl_store_client **client);

// The channel to a store; channels are kept for the life of the client.
enum sl_status sl_store_client_channel(struct sl_store_client *client, const char *address,
                                       struct sl_rpc_channel **channel_out, struct sl_error *err);

struct sl_store_match {
    int64_t n_tokens;       // of the prompt that are covered
    int64_t capsule_tokens; // that the capsule holds
    size_t capsule_bytes;
    char lease_id[64];
};

/*
 * The longest stored prefix of tokens under this model and recipe. A recipe that evicts can only go on from where it
 * would have had a chunk boundary, others from any multiple of SL_PREFIX_BLOCK. SL_ERR_NOT_FOUND: none.
 */
enum sl_status sl_store_lookup(struct sl_store_client *client, const char *address, const struct sl_plan *plan,
                               const struct sl_capsule_id *id, const int32_t *tokens, struct sl_rpc_call *parent,
                               struct sl_store_match *match_out, struct sl_error *err);

// Have the matched capsule shipped to `destination`; *bytes_out is what was shipped.
enum sl_status sl_store_fetch(struct sl_store_client *client, const char *address, const struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, struct sl_rpc_call *parent, int64_t *bytes_out,
                              struct sl_error *err);

// Give the match back without fetching (or after).
void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id);

/*
 * Fetch the match into this worker's arena and open it as a session of match->n_tokens tokens.
 */
enum sl_status sl_store_resume(struct sl_store_client *client, const char *address, const struct sl_store_match *match,
                               const struct sl_plan *plan, const struct sl_capsule_id *id, struct sl_rpc_call *parent,
                               struct sl_session **session_out, struct sl_error *err);

#endif
