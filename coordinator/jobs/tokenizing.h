// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shares the coordinator's processors among the tenants whose requests are tokenized.
 *
 * Design: a request is tokenized while it has one of as many turns as there are processors. Every few milliseconds it gives
 *         its turn back, and waits for the next, if others wait. A tenant has at most its share of the turns, so that a
 *         processor is free for others at once. The next turn goes to the tenant that has used least time; within a
 *         tenant, to the request that waits longest. A tenant that comes anew begins with the time of the last turn, so
 *         that it neither pays for the past nor is paid for it.
 * Threads: any number; a thread or fiber has one turn at a time.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fiber/bell.h"
#include "base/status.h"
#include "coordinator/workers/tenants.h"

struct sl_tokenizing;

// A request that is tokenized, or waits for it. Used by the functions below only; its address must not change.
struct sl_tokenizing_turn {
    struct sl_tokenizing *tokenizing;
    struct sl_tokenizing_turn *next;
    struct sl_tenant *tenant;
    struct sl_bell granted;
    bool has_turn;
    int64_t deadline_ns, since_ns;
};

// Creates the turns; n_turns 0: one for each processor.
enum sl_status sl_tokenizing_create(int n_turns, struct sl_tokenizing **tokenizing_out, struct sl_error *err);
void sl_tokenizing_destroy(struct sl_tokenizing **tokenizing); // no turn is left; accepts NULL, nulls

/*
 * Waits for a turn. Until sl_tokenizing_end(), this thread's sl_tokenizer_encode() shares its turn, and fails with
 * SL_ERR_DEADLINE after the deadline. tenants outlives the turn. SL_ERR_DEADLINE: no turn came in time; do not end it then.
 */
enum sl_status sl_tokenizing_begin(struct sl_tokenizing *tokenizing, struct sl_tenants *tenants, const char *tenant,
                                   int64_t deadline_ns, struct sl_tokenizing_turn *turn_out, struct sl_error *err);
void sl_tokenizing_end(struct sl_tokenizing_turn *turn);

struct sl_tokenizing_stats {
    uint64_t n_waits;   // for a turn
    uint64_t n_expired; // deadlines that passed while a request waited or was tokenized
};
void sl_tokenizing_get_stats(struct sl_tokenizing *tokenizing, struct sl_tokenizing_stats *stats_out);
