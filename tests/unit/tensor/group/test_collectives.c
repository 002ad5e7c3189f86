// SPDX-License-Identifier: Apache-2.0
// What ranks make together: sums in the order of ranks to the bit, gathers, and the worst status of all; as threads, as processes, and on
// devices with memory of their own.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tensor/cuda/emu/emulator.h"
#include "tests/unit/tensor/group/ranks.h"

// Of one rank: far apart in size, so that another order makes other bits.
static float number(int64_t round, int rank, int64_t i) {
    uint64_t bits = ((uint64_t)round * 131 + (uint64_t)rank) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
    bits ^= bits >> 31;
    bits *= 0x94d049bb133111ebu;
    bits ^= bits >> 29;
    float mantissa = (float)(int32_t)(bits >> 32) / 1e9f;
    return bits & 1 ? mantissa : bits & 2 ? mantissa * 1e6f : mantissa * 1e-6f;
}

static float *numbers(int64_t round, int rank, int64_t n) {
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number(round, rank, i);
    }
    return x;
}

// A sum of n on this rank is the plain loop's, to the bit.
static bool sum_once(struct rank *rank, int64_t round, int64_t n) {
    float *x = numbers(round, rank->number, n);
    float *there = rank_put(rank, x, (size_t)n * sizeof *x);
    rank_dawdle(rank);
    CHECK(sl_group_sum(rank->group, rank->stream, there, n, NULL) == SL_OK);
    CHECK(rank_take(rank, there, x, (size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++) {
        float want = number(round, 0, i);
        for (int r = 1; r < rank->size; r++) {
            want += number(round, r, i);
        }
        CHECK(memcmp(&x[i], &want, sizeof want) == 0);
    }
    free(x);
    return true;
}

static bool sum_sizes(struct rank *rank) {
    static const int64_t sizes[] = {0, 1, 2, 17, 1000, 4095, 4096, 65535, 65536, 65537, 150001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(sum_once(rank, (int64_t)i, sizes[i]));
    }
    return true;
}

static bool sum_often(struct rank *rank) {
    for (int64_t round = 0; round < 200 / SLOWNESS; round++) {
        CHECK(sum_once(rank, round, 1 + round % 7 * 900));
    }
    return true;
}

static void test_sums_are_in_the_order_of_ranks(void **state) {
    static const int sizes[] = {2, 3, 1, 8};
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        for (size_t i = 0; i < (SLOWNESS > 1 ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
            struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = sizes[i], .join = true};
            ranks_run(&ranks, sum_sizes);
        }
    }
}

static void test_sums_follow_each_other(void **state) {
    static const int sizes[] = {2, 5};
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        for (size_t i = 0; i < (SLOWNESS > 1 ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
            struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = sizes[i], .join = true};
            ranks_run(&ranks, sum_often);
        }
    }
}

static bool sum_some(struct rank *rank) {
    return sum_once(rank, 1, 3) && sum_once(rank, 2, 70000);
}

static void test_sums_of_as_many_ranks_as_there_may_be(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = SL_MAX_RANKS, .join = true};
        ranks_run(&ranks, sum_some);
    }
}

// What is queued before a sum is done before it, and what is queued behind it comes behind it: nobody waits for the stream.
static bool sum_in_order(struct rank *rank) {
    enum { N = 70000 };
    float *x = numbers(3, rank->number, N), *sum = malloc(N * sizeof *sum);
    float *before = rank_put(rank, x, N * sizeof *x), *behind = rank_put(rank, x, N * sizeof *x);
    memset(x, 0, N * sizeof *x);
    float *there = rank_put(rank, x, N * sizeof *x);
    sl_stream_copy(rank->stream, there, before, N * sizeof *x);
    CHECK(sl_group_sum(rank->group, rank->stream, there, N, NULL) == SL_OK);
    sl_stream_copy(rank->stream, behind, there, N * sizeof *x);
    CHECK(sl_group_sum(rank->group, rank->stream, there, N, NULL) == SL_OK);
    CHECK(rank_take(rank, behind, sum, N * sizeof *sum));
    CHECK(rank_take(rank, there, x, N * sizeof *x));
    CHECK(rank_take(rank, before, x, N * sizeof *x));
    for (int64_t i = 0; i < N; i++) {
        float want = number(3, 0, i);
        for (int r = 1; r < rank->size; r++) {
            want += number(3, r, i);
        }
        CHECK(memcmp(&sum[i], &want, sizeof want) == 0);
    }
    free(x);
    free(sum);
    return true;
}

static void test_sums_are_in_the_order_of_the_stream(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, sum_in_order);
    }
}

// Who leaves behind the last sum has come to it.
static bool sum_and_leave(struct rank *rank) {
    float x[1] = {1};
    CHECK(sl_group_sum(rank->group, rank->stream, x, 1, NULL) == SL_OK && x[0] == (float)rank->size);
    return true;
}

static void test_leaving_is_no_loss(void **state) {
    (void)state;
    for (int i = 0; i < 300 / SLOWNESS; i++) {
        struct ranks ranks = {.kind = THREADS, .size = 3, .join = true};
        ranks_run(&ranks, sum_and_leave);
    }
}

// --- gathers -----------------------------------------------------------------------------------------------------------

static bool gather_sizes(struct rank *rank) {
    static const size_t sizes[] = {0, 1, 4, 63, 4096, 262144, 300001};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i / 2], all = n * (size_t)rank->size;
        bool at_its_place = i % 2 == 1;
        unsigned char *bytes = malloc(all + n + 1);
        for (size_t j = 0; j < n; j++) {
            bytes[j] = (unsigned char)((size_t)rank->number * 37 + j * 11 + i);
        }
        char *x = rank_put(rank, bytes, n);
        memset(bytes, 0, all + n);
        char *out = rank_put(rank, bytes, all), *place = out + (size_t)rank->number * n;
        if (at_its_place) {
            sl_stream_copy(rank->stream, place, x, n);
        }
        rank_dawdle(rank);
        CHECK(sl_group_gather(rank->group, rank->stream, at_its_place ? place : x, n, out, NULL) == SL_OK);
        CHECK(rank_take(rank, out, bytes, all));
        CHECK(rank_take(rank, x, bytes + all, n));
        for (size_t j = 0; j < all; j++) {
            CHECK(bytes[j] == (unsigned char)(j / n * 37 + j % n * 11 + i));
        }
        free(bytes);
    }
    return true;
}

static void test_gathers_are_in_the_order_of_ranks(void **state) {
    static const int sizes[] = {2, 3, 1, 8};
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        for (size_t i = 0; i < (SLOWNESS > 1 ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
            struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = sizes[i], .join = true};
            ranks_run(&ranks, gather_sizes);
        }
    }
}

// --- meetings ----------------------------------------------------------------------------------------------------------

static bool meet_with(struct rank *rank, enum sl_status mine, const char *text, enum sl_status want, int whose,
                      const char *said) {
    struct sl_error err = {0};
    int who = -7;
    if (text != NULL && mine != SL_OK) {
        sl_fail(&err, mine, "%s", text);
    }
    rank_dawdle(rank);
    CHECK(sl_group_meet(rank->group, mine, &who, &err) == want);
    CHECK(who == whose);
    CHECK(want == SL_OK || strcmp(err.text, said) == 0);
    CHECK(sl_group_lost(rank->group) == -1);
    return true;
}

static bool meet_often(struct rank *rank) {
    for (int round = 0; round < 50 / SLOWNESS; round++) {
        bool second = rank->number == 1, third = rank->number == 2;
        CHECK(meet_with(rank, SL_OK, NULL, SL_OK, -1, NULL));
        CHECK(meet_with(rank, second ? SL_ERR_EXHAUSTED : SL_OK, second ? "no memory" : NULL, SL_ERR_EXHAUSTED, 1,
                        "rank 1 of 3: no memory"));
        CHECK(meet_with(rank,
                        second  ? SL_ERR_INVALID
                        : third ? SL_ERR_INTERNAL
                                : SL_AGAIN,
                        NULL, SL_ERR_INTERNAL, 2, "rank 2 of 3: internal error"));
        CHECK(meet_with(rank, second || third ? SL_ERR_IO : SL_OK, third ? "third" : "second", SL_ERR_IO, 1,
                        "rank 1 of 3: second"));
        CHECK(meet_with(rank, rank->number == 0 ? SL_ERR_IO : SL_OK, "first", SL_ERR_IO, 0, "rank 0 of 3: first"));
        CHECK(meet_with(rank, second ? SL_AGAIN : SL_OK, NULL, SL_AGAIN, 1, "rank 1 of 3: try again"));
        CHECK(meet_with(rank, third ? SL_AGAIN : SL_OK, NULL, SL_AGAIN, 2, "rank 2 of 3: try again"));
        CHECK(sum_once(rank, round, 3));
        CHECK(sl_group_meet(rank->group, third ? SL_ERR_IO : SL_OK, NULL, NULL) == SL_ERR_IO);
    }
    return true;
}

static void test_a_meeting_says_the_worst_of_all(void **state) {
    (void)state;
    for (int kind = 0; kind < N_RANKS_KINDS; kind++) {
        struct ranks ranks = {.kind = (enum ranks_kind)kind, .size = 3, .join = true};
        ranks_run(&ranks, meet_often);
    }
}

// --- the whole ---------------------------------------------------------------------------------------------------------

static void test_nothing_is_left(void **state) {
    (void)state;
    assert_int_equal(sl_emu_used(), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no children
}

static void test_shares_are_all_there_is(void **state) {
    (void)state;
    for (int size = 1; size <= SL_MAX_RANKS; size++) {
        assert_int_equal(sl_group_share(37, 0, size), 0);
        assert_int_equal(sl_group_share(37, size, size), 37);
        for (int r = 0; r < size; r++) {
            assert_true(sl_group_share(37, r, size) < sl_group_share(37, r + 1, size));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_in_the_order_of_ranks),
        cmocka_unit_test(test_sums_follow_each_other),
        cmocka_unit_test(test_sums_of_as_many_ranks_as_there_may_be),
        cmocka_unit_test(test_sums_are_in_the_order_of_the_stream),
        cmocka_unit_test(test_leaving_is_no_loss),
        cmocka_unit_test(test_gathers_are_in_the_order_of_ranks),
        cmocka_unit_test(test_a_meeting_says_the_worst_of_all),
        cmocka_unit_test(test_shares_are_all_there_is),
        cmocka_unit_test(test_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
