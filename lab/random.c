// SPDX-License-Identifier: Apache-2.0
#include "lab/random.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"

struct sl_random sl_random_start(const char *name, uint64_t seed, uint64_t index) {
    // Mixed once more, because the stream of a state plus SL_GOLDEN is the same stream shifted by one step.
    return (struct sl_random){sl_mix(sl_hash(name, strlen(name), seed) + sl_mix(index + SL_GOLDEN))};
}

uint64_t sl_random_next(struct sl_random *random) {
    random->state += SL_GOLDEN;
    return sl_mix(random->state);
}

double sl_random_uniform(struct sl_random *random) {
    return ((double)(sl_random_next(random) >> 11) + 1) * 0x1p-53;
}

uint64_t sl_random_below(struct sl_random *random, uint64_t n) {
    assert(n > 0);
    return (uint64_t)((unsigned __int128)sl_random_next(random) * n >> 64);
}

uint64_t sl_random_mmix(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state;
}

float sl_random_unit(uint64_t *state) {
    return ((float)(sl_random_mmix(state) >> 40) * 0x1p-24f - 0.5f) * 3.4641016f;
}

uint64_t sl_random_permute(uint64_t i, uint64_t n, uint64_t key) {
    assert(i < n && n <= (uint64_t)1 << 62);
    int half = 1; // bits of each half: the network permutes 0..4^half-1, at most four times what is asked for
    while ((uint64_t)1 << 2 * half < n) {
        half++;
    }
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 1; round <= 4; round++) {
            uint64_t next = left ^ (sl_mix(key + round * SL_GOLDEN + sl_mix(right)) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
