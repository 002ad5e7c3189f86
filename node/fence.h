// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: whose orders a worker takes where several coordinators take turns: those of the highest term that it has heard of.
 * Design: terms come with orders and with the answers to our beats. They live as long as the process: a worker that restarts holds
 *         nothing that an old coordinator could spoil.
 * Threads: all functions from any thread.
 */
#pragma once

#include <inttypes.h>
#include <stdatomic.h>

#include "base/term.h"

struct sl_fence {
    _Atomic int64_t term; // 0: nobody has said one
};

static inline void sl_fence_hear(struct sl_fence *fence, int64_t term) {
    int64_t before = atomic_load(&fence->term);
    while (term > before && !atomic_compare_exchange_weak(&fence->term, &before, term)) {
    }
}

// An order that came with this term. SL_ERR_PEER_STALE: there is a newer one (sl_term_is_refusal()).
static inline enum sl_status sl_fence_check(struct sl_fence *fence, int64_t term, struct sl_error *err) {
    sl_fence_hear(fence, term);
    int64_t highest = atomic_load(&fence->term);
    return term >= highest ? SL_OK : sl_term_refuse(term, highest, err);
}

// Of what workers, who have no terms, ask as well.
static inline enum sl_status sl_fence_check_if_any(struct sl_fence *fence, int64_t term, struct sl_error *err) {
    return term == 0 ? SL_OK : sl_fence_check(fence, term, err);
}
