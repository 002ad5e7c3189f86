// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the prefill worker: reads prompts, compresses, ships capsules to decode workers and keeps copies in the
 *          kvstore.
 *
 * Design: one thread owns the engine and reads several prompts in turn, a step of one after a step of another
 *         (prefill/schedule.h chooses). The handler of each Run call runs on its own thread: it looks for a stored
 *         prefix first, reports progress while the engine works, waits for the ship and answers. The engine's thread
 *         starts to ship each layer as soon as it is final; the fabric's thread sends it.
 *
 * Invariants: a prompt is opened when all memory that reading it may take from the arena is promised to it, in addition
 *             to the memory that open prompts may still take. So no prompt runs out of memory because of another one.
 *             Memory is promised in order of arrival.
 */
#pragma once

#include <stdio.h>

#include "base/lease_id.h"
#include "engine/kvcache/capsule.h"
#include "net/node/node.h"

struct sl_prefill_limits {
    int64_t chunk_tokens;    // largest chunk that a recipe may ask for
    int64_t checkpoint_ms;   // time of reading after which the archive stores what was read; 0: never
    double checkpoint_share; // the most of a store's arena that a checkpoint takes
};

// Rows for the member `limits` of `type`.
#define SL_PREFILL_OPTIONS(type)                                                                                       \
    SL_OPTION_ROW("max-chunk", 0, SL_OPTION_INT, "3072", "TOKENS", "largest chunk that a recipe may ask for",          \
                  SL_FIELD(type, limits.chunk_tokens), 64, 8192),                                                      \
        SL_OPTION_ROW("checkpoint-after", 0, SL_OPTION_DURATION, "10s", "TIME",                                        \
                      "store what was read of a long prompt after this time, and again after this time when half as "  \
                      "many tokens more were read; 0: never",                                                          \
                      SL_FIELD(type, limits.checkpoint_ms), 0, 86400000),                                              \
        SL_OPTION_ROW("checkpoint-share", 0, SL_OPTION_FLOAT, "0.25", "SHARE",                                         \
                      "a prompt's checkpoint takes at most this share of its store's --arena",                         \
                      SL_FIELD(type, limits.checkpoint_share), 0, 1)

struct sl_prefill_config {
    struct sl_node_config node; // first member: the option table depends on it
    struct sl_prefill_limits limits;
};

// Runs a worker: opens it, serves until SIGTERM, closes it. config: the `node` of a struct sl_prefill_config.
enum sl_status sl_prefill_run(const struct sl_node_config *config, struct sl_error *err);

// ---- inside another worker ----------------------------------------------------------------------------------------

/*
 * The worker that writes the answers of the prompts that are read in its process. It owns the node and the engine's
 * thread, and takes sessions over instead of having them shipped. A prompt with a destination is shipped nevertheless.
 */
struct sl_prefill_host {
    void (*wake_fn)(void *arg); // sl_prefill_turn() has something to do. Any thread
    // Frees memory that no job waits for, for a request of `bytes`. False: there is none, or too little. Any thread
    bool (*drop_fn)(void *arg, size_t bytes);
    // Takes the session of a prompt that has been read, with the promise of promised_bytes beside it. On failure both
    // stay the caller's.
    enum sl_status (*take_fn)(void *arg, const struct sl_capsule_id *id, struct sl_session **session_inout,
                              size_t promised_bytes, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
    void *arg;
};

struct sl_prefill;

// Opens a prefill worker on the host's node, whose engine has at least limits->chunk_tokens rows. The engine's own
// activations are the prefill worker's from then on. *host is copied.
enum sl_status sl_prefill_open(const struct sl_prefill_limits *limits, struct sl_node *node,
                               const struct sl_prefill_host *host, struct sl_prefill **prefill_out,
                               struct sl_error *err);
void sl_prefill_close(struct sl_prefill **prefill); // after the last call and the last turn. Accepts NULL, nulls

struct sl_rpc_implementation sl_prefill_rpc(struct sl_prefill *prefill); // sluice.v1.Prefill
int64_t sl_prefill_n_jobs(struct sl_prefill *prefill);                   // that are being read, or wait to be
void sl_prefill_write_metrics(struct sl_prefill *prefill, FILE *page);

enum sl_prefill_turn {
    SL_PREFILL_IDLE,  // no prompt is there
    SL_PREFILL_WAITS, // for memory, or for copies
    SL_PREFILL_READS  // a layer was computed
};
// Accepts new prompts, and reads one layer of one pass. The engine's thread only.
enum sl_prefill_turn sl_prefill_turn(struct sl_prefill *prefill);
