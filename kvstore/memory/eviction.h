// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the eviction policies of a store: which capsule goes first when memory is needed.
 *
 * Design: a policy is a row of a table with a pure function that ranks one capsule from its numbers. The capsule cache
 *         evicts the lowest rank, and of equal ranks the least recently used one. No policy sees a capsule that is
 *         pinned, kept or protected: the cache leaves those out.
 *
 * To add one: a function and a row in eviction.c; `sluice bench evict` compares it with the others.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_EVICTION_DEFAULT "cost"
#define SL_EVICTION_TTL     "1h"
// The most capsules that one eviction ranks, in a round through all of them; the least recently used one is ranked as
// well. So an eviction takes a bounded time, and chooses nearly as well. Policies that go by use rank nothing.
#define SL_EVICTION_RANKED 256

// The numbers of a capsule that policies rank by.
struct sl_eviction_entry {
    int64_t n_tokens;
    int64_t shared_tokens; // the first of these tokens, with which another capsule in memory begins as well
    size_t bytes;          // of its body
    int64_t used_ns;       // when it was last used
    int64_t idle_ns;       // time since then
    int64_t age_ns;        // time since it was stored
    int64_t ttl_ns;        // --ttl
    double ms_per_token;   // time of reading the first tokens of a prompt, as its prefill worker measured it
    size_t tenant_bytes;   // of all capsules of its tenant
    size_t share_bytes;    // the arena divided by the number of tenants that have capsules
};

// The lowest goes first; `then` decides between equal ones.
struct sl_eviction_rank {
    double first, then;
};

bool sl_eviction_is_lower(const struct sl_eviction_rank *a, const struct sl_eviction_rank *b);

struct sl_eviction_policy {
    const char *name, *summary;
    struct sl_eviction_rank (*rank)(const struct sl_eviction_entry *entry);
    bool is_by_use; // ranks capsules in the order of their last use
};

struct sl_eviction_config {
    const struct sl_eviction_policy *policy;
    int64_t ttl_ms;
    int64_t (*now_ns)(void *arg); // the clock; of a capsule cache alone; NULL: sl_now_ns()
    void *arg;
};

const struct sl_eviction_policy *sl_eviction_at(size_t i);           // NULL: the table has no row i
const struct sl_eviction_policy *sl_eviction_find(const char *name); // NULL: no policy has this name

/*
 * Estimates the time that reading tokens [from, to) of a prompt takes, in units of an early token's: attention makes
 * later tokens more expensive, twice as expensive after 32,768 tokens.
 */
double sl_eviction_read_cost(int64_t from, int64_t to);

// Returns ms_per_token of a capsule of n_tokens, the last read_tokens of which took read_ms; if they were not measured (0),
// the average of such times, which this updates and which begins with 0, or 1 ms.
double sl_eviction_ms_per_token(double *average_inout, double read_ms, int64_t read_tokens, int64_t n_tokens);
