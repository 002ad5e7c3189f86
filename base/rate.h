// SPDX-License-Identifier: Apache-2.0
// Purpose: counts events per second, over windows of a second. One thread counts, any thread reads.
#pragma once

#include <stdatomic.h>

#include "base/clock.h"

struct sl_rate {
    _Atomic int64_t per_s; // rate of the last whole window
    int64_t n, since_ns;   // count and start of the current window
};

// Starts a new window now, because idle time is not part of a rate.
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
