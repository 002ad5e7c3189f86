// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: divides a budget over layers: in proportion, as a pyramid, or by D2O's attention density.
 *          engine/compress/plan/budget.h has the formulas.
 *
 * Design: every division over layers ends in sl_budget_divide(), which alone handles bounds and rounding; the methods
 *         differ only in their weights.
 */
#include "engine/compress/plan/budget.h"

#include <assert.h>
#include <math.h>

// --- over layers -------------------------------------------------------------------------------------------------

// Weights of a division, scaled to at most 1 so that their sum never overflows.
struct weights {
    double of[SL_MAX_LAYERS];
    bool fixed[SL_MAX_LAYERS]; // this share has reached a bound and no longer changes
};

// Replaces NaN and infinity, which come from broken activations, so that they do not break the sum of the shares.
static double sane(double weight) {
    return weight > 0 && isfinite(weight) ? weight : 0;
}

static void scale_weights(const double *weights, int n, struct weights *out) {
    double largest = 0;
    for (int i = 0; i < n; i++) {
        largest = fmax(largest, sane(weights[i]));
    }
    for (int i = 0; i < n; i++) {
        out->of[i] = largest > 0 ? sane(weights[i]) / largest : 1;
        out->fixed[i] = false;
    }
}

/*
 * Runs one round: divides the remainder among the free shares. If some shares fall below `least` and others exceed
 * `most`, only the side with the larger excess can be fixed now: fixing the other might be wrong once this one has
 * changed the rest. Returns false when no share had to be fixed.
 */
static bool divide_round(struct weights *w, int n, double total, double least, double most, double *shares) {
    double left = total, sum = 0;
    int n_free = 0;
    for (int i = 0; i < n; i++) {
        left -= w->fixed[i] ? shares[i] : 0;
        sum += w->fixed[i] ? 0 : w->of[i];
        n_free += !w->fixed[i];
    }
    double below = 0, above = 0;
    for (int i = 0; i < n; i++) {
        if (!w->fixed[i]) {
            // If only zero weights are left, they count as equal.
            shares[i] = sum > 0 ? left * (w->of[i] / sum) : left / n_free;
            below += fmax(least - shares[i], 0);
            above += fmax(shares[i] - most, 0);
        }
    }
    bool any = false;
    for (int i = 0; i < n; i++) {
        bool low = below >= above && shares[i] < least, high = above >= below && shares[i] > most;
        if (!w->fixed[i] && (low || high)) {
            shares[i] = low ? least : most;
            w->fixed[i] = any = true;
        }
    }
    return any;
}

// Rounds the shares to whole numbers with the same sum: rounds down, then adds one to the largest remainders.
static void round_shares(int64_t total, const double *shares, int n, int64_t least, int64_t most, int64_t *out) {
    double remainder[SL_MAX_LAYERS];
    int64_t left = total;
    for (int i = 0; i < n; i++) {
        out[i] = (int64_t)fmin(fmax(floor(shares[i]), (double)least), (double)most);
        remainder[i] = shares[i] - (double)out[i];
        left -= out[i];
    }
    while (left != 0) { // the shares sum to the total except for rounding: one round over the layers suffices
        int best = -1;
        for (int i = 0; i < n; i++) {
            bool can = left > 0 ? out[i] < most : out[i] > least;
            if (can && (best < 0 || (left > 0 ? remainder[i] > remainder[best] : remainder[i] < remainder[best]))) {
                best = i;
            }
        }
        assert(best >= 0);
        out[best] += left > 0 ? 1 : -1;
        remainder[best] -= left > 0 ? 1 : -1;
        left -= left > 0 ? 1 : -1;
    }
}

void sl_budget_divide(int64_t total, const double *weights, int n, int64_t least, int64_t most, int64_t *shares_out) {
    assert(n >= 1 && n <= SL_MAX_LAYERS && least >= 0 && n * least <= total && total <= n * most);
    struct weights w;
    double shares[SL_MAX_LAYERS];
    scale_weights(weights, n, &w);
    while (divide_round(&w, n, (double)total, (double)least, (double)most, shares)) {
    }
    round_shares(total, shares, n, least, most, shares_out);
}

void sl_budget_pyramid(int64_t total, int n_layers, int64_t least, int64_t most, int64_t *shares_out) {
    const double beta = 20;
    double mean = (double)total / n_layers;
    double first = fmin(2 * mean - mean / beta, (double)most);
    double last = fmax(2 * mean - first, (double)least); // a bound flattens the line and keeps its mean
    first = 2 * mean - last;
    double weights[SL_MAX_LAYERS];
    for (int l = 0; l < n_layers; l++) {
        weights[l] = n_layers > 1 ? first - (first - last) * l / (n_layers - 1) : 1;
    }
    sl_budget_divide(total, weights, n_layers, least, most, shares_out);
}

static double min_of(const double *x, int n) {
    double min = x[0];
    for (int i = 1; i < n; i++) {
        min = fmin(min, x[i]);
    }
    return min;
}

static double max_of(const double *x, int n) {
    double max = x[0];
    for (int i = 1; i < n; i++) {
        max = fmax(max, x[i]);
    }
    return max;
}

// Returns the mean of x; if normalized, of (x - min) / (max - min + 1e-6).
static double mean_of(const double *x, int n, bool normalized) {
    double min = normalized ? min_of(x, n) : 0, scale = normalized ? max_of(x, n) - min + 1e-6 : 1, sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (x[i] - min) / scale;
    }
    return sum / n;
}

void sl_budget_d2o_weights(enum sl_split_layers reading, const double *variances, int n_layers, int n_heads,
                           double *weights_out) {
    for (int l = 0; l < n_layers; l++) {
        weights_out[l] = mean_of(variances + (size_t)l * (size_t)n_heads, n_heads, reading == SL_LAYERS_D2O);
    }
    double min = min_of(weights_out, n_layers);
    double scale = reading == SL_LAYERS_D2O_MINMAX ? max_of(weights_out, n_layers) - min + 1e-6 : 1;
    double sum = 0;
    for (int l = 0; l < n_layers; l++) { // the smallest x counts as 0: at least one weight is 1 before they are summed
        weights_out[l] = exp(-(weights_out[l] - min) / scale);
        sum += weights_out[l];
    }
    for (int l = 0; l < n_layers; l++) {
        weights_out[l] /= sum;
    }
}
