// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the prefill worker: reads prompts, compresses, ships capsules to decode workers and keeps copies in the
 *          kvstore.
 *
 * Design: one thread owns the engine and reads several prompts by turns, a step of one after a step of another
 *         (prefill/schedule.h says whose). The handler of each Run call waits beside it: it looks for a stored prefix
 *         first, reports progress while the engine works, waits for the ship and answers. Layers are shipped by the
 *         engine's thread the moment they are final; sending itself is the fabric's thread's work.
 *
 * Invariants: a prompt is opened when all that reading it may take from the arena is promised to it, beside what those
 *             that are open may still take: none runs out of memory half way through because of another. Memory is
 *             promised in order of arrival.
 */
#pragma once

#include "net/node/node.h"

struct sl_prefill_config {
    struct sl_node_config node; // first: the option table counts on it
    int64_t chunk_tokens;       // largest chunk that a recipe may ask for
};

// The whole life of a worker: open, serve until SIGTERM, close.
enum sl_status sl_prefill_run(const struct sl_prefill_config *config, struct sl_error *err);
