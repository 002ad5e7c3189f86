// SPDX-License-Identifier: Apache-2.0
// Purpose: the opponent, the text, and the judge of rock-paper-scissors.
#include "lab/eval/rps.h"

#include <string.h>

#include "lab/random.h"

static const char *const names[SL_RPS_N_MOVES] = {"Rock", "Paper", "Scissors"};
static const char *const turns[SL_RPS_N_MOVES] = {
    "\nThe opponent played Rock. I play",
    "\nThe opponent played Paper. I play",
    "\nThe opponent played Scissors. I play",
};

const char *sl_rps_move_name(enum sl_rps_move move) {
    return names[move];
}

const char *sl_rps_turn(enum sl_rps_move opponent) {
    return turns[opponent];
}

enum sl_rps_move sl_rps_counter(enum sl_rps_move move) {
    return (enum sl_rps_move)((move + 1) % SL_RPS_N_MOVES); // each move is beaten by the one behind it
}

void sl_rps_moves(uint64_t seed, enum sl_rps_move preference, size_t n_moves, enum sl_rps_move *moves_out) {
    struct sl_random random = sl_random_start("rock-paper-scissors", seed, preference);
    for (size_t i = 0; i < n_moves; i++) {
        uint64_t fifth = sl_random_below(&random, 5); // three for the preference, one for each other move
        unsigned step = fifth < 3 ? 0 : (unsigned)fifth - 2;
        moves_out[i] = (enum sl_rps_move)((preference + step) % SL_RPS_N_MOVES);
    }
}

// The first move that an answer names, upper or lower case. False: none.
static bool read_move(const char *answer, enum sl_rps_move *move_out) {
    const char *first = NULL;
    for (int move = 0; move < SL_RPS_N_MOVES; move++) {
        const char *at = strcasestr(answer, names[move]);
        if (at && (!first || at < first)) {
            first = at;
            *move_out = (enum sl_rps_move)move;
        }
    }
    return first != NULL;
}

void sl_rps_judge(const char *answer, enum sl_rps_move next, struct sl_rps_score *score_inout) {
    enum sl_rps_move move;
    if (!read_move(answer, &move)) {
        score_inout->n_unread++;
        score_inout->n_lose++;
    } else if (move == next) {
        score_inout->n_tie++;
    } else if (move == sl_rps_counter(next)) {
        score_inout->n_win++;
    } else {
        score_inout->n_lose++;
    }
}
