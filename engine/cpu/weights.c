// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the quantization of weights, once for all tiers; and the activations as formulas.
 *
 * Design: plain C. Packing a model passes here once, and is bound by reading its file.
 */
#include "engine/cpu/weights.h"

#include <math.h>

// One group of n weights.
static uint16_t quantize(const float *x, int n, enum sl_weight_format format, int8_t *codes_out) {
    float most = 0.0f; // of the largest magnitude, with its sign; the first of equals
    for (int i = 0; i < n; i++) {
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    }
    float divisor = format == SL_WEIGHT_INT8 ? 127.0f : -8.0f;
    float low = format == SL_WEIGHT_INT8 ? -127.0f : -8.0f, high = format == SL_WEIGHT_INT8 ? 127.0f : 7.0f;
    uint16_t half = sl_f32_to_f16((format == SL_WEIGHT_INT8 ? fabsf(most) : most) / divisor);
    float scale = sl_f16_to_f32(half);
    for (int i = 0; i < n; i++) {
        float code = scale == 0.0f ? 0.0f : rintf(x[i] / scale);
        codes_out[i] = (int8_t)(code < low ? low : code > high ? high : code);
    }
    return half;
}

int sl_weight_quantize_group(const struct sl_matrix *w, int64_t j, int64_t g, int8_t *codes_out, uint16_t *scale_out) {
    const unsigned char *row = sl_weight_row(w, j);
    int64_t begin = g * SL_WEIGHT_GROUP;
    int n = w->k - begin < SL_WEIGHT_GROUP ? (int)(w->k - begin) : SL_WEIGHT_GROUP;
    float group[SL_WEIGHT_GROUP];
    for (int i = 0; i < n; i++) {
        group[i] = sl_weight_element(row, w->dtype, begin + i);
    }
    *scale_out = quantize(group, n, w->format, codes_out);
    return n;
}

void sl_weight_quantize_row(const struct sl_matrix *w, int64_t j, int8_t *codes_out, uint16_t *scales_out) {
    for (int64_t g = 0; g < sl_weight_groups(w->k); g++) {
        sl_weight_quantize_group(w, j, g, codes_out + g * SL_WEIGHT_GROUP, &scales_out[g]);
    }
}

float sl_activate(enum sl_activation activation, float x) {
    switch (activation) {
    case SL_ACT_SILU:
        return x / (1.0f + expf(-x));
    case SL_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * (float)M_SQRT1_2));
    case SL_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case SL_ACT_NONE:
        break;
    }
    return x;
}
