// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see hash.h. Its values cross the network and outlive processes, so the algorithm must never change.
 *
 * Design: distributions compile libxxhash for the oldest processor of the architecture. On x86 the library also has
 *         the same function for AVX2 and AVX-512 and picks one at run time: the same values, two to three times faster.
 *         That one leaves the upper halves of registers in use: every thread that had hashed, and those that it started,
 *         ran scalar code up to 30 times slower on Sapphire Rapids.
 */
#include "base/hash.h"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // defines XXH3_64bits_withSeed as the function that selects one at run time
static void free_upper_halves(void) {
    if (__builtin_cpu_supports("avx")) {
        __asm__ volatile("vzeroupper");
    }
}
#else
#include <xxhash.h>
static void free_upper_halves(void) {}
#endif

uint64_t sl_hash(const void *data, size_t bytes, uint64_t seed) {
    uint64_t hash = XXH3_64bits_withSeed(data, bytes, seed);
    free_upper_halves();
    return hash;
}
