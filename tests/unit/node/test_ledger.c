// SPDX-License-Identifier: Apache-2.0
// Promises of an arena's memory: only what fits is granted, and what is returned is there for others.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "net/node/ledger.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_THREADS   4

struct fixture {
    void *memory;
    struct sl_arena *arena;
    struct sl_ledger *ledger;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    assert_non_null(fixture->memory);
    assert_int_equal(sl_arena_create(fixture->memory, ARENA_BYTES, &fixture->arena, NULL), SL_OK);
    assert_int_equal(sl_ledger_create(fixture->arena, &fixture->ledger, NULL), SL_OK);
    assert_ptr_equal(sl_ledger_arena(fixture->ledger), fixture->arena);
    *state = fixture;
    return 0;
}

// Asserts that a test has left nothing.
static int teardown(void **state) {
    struct fixture *fixture = *state;
    struct sl_arena_stats stats;
    sl_arena_get_stats(fixture->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    assert_int_equal(sl_ledger_promised_bytes(fixture->ledger), 0);
    sl_ledger_destroy(&fixture->ledger);
    assert_null(fixture->ledger);
    sl_arena_destroy(&fixture->arena);
    free(fixture->memory);
    free(fixture);
    return 0;
}

static void test_ledger_promises_only_what_fits(void **state) {
    struct fixture *fixture = *state;
    struct sl_ledger *ledger = fixture->ledger;
    struct sl_error err = {0};
    void *block = NULL;
    assert_int_equal(sl_ledger_try_promise(ledger, ARENA_BYTES / 2), SL_OK);
    assert_int_equal(sl_ledger_try_promise(ledger, ARENA_BYTES / 2 + 1), SL_AGAIN); // and nothing is counted
    assert_int_equal(sl_ledger_take_block(ledger, "beside", ARENA_BYTES / 2 + SL_ARENA_UNIT, 0, &block, &err),
                     SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry"));
    assert_null(block);
    void *used = sl_arena_alloc(fixture->arena, ARENA_BYTES / 4);
    assert_int_equal(sl_ledger_try_promise(ledger, ARENA_BYTES / 4), SL_OK);
    assert_int_equal(sl_ledger_try_promise(ledger, 1), SL_AGAIN);
    sl_arena_free(fixture->arena, used);
    assert_int_equal(sl_ledger_try_promise(ledger, ARENA_BYTES / 4), SL_OK);
    assert_int_equal(sl_ledger_promised_bytes(ledger), ARENA_BYTES);
    sl_ledger_return(ledger, ARENA_BYTES);
}

static void test_ledger_takes_a_block_and_its_promise_or_neither(void **state) {
    struct fixture *fixture = *state;
    struct sl_ledger *ledger = fixture->ledger;
    void *block = NULL, *other = NULL;
    assert_int_equal(sl_ledger_take_block(ledger, "none", 0, 0, &block, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_ledger_take_block(ledger, "huge", SIZE_MAX, 0, &block, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_ledger_take_block(ledger, "both", ARENA_BYTES / 2, ARENA_BYTES / 4, &block, NULL), SL_OK);
    assert_int_equal(sl_ledger_promised_bytes(ledger), ARENA_BYTES / 4);
    assert_int_equal(sl_ledger_take_block(ledger, "neither", ARENA_BYTES / 4, SL_ARENA_UNIT, &other, NULL),
                     SL_ERR_EXHAUSTED);
    assert_int_equal(sl_ledger_promised_bytes(ledger), ARENA_BYTES / 4);
    assert_int_equal(sl_ledger_take_block(ledger, "the rest", ARENA_BYTES / 4, 0, &other, NULL), SL_OK);
    sl_arena_free(fixture->arena, block);
    sl_arena_free(fixture->arena, other);
    sl_ledger_return(ledger, ARENA_BYTES / 4);
}

// Memory that a session has taken is no longer promised. What it has given back is promised again, however much others hold by then.
static void test_ledger_reconciles_whether_it_fits_or_not(void **state) {
    struct fixture *fixture = *state;
    struct sl_ledger *ledger = fixture->ledger;
    size_t promised = ARENA_BYTES / 2;
    assert_int_equal(sl_ledger_try_promise(ledger, promised), SL_OK);
    void *page = sl_arena_alloc(fixture->arena, SL_ARENA_UNIT);
    sl_ledger_set_promise(ledger, &promised, ARENA_BYTES / 2 - SL_ARENA_UNIT);
    assert_int_equal(promised, ARENA_BYTES / 2 - SL_ARENA_UNIT);
    assert_int_equal(sl_ledger_promised_bytes(ledger), promised);
    assert_int_equal(sl_ledger_try_promise(ledger, ARENA_BYTES / 2), SL_OK);
    sl_ledger_set_promise(ledger, &promised, ARENA_BYTES / 2);
    assert_int_equal(sl_ledger_promised_bytes(ledger), ARENA_BYTES); // beside what is used
    sl_arena_free(fixture->arena, page);
    sl_ledger_promise_again(ledger, SL_ARENA_UNIT);
    assert_int_equal(sl_ledger_promised_bytes(ledger), ARENA_BYTES + SL_ARENA_UNIT);
    assert_int_equal(sl_ledger_try_promise(ledger, 0), SL_AGAIN);
    sl_ledger_set_promise(ledger, &promised, 0);
    assert_int_equal(promised, 0);
    sl_ledger_return(ledger, ARENA_BYTES / 2 + SL_ARENA_UNIT);
}

struct taker {
    struct fixture *fixture;
    int n_taken, n_too_much;
};

static void *take_and_give_back(void *arg) {
    struct taker *taker = arg;
    struct fixture *fixture = taker->fixture;
    for (int i = 0; i < 5000; i++) {
        void *block;
        if (sl_ledger_take_block(fixture->ledger, "thread", ARENA_BYTES / 4, ARENA_BYTES / 4, &block, NULL) == SL_OK) {
            struct sl_arena_stats stats;
            sl_arena_get_stats(fixture->arena, &stats);
            taker->n_too_much += stats.used_bytes > ARENA_BYTES / 2; // with as much promised
            sl_arena_free(fixture->arena, block);
            sl_ledger_return(fixture->ledger, ARENA_BYTES / 4);
            taker->n_taken++;
        }
    }
    return NULL;
}

static void test_ledger_of_many_threads_never_grants_too_much(void **state) {
    pthread_t threads[N_THREADS];
    struct taker takers[N_THREADS];
    int n_taken = 0;
    for (int i = 0; i < N_THREADS; i++) {
        takers[i] = (struct taker){.fixture = *state};
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give_back, &takers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        n_taken += takers[i].n_taken;
        assert_int_equal(takers[i].n_too_much, 0);
    }
    assert_true(n_taken > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ledger_promises_only_what_fits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ledger_takes_a_block_and_its_promise_or_neither, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ledger_reconciles_whether_it_fits_or_not, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ledger_of_many_threads_never_grants_too_much, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
