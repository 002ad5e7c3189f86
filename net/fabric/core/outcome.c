// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/core/outcome.h"

#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/thread.h"

#define WAIT_SPIN_NS 30000 // spin budget of a caller before it sleeps

void sl_outcome_init(struct sl_outcome *outcome) {
    atomic_init(&outcome->state, OUTCOME_OPEN);
    atomic_init(&outcome->awaited, false);
    pthread_mutex_init(&outcome->lock, NULL);
    sl_cond_init(&outcome->changed);
    outcome->status = SL_OK;
    outcome->text[0] = '\0';
}

void sl_outcome_cleanup(struct sl_outcome *outcome) {
    pthread_mutex_destroy(&outcome->lock);
    pthread_cond_destroy(&outcome->changed);
}

bool sl_outcome_claim(struct sl_outcome *outcome) {
    enum sl_outcome_state open = OUTCOME_OPEN;
    return atomic_compare_exchange_strong(&outcome->state, &open, OUTCOME_ENDING);
}

void sl_outcome_done(struct sl_outcome *outcome, enum sl_status status, const char *text) {
    outcome->status = status;
    snprintf(outcome->text, sizeof outcome->text, "%s", text);
    atomic_store(&outcome->state, OUTCOME_DONE);
    if (atomic_load(&outcome->awaited)) { // set before the waiter's last read of the state
        pthread_mutex_lock(&outcome->lock);
        pthread_cond_broadcast(&outcome->changed);
        pthread_mutex_unlock(&outcome->lock);
    }
}

bool sl_outcome_end(struct sl_outcome *outcome, enum sl_status status, const char *text) {
    bool first = sl_outcome_claim(outcome);
    if (first) {
        sl_outcome_done(outcome, status, text);
    }
    return first;
}

bool sl_outcome_wait(struct sl_outcome *outcome, int64_t until_ns) {
    // If the end is near, two context switches cost more than spinning; yielding frees the processor for the thread
    // that makes progress.
    int64_t start = sl_now_ns();
    for (int64_t now = start; !sl_outcome_is_done(outcome); now = sl_now_ns()) {
        if (now - start > WAIT_SPIN_NS || now >= until_ns) {
            break;
        }
        sched_yield();
    }
    if (!sl_outcome_is_done(outcome) && sl_now_ns() < until_ns) {
        pthread_mutex_lock(&outcome->lock);
        atomic_store(&outcome->awaited, true);
        while (!sl_outcome_is_done(outcome) &&
               sl_cond_wait_until(&outcome->changed, &outcome->lock, until_ns) == SL_OK) {
        }
        pthread_mutex_unlock(&outcome->lock);
    }
    return sl_outcome_is_done(outcome);
}
