// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one that stands for the seat: see election.h.
 *
 *                seat is free: grant, take
 *     STANDBY ------------------------------> LEADS --------------------------> FENCED
 *        ^  (no lease)                          ^     fence_ms since the start    | |
 *        |                                      |     of the last renewal         | |
 *        |                                      +---- renewed, the seat is ours --+ |
 *        +------ the lease has ended, or the seat is another's, or resigned --------+
 *
 * Design: FENCED is no field: it is LEADS whose time has run out, so that it needs nobody to notice. It keeps its lease: a seat that is
 *         still ours when etcd is back was nobody else's in between, and the term goes on. A take whose answer was lost leaves us with
 *         a lease and without a term: the next look tells whether we sit.
 * Threads: step() from one thread; the rest from any.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "coordinator/election/seat.h"

struct sl_candidate_config {
    const struct sl_seat_ops *ops;
    void *arg;
    int64_t (*now_fn)(void); // monotonic
    const char *address;
    int64_t ttl_ms, renew_ms, fence_ms;
};

struct sl_candidate {
    struct sl_candidate_config config;
    // Of step()'s thread.
    int64_t lease; // 0: none
    bool complained;

    pthread_mutex_t mutex; // guards what follows
    int64_t term, last_term, led_until_ns;
    char leader[SL_LEADER_BYTES];
    bool resigned, withdrawn;
    int64_t stand_again_ns;
};

void sl_candidate_init(struct sl_candidate *candidate, const struct sl_candidate_config *config);
void sl_candidate_cleanup(struct sl_candidate *candidate);

// Do what is due; blocks as long as the seat's operations do. Returns when it wants to be called again, at the latest.
int64_t sl_candidate_step(struct sl_candidate *candidate);

// The last thing that step()'s thread does: the lease goes back.
void sl_candidate_leave(struct sl_candidate *candidate);

// As of election.h.
int64_t sl_candidate_term(struct sl_candidate *candidate);
int64_t sl_candidate_last_term(struct sl_candidate *candidate);
void sl_candidate_leader(struct sl_candidate *candidate, char leader_out[SL_LEADER_BYTES]);
void sl_candidate_resign(struct sl_candidate *candidate, int64_t term, const char *why);
void sl_candidate_withdraw(struct sl_candidate *candidate);
