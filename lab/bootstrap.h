// SPDX-License-Identifier: Apache-2.0
// Purpose: confidence interval of a difference measured on the same questions twice: the paired bootstrap (Efron,
// 1979).
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sl_interval {
    double mean, low, high; // low and high: the 2.5% and 97.5% percentiles of resampled means
};

// Computes the mean of n paired differences and its interval. Deterministic for a seed. n = 0: all NaN; 1, or no memory
// for the resamples: no interval, low = high = NaN.
struct sl_interval sl_bootstrap_mean(const double *differences, size_t n, uint64_t seed);
