// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the frequencies of rotary position embeddings, f_i = theta^(-2i/r) for i < r/2, r = rotary_dim, and how
 *          they are stretched for contexts longer than the original one of c positions.
 *
 *   linear    f / factor
 *   llama3    by turns n = c f / 2 pi that a channel makes in the original context:
 *                 n > high   f
 *                 n < low    f / factor
 *                 between    (1 - t) f / factor + t f,  t = (n - low) / (high - low)
 *   yarn      (1 - t) f + t f / factor,  t = clamp((i - begin) / (end - begin), 0, 1), where `begin` and `end` are the
 *             channels that make high and low turns (Peng et al. 2023, section 3.2), rounded outwards if truncate
 *   longrope  f / stretch[i], with one set for jobs within the original context and one for longer jobs (Ding et al.
 *             2024)
 *
 * Yarn and longrope also scale cos and sin, by config.rope.scale.
 */
#include <math.h>

#include "base/hash.h"
#include "engine/model/model_internal.h"

_Static_assert(SL_MAX_STRETCHES >= SL_MAX_HEAD_DIM / 2, "a stretch for every channel of the largest head");

static double stretch_llama3(const struct sl_rope_config *rope, double inv_freq) {
    double low = rope->low_turns, high = rope->high_turns;
    double turns = (double)rope->original_max_positions * inv_freq / (2.0 * M_PI);
    if (turns > high) {
        return inv_freq;
    }
    if (turns < low) {
        return inv_freq / rope->factor;
    }
    double t = (turns - low) / (high - low);
    return (1.0 - t) * inv_freq / rope->factor + t * inv_freq;
}

// Returns the channel, usually fractional, that makes `turns` in the original context.
static double channel_of(const struct sl_model_config *c, double turns) {
    double wavelength = (double)c->rope.original_max_positions / turns;
    return c->rotary_dim * log(wavelength / (2.0 * M_PI)) / (2.0 * log(c->rope_theta));
}

static double stretch_yarn(const struct sl_model_config *c, int i, double inv_freq) {
    double begin = channel_of(c, c->rope.high_turns), end = channel_of(c, c->rope.low_turns);
    begin = fmax(c->rope.truncate ? floor(begin) : begin, 0.0);
    end = fmin(c->rope.truncate ? ceil(end) : end, c->rotary_dim - 1);
    end = end == begin ? end + 0.001 : end; // as in the published code
    double t = fmin(fmax((i - begin) / (end - begin), 0.0), 1.0);
    return (1.0 - t) * inv_freq + t * inv_freq / c->rope.factor;
}

void sl_rope_inv_freq(const struct sl_model_config *c, int rope_set, double *inv_freq_out) {
    for (int i = 0; i < c->rotary_dim / 2; i++) {
        double inv_freq = pow(c->rope_theta, -2.0 * i / c->rotary_dim);
        switch (c->rope.kind) {
        case SL_ROPE_DEFAULT:
            break;
        case SL_ROPE_LINEAR:
            inv_freq /= c->rope.factor;
            break;
        case SL_ROPE_LLAMA3:
            inv_freq = stretch_llama3(&c->rope, inv_freq);
            break;
        case SL_ROPE_YARN:
            inv_freq = stretch_yarn(c, i, inv_freq);
            break;
        case SL_ROPE_LONGROPE:
            inv_freq /= c->rope.stretch[rope_set][i];
            break;
        }
        inv_freq_out[i] = inv_freq;
    }
}

int sl_model_rope_set(const struct sl_model_config *config, int64_t n_positions) {
    return config->rope.kind == SL_ROPE_LONGROPE && n_positions > config->rope.original_max_positions;
}

uint64_t sl_model_set_fingerprint(uint64_t fingerprint, int rope_set) {
    return rope_set == 0 ? fingerprint : sl_hash(&rope_set, sizeof rope_set, fingerprint);
}
