// SPDX-License-Identifier: Apache-2.0
// Purpose: the project's hash (XXH3, 64 bits) for data that is not secret: segment digests, fingerprints, tables; and
// the one mixer. Hashes that must reveal nothing without a salt are in base/salted_hash.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t sl_hash(const void *data, size_t bytes, uint64_t seed);

// Random numbers as a function of their index: sl_mix(seed + index * SL_GOLDEN) is splitmix64 (Steele, Lea & Flood,
// 2014), the same on every machine.
#define SL_GOLDEN 0x9e3779b97f4a7c15u // 2^64 divided by the golden ratio

static inline uint64_t sl_mix(uint64_t x) { // splitmix64's finalizer: every bit of the result depends on every bit of x
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
