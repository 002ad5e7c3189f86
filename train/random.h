// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: random numbers that are a function of (seed, purpose, index): whoever goes on where another stopped needs to know
 *          no more than how far that one came.
 */
#ifndef SL_TRAIN_RANDOM_H
#define SL_TRAIN_RANDOM_H

#include <stdint.h>

#include "base/status.h"

// What numbers are for: streams of different purposes have nothing to do with each other. A run that goes on from a
// checkpoint must find the same numbers: append only.
enum sl_random_purpose { SL_RANDOM_PARAMETERS = 1, SL_RANDOM_ORDER = 2, SL_RANDOM_PROMPTS = 3 };

uint64_t sl_random_bits(uint64_t seed, enum sl_random_purpose purpose, uint64_t index);
// Standard normal (Box and Muller), the same bits wherever libm's log and cos give the same.
double sl_random_normal(uint64_t seed, enum sl_random_purpose purpose, uint64_t index);

/*
 * Where item `index` of an endless walk through n things goes: every n items are each thing once, in an order of their own.
 * O(n) the first time a round is entered (walk->order is its permutation).
 */
struct sl_walk {
    uint64_t seed;
    uint32_t n;
    uint32_t *order; // [n], owned
    uint64_t round;  // of order, plus 1; 0: there is none yet
};
void sl_walk_cleanup(struct sl_walk *walk);
// n >= 1. SL_ERR_EXHAUSTED.
enum sl_status sl_walk_at(struct sl_walk *walk, uint64_t index, uint32_t *at_out, struct sl_error *err);

#endif
