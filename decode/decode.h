// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the decode worker: receives capsules into leased memory and writes answers from them.
 *
 * Design: one thread owns the engine and steps all sequences together: each step is one forward pass over one token of
 *         every sequence (and the few prompt tokens that a new one still has to read). Sequences join and leave between
 *         steps. The handler of each Run call waits for its capsule, opens it as a session and passes on what the
 *         engine's thread writes.
 *         An aggregated worker is a prefill worker, too (prefill/prefill.h): its engine's thread reads layers of prompts
 *         between two steps, and the session of a prompt stays where it is.
 */
#pragma once

#include "net/node/node.h"
#include "prefill/prefill.h"

struct sl_decode_config {
    struct sl_node_config node;      // first member: the option table depends on it
    bool aggregated;                 // read prompts, too
    struct sl_prefill_limits limits; // with `aggregated`
    int64_t retrieve_deadline_ms;    // deadline of one reply about offloaded layers; then a layer continues without it
    int64_t retrieve_lost_ms;        // time without any reply after which the job fails
};

// Checks the options that a decode worker alone has. SL_ERR_INVALID names the option.
enum sl_status sl_decode_config_check(const struct sl_node_config *config, struct sl_error *err);

// Runs a worker: opens it, serves until SIGTERM, closes it. config: the `node` of a struct sl_decode_config.
enum sl_status sl_decode_run(const struct sl_node_config *config, struct sl_error *err);
