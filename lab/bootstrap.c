// SPDX-License-Identifier: Apache-2.0
/*
 * Design: 10,000 resamples of as many differences. The interval is between the 2.5% and 97.5% quantiles of their means,
 *         interpolated. lab/sluice_eval has one for cells of questions.
 */
#include "lab/bootstrap.h"

#include <math.h>
#include <stdlib.h>

#include "lab/random.h"
#include "lab/result.h"

#define N_RESAMPLES 10000

static double quantile(const double *sorted, size_t n, double share) {
    double at = share * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

struct sl_interval sl_bootstrap_mean(const double *differences, size_t n, uint64_t seed) {
    struct sl_interval interval = {n > 0 ? 0 : NAN, NAN, NAN};
    struct sl_random random = sl_random_start("bootstrap", seed, 0);
    for (size_t i = 0; i < n; i++) {
        interval.mean += differences[i] / (double)n;
    }
    double *means = n > 1 ? calloc(N_RESAMPLES, sizeof *means) : NULL;
    for (size_t r = 0; means && r < N_RESAMPLES; r++) {
        for (size_t i = 0; i < n; i++) {
            means[r] += differences[sl_random_below(&random, n)] / (double)n;
        }
    }
    if (means) {
        qsort(means, N_RESAMPLES, sizeof *means, sl_bench_ascending);
        interval.low = quantile(means, N_RESAMPLES, 0.025);
        interval.high = quantile(means, N_RESAMPLES, 0.975);
    }
    free(means);
    return interval;
}
