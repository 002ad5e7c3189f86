// SPDX-License-Identifier: Apache-2.0
// Purpose: confidence interval of a difference measured on the same questions twice: the paired bootstrap (Efron,
// 1979).
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sl_interval {
    double mean, low, high; // low and high: the 2.5% and 97.5% percentiles of resampled means
};

/*
 * Computes the mean and its interval. differences: [n] of paired scores. strata: [n] cell of each, 0..n_strata-1
 * (resampled within; every cell has equal weight); NULL: one cell. Deterministic for a seed. n = 0: all NaN. If every
 * cell has one sample there is no interval: low = high = NaN. Without memory for the resamples all are NaN, as if
 * nothing had been measured.
 */
struct sl_interval sl_bootstrap_mean(const double *differences, const uint32_t *strata, size_t n, uint32_t n_strata,
                                     uint64_t seed);
