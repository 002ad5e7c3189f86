// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: random weights for benchmarks. Weight i is a function of i alone, so every thread of a processor or of a GPU
 *         computes its own.
 *
 * Design: i is multiplied by 2^64 / phi. The upper half of the product goes through the last steps of MurmurHash3
 *         (Appleby), which yields 32 bits. They become a uniform number with a standard deviation of 0.02, truncated to
 *         bf16, so that activations of a model stay finite. Kernels include this file too: they define
 *         SL_DRAWN_FUNCTION first.
 */
#pragma once

#include <stdint.h>

#ifndef SL_DRAWN_FUNCTION
#define SL_DRAWN_FUNCTION static inline
#endif

// Returns the bits of weight i, in bf16.
SL_DRAWN_FUNCTION uint16_t sl_drawn_weight(uint64_t i) {
    uint32_t x = (uint32_t)((i + 1) * 0x9e3779b97f4a7c15u >> 32), bits;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    float value = (float)(int32_t)(x ^ x >> 16) * (0.07f * 0x1p-32f);
    __builtin_memcpy(&bits, &value, sizeof bits); // kernels have no C library
    return (uint16_t)(bits >> 16);
}
