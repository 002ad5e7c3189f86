// SPDX-License-Identifier: Apache-2.0
#include "engine/job/error_statistics.h"

#include <math.h>

void sl_error_statistics_read(const struct sl_compressor *compressor, struct sl_error_statistics *statistics_out) {
    struct sl_error_estimate estimates[SL_MAX_LAYERS];
    *statistics_out = (struct sl_error_statistics){.n_layers = sl_compressor_get_estimates(compressor, estimates)};
    for (int l = 0; l < statistics_out->n_layers; l++) {
        statistics_out->evicted_attention[l] = (float)estimates[l].evicted_attention;
        statistics_out->evicting_rows[l] = estimates[l].n_rows;
        statistics_out->key_error[l] = (float)estimates[l].key_error;
        statistics_out->value_error[l] = (float)estimates[l].value_error;
    }
}

void sl_error_statistics_add_steps(struct sl_error_statistics *statistics, const struct sl_error_statistics *steps) {
    if (statistics->n_layers != steps->n_layers) {
        return;
    }
    for (int l = 0; l < statistics->n_layers; l++) {
        double a = (double)statistics->evicting_rows[l], b = (double)steps->evicting_rows[l];
        if (b > 0) {
            statistics->evicted_attention[l] =
                (float)(((double)statistics->evicted_attention[l] * a + (double)steps->evicted_attention[l] * b) /
                        (a + b));
            statistics->evicting_rows[l] += steps->evicting_rows[l];
        }
    }
}

void sl_error_statistics_attach(struct sl_error_statistics *statistics, Sluice__V1__Statistics *message) {
    Sluice__V1__ErrorEstimates *errors = &statistics->message;
    sluice__v1__error_estimates__init(errors);
    errors->n_evicted_attention = errors->n_evicting_rows = errors->n_key_error = errors->n_value_error =
        (size_t)statistics->n_layers;
    errors->evicted_attention = statistics->evicted_attention;
    errors->evicting_rows = statistics->evicting_rows;
    errors->key_error = statistics->key_error;
    errors->value_error = statistics->value_error;
    message->errors = statistics->n_layers > 0 ? errors : NULL;
}

static bool is_error(float error) {
    return isfinite(error) && error >= 0;
}

static bool can_be(const Sluice__V1__ErrorEstimates *errors, size_t layer) {
    return is_error(errors->evicted_attention[layer]) && errors->evicted_attention[layer] <= 1 &&
           errors->evicting_rows[layer] >= 0 && errors->evicting_rows[layer] < INT64_MAX / 4 &&
           is_error(errors->key_error[layer]) && is_error(errors->value_error[layer]);
}

void sl_error_statistics_copy(const Sluice__V1__Statistics *message, struct sl_error_statistics *statistics_out) {
    *statistics_out = (struct sl_error_statistics){0};
    const Sluice__V1__ErrorEstimates *errors = message->errors;
    size_t n = errors ? errors->n_evicted_attention : 0;
    if (n < 1 || n > SL_MAX_LAYERS || errors->n_evicting_rows != n || errors->n_key_error != n ||
        errors->n_value_error != n) {
        return;
    }
    for (size_t l = 0; l < n; l++) {
        if (!can_be(errors, l)) {
            return; // n_layers stays 0: there are none
        }
        statistics_out->evicted_attention[l] = errors->evicted_attention[l];
        statistics_out->evicting_rows[l] = errors->evicting_rows[l];
        statistics_out->key_error[l] = errors->key_error[l];
        statistics_out->value_error[l] = errors->value_error[l];
    }
    statistics_out->n_layers = (int)n;
}
