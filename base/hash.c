// SPDX-License-Identifier: Apache-2.0
// Purpose: the one hash of the project. Its values cross the network and outlive processes: never another algorithm.
#include "base/hash.h"

#include <xxhash.h>

uint64_t sl_hash(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}
