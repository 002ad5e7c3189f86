// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the frequencies of rotary position embeddings.
 *
 *   inv_freq[i] = theta^(-2i/d)
 *
 * Llama 3.1 stretches them for contexts beyond the original one, by wavelength w = 2 pi / inv_freq:
 *   w < original / high   unchanged
 *   w > original / low    divided by factor
 *   between               (1 - t) inv_freq / factor + t inv_freq,  t = (original / w - low) / (high - low)
 */
#include <math.h>

#include "engine/model_internal.h"

static double stretch_llama3(const struct sl_model_config *c, double inv_freq) {
    double factor = c->rope_llama3.factor;
    double low = c->rope_llama3.low_freq_factor, high = c->rope_llama3.high_freq_factor;
    double turns = (double)c->rope_llama3.original_max_positions * inv_freq / (2.0 * M_PI); // original / w
    if (turns > high) {
        return inv_freq;
    }
    if (turns < low) {
        return inv_freq / factor;
    }
    double t = (turns - low) / (high - low);
    return (1.0 - t) * inv_freq / factor + t * inv_freq;
}

void sl_rope_inv_freq(const struct sl_model_config *config, double *inv_freq_out) {
    for (int i = 0; i < config->head_dim / 2; i++) {
        double inv_freq = pow(config->rope_theta, -2.0 * i / config->head_dim);
        inv_freq_out[i] = config->rope_llama3.enabled ? stretch_llama3(config, inv_freq) : inv_freq;
    }
}
