// SPDX-License-Identifier: Apache-2.0
// Purpose: random inputs, guarded outputs and random matrices for the checks of dense operations.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tensor/half.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/weights.h"
#include "tests/kernels/tested.h"

static inline uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline float random_float(uint64_t *state) { // (-2, 2)
    return ((float)(next_random(state) >> 40) * 0x1p-24f - 0.5f) * 4.0f;
}

static inline float *random_floats(int64_t count, uint64_t seed) {
    float *values = aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = random_float(&seed);
    }
    return values;
}

#define GUARD      64 // floats on either side
#define GUARD_BITS 0x7fc0dead

struct guarded {
    float *data; // [count], 64-byte aligned
    float *block;
    int64_t count;
};

static inline struct guarded guarded_create(int64_t count) {
    struct guarded g = {.count = count};
    g.block = aligned_alloc(64, ((size_t)(count + 2 * GUARD) * sizeof(float) + 63) / 64 * 64);
    assert_non_null(g.block);
    for (int64_t i = 0; i < count + 2 * GUARD; i++) {
        g.block[i] = sl_bits_to_f32(GUARD_BITS);
    }
    g.data = g.block + GUARD;
    return g;
}

static inline void guarded_destroy(struct guarded *g) {
    for (int64_t i = 0; i < GUARD; i++) {
        assert_int_equal(sl_f32_to_bits(g->block[i]), GUARD_BITS);
        assert_int_equal(sl_f32_to_bits(g->data[g->count + i]), GUARD_BITS);
    }
    free(g->block);
}

// Returns where blocks of a type have their f16: a scale, and, if `offset` is not 0, an offset after it. Returns the scale's divisor.
static inline float block_numbers(enum sl_dtype dtype, size_t *scale_at, bool *has_offset) {
    static const struct {
        size_t at;
        bool has_offset;
        float divisor; // keeps weights below 2
    } numbers[] = {
        [SL_Q8_0] = {0, false, 128},    [SL_Q4_0] = {0, false, 8},   [SL_Q4_1] = {0, true, 16},
        [SL_Q5_0] = {0, false, 16},     [SL_Q5_1] = {0, true, 32},   [SL_Q2_K] = {80, true, 48},
        [SL_Q3_K] = {108, false, 128},  [SL_Q4_K] = {0, true, 1024}, [SL_Q5_K] = {0, true, 2048},
        [SL_Q6_K] = {208, false, 4096},
    };
    *scale_at = numbers[dtype].at;
    *has_offset = numbers[dtype].has_offset;
    return numbers[dtype].divisor;
}

// Random blocks of codes, all that their bits can say, with scales that keep weights below 2.
static inline struct sl_matrix random_blocks(int64_t n, int64_t k, enum sl_dtype dtype, uint64_t seed,
                                             void **owner_out) {
    size_t block_bytes = sl_code_type(dtype)->bytes, bytes = (size_t)n * sl_dtype_row_bytes(dtype, k);
    unsigned char *block = malloc(bytes + 1);
    assert_non_null(block);
    for (size_t i = 0; i < bytes; i++) {
        block[1 + i] = (unsigned char)(next_random(&seed) >> 40);
    }
    for (size_t i = 0; i < bytes; i += block_bytes) {
        size_t at;
        bool has_offset;
        float divisor = block_numbers(dtype, &at, &has_offset);
        uint16_t scale = sl_f32_to_f16(random_float(&seed) / divisor), offset = sl_f32_to_f16(random_float(&seed) / 64);
        memcpy(block + 1 + i + at, &scale, sizeof scale);
        if (has_offset) {
            memcpy(block + 1 + i + at + 2, &offset, sizeof offset);
        }
    }
    *owner_out = block;
    return (struct sl_matrix){.n = n, .k = k, .dtype = dtype, .parts = {{block + 1, n, dtype}}};
}

// Random weights of a type, one byte off any alignment: files promise none.
static inline struct sl_matrix random_matrix(int64_t n, int64_t k, enum sl_dtype dtype, uint64_t seed,
                                             void **owner_out) {
    if (sl_dtype_is_codes(dtype)) {
        return random_blocks(n, k, dtype, seed, owner_out);
    }
    size_t size = dtype == SL_F32 ? 4 : 2;
    unsigned char *block = malloc((size_t)(n * k) * size + 1);
    assert_non_null(block);
    for (int64_t i = 0; i < n * k; i++) {
        float value = random_float(&seed);
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(value) : sl_f32_to_bf16(value);
        memcpy(block + 1 + (size_t)i * size, size == 4 ? (void *)&value : (void *)&half, size);
    }
    *owner_out = block;
    return (struct sl_matrix){.n = n, .k = k, .dtype = dtype, .parts = {{block + 1, n, dtype}}};
}

// Writes codes_out[k] and scales_out[sl_weight_groups(k)] of all groups of row j.
static inline void quantize_row(const struct sl_matrix *w, int64_t j, int8_t *codes_out, uint16_t *scales_out) {
    for (int64_t g = 0; g < sl_weight_groups(w->k); g++) {
        sl_weight_quantize_group(w, j, g, codes_out + g * SL_WEIGHT_GROUP, &scales_out[g]);
    }
}

// Returns a matrix as f32 numbers, as its format rounds them, to multiply exactly.
static inline struct sl_matrix as_numbers(const struct sl_matrix *w, float **owner_out) {
    size_t groups = (size_t)sl_weight_groups(w->k);
    float *numbers = malloc((size_t)(w->n * w->k) * sizeof *numbers);
    int8_t *codes = malloc((size_t)w->k);
    uint16_t *scales = malloc(groups * sizeof *scales);
    assert_true(numbers && codes && scales);
    for (int64_t j = 0; j < w->n; j++) {
        float *row = numbers + j * w->k;
        if (w->format == SL_WEIGHT_STORED || w->format == SL_WEIGHT_CODES) {
            sl_weight_widen_row(w, j, row);
            continue;
        }
        quantize_row(w, j, codes, scales);
        for (int64_t i = 0; i < w->k; i++) {
            row[i] = sl_f16_to_f32(scales[i / SL_WEIGHT_GROUP]) * (float)codes[i];
        }
    }
    free(codes), free(scales);
    *owner_out = numbers;
    struct sl_matrix out = *w;
    out.format = SL_WEIGHT_STORED;
    out.dtype = SL_F32;
    memset(out.parts, 0, sizeof out.parts);
    out.parts[0] = (struct sl_rows){(const char *)numbers, w->n, SL_F32};
    return out;
}
