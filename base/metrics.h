// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: counters and histograms that a process updates while it works, and Prometheus' text format (0.0.4) for them
 *          and for other metrics.
 *
 * Design: counting takes no lock. A page is a FILE in memory. A component with metrics declares each name once and then
 *         writes all its samples, because the format wants them together.
 *
 *     sl_metrics_declare(page, SL_GAUGE, "sluice_arena_bytes", "Memory for KV, by what it is taken for.");
 *     sl_metrics_sample(page, "sluice_arena_bytes", 4096, "state", "used", NULL);
 *
 * Threads: any. Only one thread writes a page.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

// ---- the page --------------------------------------------------------------------------------------------------------

enum sl_metric_type { SL_COUNTER, SL_GAUGE, SL_HISTOGRAM };

void sl_metrics_declare(FILE *page, enum sl_metric_type type, const char *name, const char *help);
// Writes a sample. After the value come names and values of labels in turn, and NULL. Values may hold any text.
void sl_metrics_sample(FILE *page, const char *name, double value, ...) __attribute__((sentinel));
// Does both for a metric without labels.
void sl_metrics_write(FILE *page, enum sl_metric_type type, const char *name, const char *help, double value);

// ---- histograms of seconds -------------------------------------------------------------------------------------------

#define SL_N_BOUNDS 18
extern const double sl_histogram_bounds[SL_N_BOUNDS]; // 1 ms to 600 s

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
