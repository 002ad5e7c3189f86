// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the end of an operation for which a caller waits and which it may give up.
 *
 * Threads: the progress thread completes operations, and callers give them up: only the thread that moves an outcome
 *          from OPEN to ENDING may write it, and the caller's buffer with it.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/fabric/core/wire.h"

enum sl_outcome_state { OUTCOME_OPEN, OUTCOME_ENDING, OUTCOME_DONE };

struct sl_outcome {
    _Atomic(enum sl_outcome_state) state;
    atomic_bool awaited;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // written between ENDING and DONE
    enum sl_status status;
    char text[SL_ANSWER_TEXT_BYTES];
};
void sl_outcome_init(struct sl_outcome *outcome);
void sl_outcome_cleanup(struct sl_outcome *outcome);
bool sl_outcome_claim(struct sl_outcome *outcome); // OPEN -> ENDING; false: another thread was first
void sl_outcome_done(struct sl_outcome *outcome, enum sl_status status, const char *text); // ENDING -> DONE
bool sl_outcome_end(struct sl_outcome *outcome, enum sl_status status, const char *text);  // both
bool sl_outcome_wait(struct sl_outcome *outcome, int64_t until_ns);                        // true if it is DONE

static inline bool sl_outcome_is_open(const struct sl_outcome *outcome) {
    return atomic_load(&((struct sl_outcome *)(uintptr_t)outcome)->state) == OUTCOME_OPEN;
}
static inline bool sl_outcome_is_done(const struct sl_outcome *outcome) {
    return atomic_load(&((struct sl_outcome *)(uintptr_t)outcome)->state) == OUTCOME_DONE;
}
