// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds the prefill worker that has read a prompt with the same beginning.
 *
 * Design: a hash table from prefix key (engine/kvcache/capsule.h, mixed with the recipe) to worker, threaded on one list in
 *         order of use; at capacity the least recently used entry goes. Memory is taken once and never grows.
 *         It is a hint: a wrong answer costs time, never correctness. Workers are known by the hash of their name, so
 *         the index survives their restarts.
 * Threads: every function from any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_affinity;

enum sl_status sl_affinity_create(size_t max_entries, struct sl_affinity **affinity_out, struct sl_error *err);
void sl_affinity_destroy(struct sl_affinity **affinity);

// Records that `worker` has read the prefixes with these keys; keys[i] covers (i + 1) blocks.
void sl_affinity_put(struct sl_affinity *affinity, const uint64_t *keys, int64_t n_keys, uint64_t worker);

// Returns the blocks of the longest known prefix, and writes the worker that read it; 0 when none is known (*worker_out is then 0).
int64_t sl_affinity_match(struct sl_affinity *affinity, const uint64_t *keys, int64_t n_keys, uint64_t *worker_out);
