// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the paired bootstrap. See bootstrap.h.
 *
 * Design: 10,000 resamples. Each draws every cell anew from its own differences, as many as it has, and stores the
 *         mean over cells of their means. The interval is between the 2.5% and 97.5% quantiles, interpolated.
 */
#include "lab/bootstrap.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lab/random.h"

#define N_RESAMPLES 10000

// Differences by cell: those of cell c are values[ends[c - 1]] to values[ends[c] - 1].
struct cells {
    double *values; // [n]
    size_t *ends;   // [n_cells]
    size_t n_cells, n_used, largest;
};

static bool group(const double *differences, const uint32_t *strata, size_t n, uint32_t n_strata, struct cells *cells) {
    *cells = (struct cells){.values = malloc(n * sizeof *cells->values),
                            .ends = calloc(n_strata, sizeof *cells->ends),
                            .n_cells = n_strata};
    if (!cells->values || !cells->ends) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        cells->ends[strata ? strata[i] : 0]++;
    }
    size_t begin = 0;
    for (size_t c = 0; c < n_strata; c++) { // sizes become start offsets, which become ends below
        size_t size = cells->ends[c];
        cells->n_used += size > 0;
        cells->largest = size > cells->largest ? size : cells->largest;
        cells->ends[c] = begin;
        begin += size;
    }
    for (size_t i = 0; i < n; i++) {
        cells->values[cells->ends[strata ? strata[i] : 0]++] = differences[i];
    }
    return true;
}

// Returns the mean over cells of their means; random NULL: of the original differences.
static double mean_of_means(const struct cells *cells, struct sl_random *random) {
    double sum = 0;
    for (size_t c = 0, begin = 0; c < cells->n_cells; begin = cells->ends[c++]) {
        size_t size = cells->ends[c] - begin;
        double cell = 0;
        for (size_t i = 0; i < size; i++) {
            cell += cells->values[begin + (random ? sl_random_below(random, size) : i)];
        }
        sum += size > 0 ? cell / (double)size : 0;
    }
    return sum / (double)cells->n_used;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double share) {
    double at = share * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

struct sl_interval sl_bootstrap_mean(const double *differences, const uint32_t *strata, size_t n, uint32_t n_strata,
                                     uint64_t seed) {
    struct sl_interval interval = {NAN, NAN, NAN};
    struct cells cells = {0};
    struct sl_random random = sl_random_start("bootstrap", seed, 0);
    double *means = malloc(N_RESAMPLES * sizeof *means);
    if (n > 0 && means && group(differences, strata, n, strata ? n_strata : 1, &cells)) {
        interval.mean = mean_of_means(&cells, NULL);
        if (cells.largest > 1) {
            for (size_t r = 0; r < N_RESAMPLES; r++) {
                means[r] = mean_of_means(&cells, &random);
            }
            qsort(means, N_RESAMPLES, sizeof *means, compare_doubles);
            interval.low = quantile(means, N_RESAMPLES, 0.025);
            interval.high = quantile(means, N_RESAMPLES, 0.975);
        }
    }
    free(means);
    free(cells.values);
    free(cells.ends);
    return interval;
}
