// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides when a job may start. Admission counts projected KV bytes, not jobs: what the decode worker will
 *          hold when the last token is written, and what the prefill worker holds at its worst, both under the job's
 *          recipe.
 *
 * Design: refused at once   it fits no worker of the cluster even when idle (the text has the numbers), or the line is
 *                           full (the text says when a place may be free)
 *         in line           it fits, but not now. First is the job of the tenant that has fewest running, and of a
 *                           tenant, or between equal ones, the one that came first: a big job is not starved by small
 *                           ones that could slip by, nor a tenant by one that asks more. A retry keeps the place of its
 *                           job. A job that lacks a worker holds up no other: it is passed over until that worker is
 *                           ready. While another tenant asks, a tenant has at most half of the places and, unless one
 *                           job needs more, of the KV memory, and one prompt for each worker that reads (two with those
 *                           that wait for a store's disk), so that others find room and a short line at once. While
 *                           each of these workers has a prompt, a tenant has none more if one of them is of a tenant
 *                           that had less of their time; but a tenant without a prompt there waits at most ten seconds
 *                           for those of others, however many new tenants come.
 *         admitted          the job holds a claim on one worker of each role, or on one of both, until it gives it back
 * Invariants: the sum of the claims on a worker never exceeds its arena; all gauges are 0 when no job lives.
 * Threads: every function from any thread. Lock order: admission, then registry.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fiber/bell.h"
#include "base/status.h"
#include "coordinator/workers/affinity.h"
#include "coordinator/workers/demand.h"
#include "coordinator/workers/place.h"
#include "coordinator/workers/registry.h"
#include "coordinator/workers/route.h"
#include "coordinator/workers/tenants.h"

struct sl_admission;

enum sl_status sl_admission_create(struct sl_registry *registry, struct sl_affinity *affinity, int max_running,
                                   int max_queued, struct sl_admission **admission_out, struct sl_error *err);
// Replaces the default policy; before the first job.
void sl_admission_route_by(struct sl_admission *admission, const struct sl_route_policy *policy);
void sl_admission_destroy(struct sl_admission **admission);

// A place in the line; part of a job. Zero-initialised, then used by the functions below only.
struct sl_queue_place {
    struct sl_tenant *tenant; // set and referenced by its owner; NULL: no tenant
    struct sl_queue_place *next, *prev;
    uint64_t ticket;
    bool in_line, was_admitted;
    bool reads;        // the job needs a worker that reads its prompt
    bool lacks_worker; // a role that it needs has no ready worker: it cannot be the first
    int64_t bytes;     // of the decode worker, without those that it would share
    int64_t admitted_ns;
    struct sl_bell turn; // of the waiting job: the place is the first, or room may have appeared
};

enum sl_prompt_state {
    SL_PROMPT_NOT_BEGUN,
    SL_PROMPT_READING,
    SL_PROMPT_RESTORING, // a store reads the job's document back from its disk, so no worker has to read its text
    SL_PROMPT_READ,      // it may still be shipped
};

// Workers promised to a job. Owned by the caller between claim and release.
struct sl_claim {
    struct sl_worker *prefill; // NULL when there is nothing to prefill, or no more
    struct sl_worker *decode;
    int64_t line_tokens; // that are to be read: probably no store has them
    enum sl_prompt_state prompt;
    bool is_here;                 // both are one worker, which reads the prompt and writes the answer
    char why[SL_PLACE_WHY_BYTES]; // why the prompt is read there; "" where there was no choice
    struct sl_queue_place *place; // the claim's place, which outlives it
    struct {
        struct sl_worker *store;
        int first_offloaded_head, n_offloaded_heads, replica;
    } shares[SL_MAX_SHARES];
    int n_shares;
    struct sl_demand demand; // without the bytes that it shares with other jobs
    uint64_t held_key;       // of the document whose capsule it shares on the decode worker; 0: none
};

// Workers that have failed this job before: used only when there is no other.
#define SL_MAX_AVOIDED 8
struct sl_avoid {
    const struct sl_worker *workers[SL_MAX_AVOIDED]; // compared, never followed
    int n;
};

static inline void sl_avoid_add(struct sl_avoid *avoid, const struct sl_worker *worker) {
    for (int i = 0; i < avoid->n; i++) {
        if (avoid->workers[i] == worker) {
            return;
        }
    }
    if (avoid->n < SL_MAX_AVOIDED) {
        avoid->workers[avoid->n++] = worker;
    }
}

/*
 * Takes a place in the line. SL_ERR_EXHAUSTED: the line, or the tenant's share of it, is full. SL_ERR_PRECONDITION: the
 * job can never fit, so a retry is useless before the cluster or the job changes. err has the numbers.
 */
enum sl_status sl_admission_enter(struct sl_admission *admission, const struct sl_demand *demand,
                                  struct sl_queue_place *place, struct sl_error *err);

// Returns the bytes of the largest arena among decode workers that take jobs; 0: there is none.
int64_t sl_admission_largest_decode(struct sl_admission *admission);

// Lets other places pass this one until its job claims workers.
void sl_admission_let_pass(struct sl_admission *admission, struct sl_queue_place *place);

// Puts a job of an earlier process back in the line, even when the line is full.
void sl_admission_enter_again(struct sl_admission *admission, struct sl_queue_place *place);

struct sl_claim_spec {
    const struct sl_demand *demand;
    const uint64_t *keys; // [n_keys] the prompt's prefix keys (already mixed with the recipe)
    int64_t n_keys;
    bool reads_all; // whatever stores have (no_reuse)
    // The document that the decode worker takes from a store, or holds since an earlier job
    uint64_t held_key;        // 0: none
    int64_t held_bytes;       // of demand->decode_bytes: jobs on the document share them
    const char (*stores)[64]; // [n_stores] that have the offloaded layers of the document that the prompt begins with
    int n_stores;
    const struct sl_avoid *avoid;
    int64_t deadline_ns; // of the job; 0: none
    // Name of the decode worker that it must be; NULL: any. SL_ERR_PEER_STALE: it takes no jobs; _EXHAUSTED: it is full
    const char *only;
};

/*
 * Waits at most wait_ms for this place to be the first, and for workers that have room, and claims them.
 * SL_AGAIN: not yet; the place is kept. SL_ERR_PEER_LOST: no worker of a role is ready; err says which.
 * SL_ERR_PRECONDITION: it fits none of the workers that are ready now. SL_ERR_EXHAUSTED: other jobs use the memory of a
 * document's store (in_one_store).
 */
enum sl_status sl_admission_claim(struct sl_admission *admission, struct sl_queue_place *place,
                                  const struct sl_claim_spec *spec, int64_t wait_ms, struct sl_claim *claim_out,
                                  struct sl_error *err);

// Returns the place whose turn it is, for a caller that claims without waiting; NULL: no place in the line can start.
struct sl_queue_place *sl_admission_first(struct sl_admission *admission);

// Returns whether kvstores that the job does not avoid have room for its offloaded layers now.
bool sl_admission_has_other_stores(struct sl_admission *admission, const struct sl_demand *demand,
                                   const struct sl_avoid *avoid);

// Notes how long prefill took, for the choice between places (place.h): n_tokens were read, and `bytes` shipped after
// that.
void sl_admission_note_prefill(struct sl_admission *admission, int64_t n_tokens, double read_ms, int64_t bytes,
                               double ship_ms);

// Returns how long the job of this demand waits for its document to come back from a store's disk (place.h).
int64_t sl_admission_restore_ms(struct sl_admission *admission, const struct sl_demand *demand, int64_t deadline_ns);

// Notes what a report says of the claim's prompt. After SL_PROMPT_READ nothing changes: the worker may read another.
void sl_admission_note_prompt(struct sl_admission *admission, struct sl_claim *claim, enum sl_prompt_state state);
// Releases the prefill worker for other jobs, once the prompt has been read and shipped.
void sl_admission_release_prefill(struct sl_admission *admission, struct sl_claim *claim);
// Releases the whole claim. Idempotent.
void sl_admission_release(struct sl_admission *admission, struct sl_claim *claim);

// Ends the job's place: it leaves the line if it was still in it.
void sl_admission_leave(struct sl_admission *admission, struct sl_queue_place *place);

// Lets workers change their duties with the load (registry.h), counts the places that tenants share, and wakes the
// first job in line. Called regularly. Returns whether there may be room.
bool sl_admission_rebalance(struct sl_admission *admission, int64_t now_ns);

struct sl_admission_stats {
    int64_t n_queued;      // never admitted yet
    int64_t n_running;     // holding a claim
    int64_t claimed_bytes; // not yet released, on all workers
    int64_t n_rebalanced;  // workers that have begun to go over to another role
    const char *routing;   // the policy's name
};
void sl_admission_get_stats(struct sl_admission *admission, struct sl_admission_stats *stats_out);
