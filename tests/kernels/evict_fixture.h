// SPDX-License-Identifier: Apache-2.0
// Purpose: one head of cached rows that can be set by hand, for the checks of what eviction computes.
#pragma once

#include "tests/kernels/kv_fixture.h"

static inline void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

// One head of `format`, or of f16 with packed pages where the format is quantized.
static inline void open_head(struct cache *c, const struct sl_ops *ops, enum sl_kv_format format, int d, uint32_t n,
                             uint32_t n_packed) {
    bool packed = sl_kv_format_is_quantized(format);
    uint32_t counts[1] = {packed ? n_packed : 0};
    cache_fill(c, ops, packed ? SL_KV_F16 : format, format, 1, d, 1, &n, counts);
}

static inline float *k_of(struct cache *c, uint32_t slot) { // of f32 pages
    return (float *)((char *)c->pages[0][slot / 64] + c->work.k) + (size_t)(slot % 64) * (size_t)c->d;
}

static inline float *v_of(struct cache *c, uint32_t slot) {
    return (float *)((char *)c->pages[0][slot / 64] + c->work.v) + (size_t)(slot % 64) * (size_t)c->d;
}

// Row = (x, y, 0, ...)
static inline void set_row(struct cache *c, float *row, float x, float y) {
    memset(row, 0, (size_t)c->d * sizeof *row);
    row[0] = x;
    row[1] = y;
}

static inline float *random_weights(uint32_t n, uint64_t seed) { // >= 0, some exactly 0
    float *weights = random_floats(n, seed);
    for (uint32_t j = 0; j < n; j++) {
        weights[j] = weights[j] < -1.5f ? 0.0f : expf(2.0f * weights[j]);
    }
    return weights;
}

static const enum sl_kv_format formats[] = {SL_KV_F32, SL_KV_F16, SL_KV_BF16, SL_KV_INT8, SL_KV_INT4, SL_KV_INT2};
#define N_FORMATS (sizeof formats / sizeof formats[0])
