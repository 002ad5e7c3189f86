// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses workers. Pure functions over a snapshot of the workers: the same snapshot gives the same answer.
 *
 * Design: read, here, write   the worker of least cost by the policy of the cluster (sl_route_policies, in route.c). Policy
 *                   affinity reads where prompts wait least for each other. Workers read the shortest prompt first
 *                   (prefill/schedule.h), so of two prompts the longer one waits for the shorter one:
 *
 *                       delay    sum over the prompts in line of min(tokens of that prompt, tokens of this one)
 *
 *                   Tokens that a store probably has are not read, by no worker, and count nowhere. It writes where the arena will be the least full; a worker that holds the capsule of the job's
 *                   document needs less. "Here" is a decode worker that reads prompts, too; what it reads counts twice
 *                   while it runs other jobs, because it gives them half of its time.
 *         store     rendezvous hashing: prompts with the same beginning meet in the same store, and when a store comes
 *                   or goes only its own share moves.
 *         shares    the stores in the order of the same hashing, so that prompts with the same beginning meet here too:
 *                   as many offloaded heads to each as it has room for; a second replica only in stores that the first
 *                   left alone.
 *         Ties go to the worker that was given the fewest jobs so far, so that an idle cluster takes turns.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define SL_ROUTE_MAX_VIEWS 1024

struct sl_route_view {
    const char *name;
    bool ready;             // neither draining nor lost nor suspected
    bool avoid;             // failed this job before: only if no other is ready
    int64_t capacity_bytes; // of the arena
    int64_t claimed_bytes;  // promised to admitted jobs
    int64_t staging_bytes;  // memory for what travels, where it is not the arena's; 0: it is
    int64_t claimed_staging_bytes;
    int64_t claimed_tokens; // still to be read (prefill)
    int64_t delay_tokens;   // of this prompt's wait for others in line, and of theirs for it (prefill)
    int64_t matched_tokens; // of this job's prompt that it has read before: of equal workers, it is preferred (prefill)
    int64_t shared_bytes;   // of this job's need that it has claimed for running jobs that share them (decode)
    int64_t held_bytes;     // of this job's need that it probably has, claimed or not: preferred (decode)
    int jobs, max_jobs;     // admitted to it now
    int64_t jobs_ever;
    bool reads; // a decode worker that reads prompts, too
};

// The memory that a job needs of a worker.
struct sl_route_need {
    int64_t bytes;         // of its arena
    int64_t staging_bytes; // of its staging memory, if it has any
};

struct sl_route_policy {
    const char *name, *summary;
    // Both return a cost. budget_tokens: what a worker can read until the job's deadline; INT64_MAX: not known.
    double (*read_fn)(const struct sl_route_view *view, int64_t n_tokens, int64_t budget_tokens);
    double (*write_fn)(const struct sl_route_view *view, int64_t need_bytes);
};
extern const struct sl_route_policy sl_route_policies[]; // the default first; ends with a row without a name
// SL_ERR_INVALID: no policy has this name; the message lists them.
enum sl_status sl_route_policy_find(const char *name, const struct sl_route_policy **policy_out, struct sl_error *err);

struct sl_route_ask {
    const struct sl_route_policy *policy;
    struct sl_route_need need;
    int64_t n_tokens, budget_tokens; // of the prompt, to be read; as above
};

// All return an index, or -1 when no worker can take the job now.
int sl_route_prefill(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask);
int sl_route_decode(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask);
int sl_route_here(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask);
int sl_route_store(const struct sl_route_view *views, int n_views, uint64_t key);

// The offloaded heads of a session that stores are to hold: n of equal size, `replicas` times in different stores.
struct sl_route_offloaded_heads {
    int n, replicas;
    int64_t bytes; // of one
};

// Offloaded heads [first_offloaded_head, first_offloaded_head + n_offloaded_heads) of a session's offloaded layers go
// to views[view].
struct sl_route_share {
    int view, first_offloaded_head, n_offloaded_heads, replica;
};
/*
 * Chooses the stores for the offloaded heads, cut at the same offloaded heads in each replica. Returns the number of
 * shares, or -1 when there is no room now, or more than max_shares would be needed. Claims at most SL_STORE_FILL of a
 * store's capacity. idle: ignores what the stores hold for others; if -1 then, the session never fits.
 */
#define SL_STORE_FILL 0.9
int sl_route_shares(const struct sl_route_view *views, int n_views, uint64_t key,
                    const struct sl_route_offloaded_heads *offloaded_heads, bool idle,
                    struct sl_route_share *shares_out, int max_shares);
// Returns the most bytes that all stores that take jobs could hold when idle.
int64_t sl_route_store_room(const struct sl_route_view *views, int n_views);

int sl_route_count_ready(const struct sl_route_view *views, int n_views);

// Returns whether some worker that takes jobs could run the job when idle. If not, it can never fit.
bool sl_route_fits(const struct sl_route_view *views, int n_views, struct sl_route_need need);

// Returns the largest arena of a worker that takes jobs, 0 when there is none: a larger job can never fit.
int64_t sl_route_largest(const struct sl_route_view *views, int n_views);
