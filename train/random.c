// SPDX-License-Identifier: Apache-2.0
// Purpose: random numbers that are a function of their index; see random.h.
#include "train/random.h"

#include <math.h>
#include <stdlib.h>

static uint64_t mix(uint64_t x) { // the finalizer of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t sl_random_bits(uint64_t seed, enum sl_random_purpose purpose, uint64_t index) {
    const uint64_t step = 0x9e3779b97f4a7c15u;
    return mix(mix(mix(seed + step) + (uint64_t)purpose * step) + index * step);
}

// In (0, 1]: 53 bits.
static double uniform(uint64_t bits) {
    return (double)((bits >> 11) + 1) * 0x1p-53;
}

double sl_random_normal(uint64_t seed, enum sl_random_purpose purpose, uint64_t index) {
    double radius = sqrt(-2.0 * log(uniform(sl_random_bits(seed, purpose, 2 * index))));
    return radius * cos(6.283185307179586 * uniform(sl_random_bits(seed, purpose, 2 * index + 1)));
}

void sl_walk_cleanup(struct sl_walk *walk) {
    free(walk->order);
    walk->order = NULL;
    walk->round = 0;
}

// Fisher and Yates.
static void shuffle(struct sl_walk *walk, uint64_t round) {
    for (uint32_t i = 0; i < walk->n; i++) {
        walk->order[i] = i;
    }
    for (uint32_t i = walk->n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(sl_random_bits(walk->seed, SL_RANDOM_ORDER, round * walk->n + i) % (i + 1));
        uint32_t swapped = walk->order[i];
        walk->order[i] = walk->order[j];
        walk->order[j] = swapped;
    }
    walk->round = round + 1;
}

enum sl_status sl_walk_at(struct sl_walk *walk, uint64_t index, uint32_t *at_out, struct sl_error *err) {
    if (walk->order == NULL) {
        walk->order = malloc((size_t)walk->n * sizeof *walk->order);
        if (walk->order == NULL) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
        }
    }
    uint64_t round = index / walk->n;
    if (walk->round != round + 1) {
        shuffle(walk, round);
    }
    *at_out = walk->order[index % walk->n];
    return SL_OK;
}
