// SPDX-License-Identifier: Apache-2.0
// Purpose: the opponent keeps to the preference, answers are read and judged by the rules.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "lab/eval/rps.h"

enum { N_TURNS = 20000 };

static void test_moves_keep_to_the_preference(void **state) {
    (void)state;
    static enum sl_rps_move moves[N_TURNS];
    for (int preference = 0; preference < SL_RPS_N_MOVES; preference++) {
        int counts[SL_RPS_N_MOVES] = {0};
        sl_rps_moves(5, (enum sl_rps_move)preference, N_TURNS, moves);
        for (int i = 0; i < N_TURNS; i++) {
            counts[moves[i]]++;
        }
        for (int move = 0; move < SL_RPS_N_MOVES; move++) { // 5 standard deviations of 70
            double expected = move == preference ? 0.6 : 0.2;
            assert_in_range(counts[move], expected * N_TURNS - 350, expected * N_TURNS + 350);
        }
    }
}

static void test_moves_follow_from_the_seed(void **state) {
    (void)state;
    enum sl_rps_move a[64], b[64];
    sl_rps_moves(5, SL_RPS_PAPER, 64, a);
    sl_rps_moves(5, SL_RPS_PAPER, 32, b); // a shorter game begins like a longer one
    assert_memory_equal(a, b, 32 * sizeof *a);
    sl_rps_moves(6, SL_RPS_PAPER, 64, b);
    assert_memory_not_equal(a, b, sizeof a);
}

// What an answerer wins who always names one move against an opponent who prefers another.
static struct sl_rps_score play(enum sl_rps_move preference, enum sl_rps_move always) {
    static enum sl_rps_move moves[N_TURNS + 1];
    struct sl_rps_score score = {0};
    char answer[32];
    snprintf(answer, sizeof answer, " %s", sl_rps_move_name(always));
    sl_rps_moves(9, preference, N_TURNS + 1, moves);
    for (int i = 0; i < N_TURNS; i++) {
        sl_rps_judge(answer, moves[i + 1], &score);
    }
    assert_int_equal(score.n_win + score.n_tie + score.n_lose, N_TURNS);
    return score;
}

static void test_countering_the_preference_wins_three_of_five(void **state) {
    (void)state;
    for (int p = 0; p < SL_RPS_N_MOVES; p++) {
        enum sl_rps_move preference = (enum sl_rps_move)p, counter = sl_rps_counter(preference);
        assert_in_range(play(preference, counter).n_win, 0.58 * N_TURNS, 0.62 * N_TURNS);
        assert_in_range(play(preference, preference).n_tie, 0.58 * N_TURNS, 0.62 * N_TURNS);
        assert_in_range(play(preference, sl_rps_counter(counter)).n_lose, 0.58 * N_TURNS, 0.62 * N_TURNS);
    }
}

static void test_judge_knows_the_rules(void **state) {
    (void)state;
    static const struct {
        const char *answer;
        enum sl_rps_move next;
        struct sl_rps_score score;
    } cases[] = {
        {" Rock", SL_RPS_SCISSORS, {.n_win = 1}},
        {" Rock", SL_RPS_PAPER, {.n_lose = 1}},
        {" Paper", SL_RPS_ROCK, {.n_win = 1}},
        {" Paper", SL_RPS_SCISSORS, {.n_lose = 1}},
        {" Scissors", SL_RPS_PAPER, {.n_win = 1}},
        {" Scissors", SL_RPS_ROCK, {.n_lose = 1}},
        {" Rock", SL_RPS_ROCK, {.n_tie = 1}},
        {"scissors!", SL_RPS_SCISSORS, {.n_tie = 1}},
        {"PAPER beats Rock", SL_RPS_ROCK, {.n_win = 1}}, // the first that is named
        {"", SL_RPS_ROCK, {.n_lose = 1, .n_unread = 1}},
        {" Well", SL_RPS_PAPER, {.n_lose = 1, .n_unread = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_rps_score score = {0};
        sl_rps_judge(cases[i].answer, cases[i].next, &score);
        assert_memory_equal(&score, &cases[i].score, sizeof score);
    }
}

static void test_turn_says_what_was_played(void **state) {
    (void)state;
    assert_string_equal(sl_rps_turn(SL_RPS_ROCK), "\nThe opponent played Rock. I play");
    for (int move = 0; move < SL_RPS_N_MOVES; move++) {
        assert_non_null(strstr(sl_rps_turn((enum sl_rps_move)move), sl_rps_move_name((enum sl_rps_move)move)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves_keep_to_the_preference),
        cmocka_unit_test(test_moves_follow_from_the_seed),
        cmocka_unit_test(test_countering_the_preference_wins_three_of_five),
        cmocka_unit_test(test_judge_knows_the_rules),
        cmocka_unit_test(test_turn_says_what_was_played),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
