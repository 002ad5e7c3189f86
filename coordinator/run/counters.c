// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/counters.h"

#include <math.h>
#include <string.h>

#include "base/locked.h"

// ---- histograms -----------------------------------------------------------------------------------------------------

static const double bounds[SL_N_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                           1,     2.5,    5,     10,   30,    60,   120, 300,  600};

void sl_histogram_add(struct sl_histogram *histogram, double seconds) {
    seconds = seconds > 0 && seconds < 1e9 ? seconds : 0;
    int i = 0;
    while (i < SL_N_BOUNDS && seconds > bounds[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&histogram->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, (int64_t)llround(seconds * 1e9), memory_order_relaxed);
}

void sl_histogram_write(const struct sl_histogram *histogram, FILE *page, const char *name, const char *help) {
    char bucket[128], bound[32];
    int64_t n = 0;
    sl_metrics_declare(page, SL_HISTOGRAM, name, help);
    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    for (int i = 0; i <= SL_N_BOUNDS; i++) {
        n += atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
        snprintf(bound, sizeof bound, i < SL_N_BOUNDS ? "%g" : "+Inf", i < SL_N_BOUNDS ? bounds[i] : 0.0);
        sl_metrics_sample(page, bucket, (double)n, "le", bound, NULL);
    }
    snprintf(bucket, sizeof bucket, "%s_sum", name);
    sl_metrics_sample(page, bucket, (double)atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed) / 1e9, NULL);
    snprintf(bucket, sizeof bucket, "%s_count", name);
    // The sum of the buckets, so that the page is consistent even when other threads count meanwhile
    sl_metrics_sample(page, bucket, (double)n, NULL);
}

// ---- counters by pairs ----------------------------------------------------------------------------------------------

// Returns the index of the pair; -1: not present yet. A pair is written before n_pairs counts it, and never changes.
static int find(const struct sl_pair_counters *counters, const char *first, const char *second) {
    int n = atomic_load_explicit(&counters->n_pairs, memory_order_acquire);
    for (int i = 0; i < n; i++) {
        const struct sl_pair_counter *pair = &counters->pairs[i];
        if (strncmp(pair->values[0], first, SL_PAIR_BYTES - 1) == 0 &&
            strncmp(pair->values[1], second, SL_PAIR_BYTES - 1) == 0) {
            return i;
        }
    }
    return -1;
}

static int find_or_make(struct sl_pair_counters *counters, const char *first, const char *second) {
    int i = find(counters, first, second);
    if (i >= 0) {
        return i;
    }
    SL_LOCKED(&counters->mutex);
    i = find(counters, first, second);
    int n = atomic_load_explicit(&counters->n_pairs, memory_order_relaxed);
    if (i < 0 && n < SL_MAX_PAIRS) {
        i = n;
        snprintf(counters->pairs[i].values[0], SL_PAIR_BYTES, "%s", first);
        snprintf(counters->pairs[i].values[1], SL_PAIR_BYTES, "%s", second);
        atomic_store_explicit(&counters->n_pairs, n + 1, memory_order_release);
    }
    return i < 0 ? SL_MAX_PAIRS : i;
}

void sl_pair_counters_add(struct sl_pair_counters *counters, const char *first, const char *second, int64_t n,
                          int64_t other_n) {
    struct sl_pair_counter *pair = &counters->pairs[find_or_make(counters, first, second)];
    atomic_fetch_add_explicit(&pair->counts[0], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&pair->counts[1], other_n, memory_order_relaxed);
}

void sl_pair_counters_write(const struct sl_pair_counters *counters, int which, FILE *page, const char *name,
                            const char *const labels[2]) {
    int n = atomic_load_explicit(&counters->n_pairs, memory_order_acquire);
    for (int i = 0; i <= n; i++) {
        const struct sl_pair_counter *pair = &counters->pairs[i < n ? i : SL_MAX_PAIRS];
        double count = (double)atomic_load_explicit(&pair->counts[which], memory_order_relaxed);
        if (i < n) {
            sl_metrics_sample(page, name, count, labels[0], pair->values[0], labels[1], pair->values[1], NULL);
        } else if (count > 0) {
            sl_metrics_sample(page, name, count, labels[0], "other", labels[1], "other", NULL);
        }
    }
}
