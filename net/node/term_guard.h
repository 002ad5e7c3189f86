// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the term guard: where several coordinators take turns, a worker obeys those with the highest term that it
 *          has seen.
 * Design: terms come with requests and with the answers to heartbeats. They live as long as the process: a restarted
 *         worker holds nothing that an old coordinator could damage.
 * Threads: all functions from any thread.
 */
#pragma once

#include <inttypes.h>
#include <stdatomic.h>

#include "base/term.h"
#include "net/trust/identity.h"

struct sl_term_guard {
    _Atomic int64_t term; // 0: none seen yet
};

static inline void sl_term_guard_hear(struct sl_term_guard *term_guard, int64_t term) {
    int64_t before = atomic_load(&term_guard->term);
    while (term > before && !atomic_compare_exchange_weak(&term_guard->term, &before, term)) {
    }
}

// Checks the term of a request. SL_ERR_PEER_STALE: the worker has seen a newer one (sl_term_is_refusal()).
static inline enum sl_status sl_term_guard_check(struct sl_term_guard *term_guard, int64_t term, struct sl_error *err) {
    sl_term_guard_hear(term_guard, term);
    int64_t highest = atomic_load(&term_guard->term);
    return term >= highest ? SL_OK : sl_term_refuse(term, highest, err);
}

// Checks the term of a call that workers make as well. Workers have no terms: one that a worker's certificate sends is
// ignored, or it would lock all coordinators out.
static inline enum sl_status sl_term_guard_check_if_any(struct sl_term_guard *term_guard,
                                                        const struct sl_identity *caller, int64_t term,
                                                        struct sl_error *err) {
    return term == 0 || !(caller->role & SL_ROLE_COORDINATOR) ? SL_OK : sl_term_guard_check(term_guard, term, err);
}
