// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see hash.h. Its values cross the network and outlive processes, so the algorithm must never change.
 *
 * Design: distributions compile libxxhash for the oldest processor of the architecture. On x86 the library also has
 *         the same function for AVX2 and AVX-512 and picks one at run time: the same values, two to three times faster.
 */
#include "base/hash.h"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // defines XXH3_64bits_withSeed as the function that selects one at run time
#else
#include <xxhash.h>
#endif

uint64_t sl_hash(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}
