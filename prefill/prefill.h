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

#include "net/node/node.h"

struct sl_prefill_config {
    struct sl_node_config node; // first member: the option table depends on it
    int64_t chunk_tokens;       // largest chunk that a recipe may ask for
    int64_t checkpoint_ms;      // time of reading after which the archive stores what was read; 0: never
    double checkpoint_share;    // the most of a store's arena that a checkpoint takes
};

// Runs a worker: opens it, serves until SIGTERM, closes it.
enum sl_status sl_prefill_run(const struct sl_prefill_config *config, struct sl_error *err);
