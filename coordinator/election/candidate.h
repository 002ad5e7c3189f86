// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one candidate for the leader key: see election.h.
 *
 *               key is free: grant, take 
 *     STANDBY ------------------------------> LEADS --------------------------> FENCED
 *        ^  (no lease)                          ^     fence_ms since the start    | |
 *        |                                      |     of the last renewal         | |
 *        |                                      +---- renewed, the key is ours ---+ |
 *        +------ the lease has ended, or the key is another's, or it withdrew ------+
 *
 * Design: FENCED is not stored: it is LEADS after its time has run out, so no thread has to detect it. A fenced candidate keeps its lease.
 *         If it still holds the leader key when etcd is back, no other candidate held the key in between, and the term goes on. When the
 *         reply to a take is lost, the candidate has a lease and no term: the next poll of the key tells whether it leads.
 * Threads: step() from one thread; the rest from any.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "coordinator/election/leader_key.h"

struct sl_candidate_config {
    const struct sl_leader_key_ops *ops;
    void *arg;
    int64_t (*now_fn)(void); // monotonic
    const char *address;
    int64_t ttl_ms, renew_ms, fence_ms;
};

struct sl_candidate {
    struct sl_candidate_config config;
    // Used by step()'s thread only.
    int64_t lease; // 0: none
    bool complained;

    pthread_mutex_t mutex; // guards what follows
    int64_t term, last_term, led_until_ns;
    char leader[SL_LEADER_BYTES];
    bool withdrawn;
};

void sl_candidate_init(struct sl_candidate *candidate, const struct sl_candidate_config *config);
void sl_candidate_cleanup(struct sl_candidate *candidate);

// Does what is due; blocks as long as the operations on the leader key do. Returns the latest time at which it must be called again.
int64_t sl_candidate_step(struct sl_candidate *candidate);

// Gives the lease back: the last call of step()'s thread.
void sl_candidate_leave(struct sl_candidate *candidate);

// See election.h.
int64_t sl_candidate_term(struct sl_candidate *candidate);
int64_t sl_candidate_last_term(struct sl_candidate *candidate);
void sl_candidate_leader(struct sl_candidate *candidate, char leader_out[SL_LEADER_BYTES]);
void sl_candidate_withdraw(struct sl_candidate *candidate);
