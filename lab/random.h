// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: random numbers of evaluations: the same on every machine, from integers alone.
 *
 * Design: splitmix64 (Steele, Lea & Flood, 2014).
 */
#pragma once

#include <stdint.h>

struct sl_random {
    uint64_t state;
};

// Starts a stream; streams whose name, seed or index differ are unrelated.
struct sl_random sl_random_start(const char *name, uint64_t seed, uint64_t index);

uint64_t sl_random_next(struct sl_random *random);
double sl_random_uniform(struct sl_random *random);             // in (0, 1]
uint64_t sl_random_below(struct sl_random *random, uint64_t n); // 0..n-1; n > 0

// Advances Knuth's MMIX generator, for numbers that affect no result: returns the next state, whose upper bits are
// random.
uint64_t sl_random_mmix(uint64_t *state);

// Returns a uniform number of variance 1 from that generator, like a key, a value or an activation after a norm.
float sl_random_unit(uint64_t *state);
