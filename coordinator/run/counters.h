// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counters and histograms that jobs update while they run, for the page of metrics (base/metrics.h).
 * Threads: any. Counting takes no lock.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/metrics.h"

// ---- histograms of seconds ------------------------------------------------------------------------------------------

#define SL_N_BOUNDS 18 // 1 ms to 600 s

// Zero-initialized.
struct sl_histogram {
    _Atomic int64_t counts[SL_N_BOUNDS + 1]; // the last one counts values above every bound
    _Atomic int64_t sum_ns;
};
void sl_histogram_add(struct sl_histogram *histogram, double seconds); // a negative value or NaN counts as 0
void sl_histogram_write(const struct sl_histogram *histogram, FILE *page, const char *name, const char *help);

// ---- counters with two labels that others choose -------------------------------------------------------------------

#define SL_MAX_PAIRS  32 // further pairs count as "other", so that clients cannot grow a page without bounds
#define SL_PAIR_BYTES 128

// Zero-initialized, except for its mutex.
struct sl_pair_counters {
    pthread_mutex_t mutex; // taken only to add a pair
    atomic_int n_pairs;
    struct sl_pair_counter {
        char values[2][SL_PAIR_BYTES]; // longer values are cut
        _Atomic int64_t counts[2];
    } pairs[SL_MAX_PAIRS + 1]; // the last is "other"
};
#define SL_PAIR_COUNTERS_INIT                                                                                          \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

// Adds to two counters of the same pair of labels, e.g. bytes sent and bytes that would have been sent without
// compression.
void sl_pair_counters_add(struct sl_pair_counters *counters, const char *first, const char *second, int64_t n,
                          int64_t other_n);
void sl_pair_counters_write(const struct sl_pair_counters *counters, int which, FILE *page, const char *name,
                            const char *const labels[2]);
