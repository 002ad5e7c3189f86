// SPDX-License-Identifier: Apache-2.0
// Purpose: the arithmetic of fidelity.h on plain arrays.
#include <math.h>

#include "base/ascending.h"
#include "lab/measure/fidelity.h"

double sl_relative_error(double difference_squared, double reference_squared) {
    if (difference_squared == 0) {
        return 0;
    }
    return reference_squared > 0 ? sqrt(difference_squared / reference_squared) : INFINITY;
}

double sl_jaccard(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b) {
    size_t both = sl_ascending_common(a, n_a, b, n_b), either = n_a + n_b - both;
    return either == 0 ? 1 : (double)both / (double)either;
}

// Returns log sum_i exp(logits[i]).
static double log_sum(const float *logits, int64_t n) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(logits[i] - max);
    }
    return max + log(sum);
}

double sl_negative_log_likelihood(const float *logits, int64_t n, int32_t token) {
    return log_sum(logits, n) - logits[token];
}

double sl_kl_divergence(const float *p_logits, const float *q_logits, int64_t n) {
    double p_sum = log_sum(p_logits, n), q_sum = log_sum(q_logits, n), divergence = 0;
    for (int64_t i = 0; i < n; i++) {
        double p = p_logits[i] - p_sum, q = q_logits[i] - q_sum;
        divergence += exp(p) * (p - q);
    }
    return divergence;
}

int64_t sl_arg_max(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}
