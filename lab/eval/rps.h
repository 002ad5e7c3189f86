// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: rock-paper-scissors against an opponent who prefers one move: does a model still know in turn 2000 what it saw
 *          long ago (SirLLM; Locret, appendix H)?
 *
 * Design: turn i shows the opponent's move i, the model says what it plays, and that is judged against the opponent's move
 *         i + 1. Nothing in a turn tells that move, so that all there is to win is the preference: who always counters it
 *         wins 60%, who plays at random a third.
 */
#ifndef SL_LAB_EVAL_RPS_H
#define SL_LAB_EVAL_RPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_rps_move { SL_RPS_ROCK, SL_RPS_PAPER, SL_RPS_SCISSORS };
#define SL_RPS_N_MOVES       3
#define SL_RPS_ANSWER_TOKENS 4 // of an answer: one of three words

const char *sl_rps_move_name(enum sl_rps_move move);    // "Rock"
const char *sl_rps_turn(enum sl_rps_move opponent);     // what the model is shown, and goes on from: "...Rock. I play"
enum sl_rps_move sl_rps_counter(enum sl_rps_move move); // what beats it

// What the opponent plays: the preferred move six times of ten, each other twice. n turns take n + 1 moves.
void sl_rps_moves(uint64_t seed, enum sl_rps_move preference, size_t n_moves, enum sl_rps_move *moves_out);

// Shares of turns are these by their sum.
struct sl_rps_score {
    size_t n_win, n_tie, n_lose;
    size_t n_unread; // of the lost ones: the answer named no move
};

// Count the answer of a turn (not NULL) against the opponent's next move.
void sl_rps_judge(const char *answer, enum sl_rps_move next, struct sl_rps_score *score_inout);

#endif
