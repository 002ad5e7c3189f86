// SPDX-License-Identifier: Apache-2.0
// Purpose: the words of keys and lists. No word is part of another one, and no pair part of another pair.
#pragma once

#include <stdint.h>

#define SL_N_WORDS         446
#define SL_N_WORD_PAIRS    (SL_N_WORDS * (SL_N_WORDS - 1))
#define SL_WORD_PAIR_BYTES 24

const char *sl_word(uint64_t i); // i < SL_N_WORDS

// Returns the i-th of the n * (n - 1) pairs of different numbers below n.
void sl_split_pair(uint64_t i, uint64_t n, uint64_t *first_out, uint64_t *second_out);

// Writes "stone-window" for i < SL_N_WORD_PAIRS: two different words, every pair in both orders.
void sl_word_pair(uint64_t i, char key_out[SL_WORD_PAIR_BYTES]);
