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
