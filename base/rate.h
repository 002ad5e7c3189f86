// SPDX-License-Identifier: Apache-2.0
// Purpose: how many a second, over windows of a second: counted by one thread, read by any.
#pragma once

#include <stdatomic.h>

#include "base/clock.h"

struct sl_rate {
    _Atomic int64_t per_s; // of the last whole window
    int64_t n, since_ns;   // of the window that is running
};

// Idle time is no part of a rate: a new window begins now.
static inline void sl_rate_restart(struct sl_rate *rate) {
    rate->since_ns = sl_now_ns();
    rate->n = 0;
}

static inline void sl_rate_count(struct sl_rate *rate, int64_t n) {
    int64_t now_ns = sl_now_ns(), elapsed_ns = now_ns - rate->since_ns;
    rate->n += n;
    if (elapsed_ns >= SL_NS_PER_S) {
        atomic_store(&rate->per_s, rate->n * SL_NS_PER_S / elapsed_ns);
        rate->since_ns = now_ns;
        rate->n = 0;
    }
}
