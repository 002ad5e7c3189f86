// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the arena against a model. The model is an array with one byte a unit of the range: which block owns it.
 *          It knows nothing of classes and lists, so that it cannot share the arena's mistakes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/thread.h"

#define UNIT ((size_t)SL_ARENA_UNIT)
// The arena never touches its range: any aligned address will do, and a mistake would crash.
#define BASE ((char *)0x100000000)

static uint64_t rng_state;

static uint64_t rng(uint64_t below) { // xorshift64*
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return (rng_state * 0x2545F4914F6CDD1DULL >> 11) % below;
}

static struct sl_arena *create(size_t bytes) {
    struct sl_arena *arena = NULL;
    struct sl_error err;
    assert_int_equal(sl_arena_create(BASE, bytes, &arena, &err), SL_OK);
    return arena;
}

static struct sl_arena_stats stats(struct sl_arena *arena) {
    struct sl_arena_stats s;
    sl_arena_get_stats(arena, &s);
    return s;
}

static void test_arena_refuses_bad_ranges(void **state) {
    (void)state;
    struct sl_arena *arena = NULL;
    struct sl_error err;
    assert_int_equal(sl_arena_create(BASE + 8, 1 << 20, &arena, &err), SL_ERR_INVALID);
    assert_int_equal(sl_arena_create(BASE, UNIT - 1, &arena, &err), SL_ERR_INVALID);
    assert_null(arena);
    sl_arena_destroy(&arena);
}

static void test_arena_hands_out_everything_in_one_block(void **state) {
    (void)state;
    // Sizes on no class boundary are the hard ones: rounding up to the next class would never find them.
    static const size_t units[] = {1, 15, 16, 17, 31, 33, 1000, 12345, 1048575};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct sl_arena *arena = create(units[i] * UNIT + UNIT / 2); // the half unit at the end is not usable
        assert_int_equal(stats(arena).capacity_bytes, units[i] * UNIT);
        assert_null(sl_arena_alloc(arena, units[i] * UNIT + 1));
        void *block = sl_arena_alloc(arena, units[i] * UNIT);
        assert_ptr_equal(block, BASE);
        assert_null(sl_arena_alloc(arena, 1));
        assert_int_equal(stats(arena).largest_free_bytes, 0);
        sl_arena_free(arena, block);
        assert_int_equal(stats(arena).largest_free_bytes, units[i] * UNIT);
        sl_arena_destroy(&arena);
        assert_null(arena);
    }
}

static void test_arena_foresees_what_freeing_would_give(void **state) {
    (void)state;
    struct sl_arena *arena = create(64 * UNIT), *more = NULL;
    assert_int_equal(sl_arena_largest_if_freed(arena, NULL, 0), 64 * UNIT);
    void *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = sl_arena_alloc(arena, 8 * UNIT);
    }
    assert_int_equal(sl_arena_largest_if_freed(arena, NULL, 0), 0);
    void *apart[] = {blocks[6], blocks[0], blocks[3]}, *joined[] = {blocks[4], blocks[2], blocks[3], blocks[7]};
    assert_int_equal(sl_arena_largest_if_freed(arena, apart, 3), 8 * UNIT);
    assert_int_equal(sl_arena_largest_if_freed(arena, joined, 4), 24 * UNIT);
    sl_arena_free(arena, blocks[5]); // a free block between two of them counts too
    void *around[] = {blocks[4], blocks[6]};
    assert_int_equal(sl_arena_largest_if_freed(arena, around, 2), 24 * UNIT);
    assert_int_equal(stats(arena).largest_free_bytes, 8 * UNIT); // nothing was freed
    blocks[5] = NULL;
    for (int i = 0; i < 8; i++) {
        sl_arena_free(arena, blocks[i]);
    }
    assert_int_equal(sl_arena_create(BASE + 0x10000000, 80 * UNIT, &more, NULL), SL_OK);
    sl_arena_join(arena, &more);
    assert_int_equal(sl_arena_largest_if_freed(arena, NULL, 0), 80 * UNIT);
    sl_arena_destroy(&arena);
}

static void test_arena_survives_absurd_sizes(void **state) {
    (void)state;
    struct sl_arena *arena = create(64 * UNIT);
    assert_null(sl_arena_alloc(arena, SIZE_MAX));
    assert_null(sl_arena_alloc(arena, SIZE_MAX - UNIT + 1));
    void *a = sl_arena_alloc(arena, 0);
    void *b = sl_arena_alloc(arena, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    sl_arena_free(arena, a);
    sl_arena_free(arena, b);
    sl_arena_free(arena, NULL);
    sl_arena_destroy(&arena);
}

static void test_arena_large_range_costs_little(void **state) {
    (void)state;
    struct sl_arena *arena = create((size_t)1 << 40); // a terabyte: its map is 8 GiB of address space
    void *blocks[100];
    for (int i = 0; i < 100; i++) {
        blocks[i] = sl_arena_alloc(arena, (size_t)1 << 33);
        assert_non_null(blocks[i]);
    }
    assert_int_equal(stats(arena).used_bytes, (size_t)100 << 33);
    for (int i = 0; i < 100; i++) {
        sl_arena_free(arena, blocks[i]);
    }
    assert_int_equal(stats(arena).largest_free_bytes, (size_t)1 << 40);
    sl_arena_destroy(&arena);
}

static void test_arena_ignores_foreign_and_double_frees(void **state) {
    (void)state;
    struct sl_arena *arena = create(64 * UNIT);
    char *a = sl_arena_alloc(arena, 4 * UNIT);
    char *b = sl_arena_alloc(arena, 4 * UNIT);
    sl_arena_free(arena, a + UNIT);           // inside a block
    sl_arena_free(arena, a + 1);              // not aligned
    sl_arena_free(arena, BASE - UNIT);        // before the range
    sl_arena_free(arena, BASE + (64 * UNIT)); // just past its end
    assert_int_equal(stats(arena).n_blocks, 2);
    sl_arena_free(arena, a);
    sl_arena_free(arena, a);
    assert_int_equal(stats(arena).n_blocks, 1);
    assert_int_equal(stats(arena).used_bytes, 4 * UNIT);
    sl_arena_free(arena, b);
    assert_int_equal(stats(arena).largest_free_bytes, 64 * UNIT);
    sl_arena_destroy(&arena);
}

// A block comes from the range that was asked for, or from where there is room; everything that is counted is of all ranges.
static void test_arena_of_several_ranges(void **state) {
    enum { RANGES = 3, UNITS = 8 };
    struct sl_arena *arena = create(UNITS * UNIT);
    void *blocks[RANGES], *more;
    (void)state;
    for (int i = 1; i < RANGES; i++) {
        struct sl_arena *range = NULL;
        assert_int_equal(sl_arena_create(BASE + (size_t)i * 0x10000000, UNITS * UNIT, &range, NULL), SL_OK);
        sl_arena_join(arena, &range);
        assert_null(range);
    }
    assert_int_equal(sl_arena_ranges(arena), RANGES);
    assert_int_equal(stats(arena).capacity_bytes, RANGES * UNITS * UNIT);
    for (int i = 0; i < RANGES; i++) {
        blocks[i] = sl_arena_alloc_near(arena, i, (UNITS - (size_t)i) * UNIT);
        assert_true((char *)blocks[i] >= BASE + (size_t)i * 0x10000000 &&
                    (char *)blocks[i] < BASE + (size_t)i * 0x10000000 + UNITS * UNIT);
    }
    assert_int_equal(stats(arena).n_blocks, RANGES);
    assert_int_equal(stats(arena).largest_free_bytes, 2 * UNIT);
    more = sl_arena_alloc_near(arena, 0, UNIT); // is full: the next one has room
    assert_true((char *)more > (char *)blocks[1] && (char *)more < (char *)blocks[1] + UNITS * UNIT);
    assert_null(sl_arena_alloc(arena, 3 * UNIT));
    assert_int_equal(stats(arena).used_bytes, (UNITS + UNITS - 1 + UNITS - 2 + 1) * UNIT);
    for (int i = 0; i < RANGES; i++) {
        sl_arena_free(arena, blocks[i]);
    }
    sl_arena_free(arena, more);
    assert_int_equal(stats(arena).used_bytes, 0);
    assert_int_equal(stats(arena).high_water_bytes, (UNITS + UNITS - 1 + UNITS - 2 + 1) * UNIT);
    sl_arena_reset_high_water(arena);
    assert_int_equal(stats(arena).high_water_bytes, 0);
    sl_arena_destroy(&arena);
}

static void test_arena_high_water_is_kept_and_reset(void **state) {
    (void)state;
    struct sl_arena *arena = create(64 * UNIT);
    void *a = sl_arena_alloc(arena, 10 * UNIT - 3);
    void *b = sl_arena_alloc(arena, UNIT);
    sl_arena_free(arena, a);
    assert_int_equal(stats(arena).high_water_bytes, 11 * UNIT);
    sl_arena_reset_high_water(arena);
    assert_int_equal(stats(arena).high_water_bytes, UNIT);
    sl_arena_free(arena, b);
    sl_arena_destroy(&arena);
}

struct held {
    char *memory;
    size_t n_units;
};

struct model {
    struct sl_arena *arena;
    size_t n_units;
    unsigned char *owned; // a byte a unit
    struct held *held;
    size_t n_held, used_units, high_water;
};

static size_t longest_free_run(const struct model *model) {
    size_t longest = 0, run = 0;
    for (size_t u = 0; u < model->n_units; u++) {
        run = model->owned[u] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static void model_alloc(struct model *model, size_t bytes) {
    size_t n = (bytes + UNIT - 1) / UNIT;
    char *memory = sl_arena_alloc(model->arena, bytes);
    if (!memory) {
        assert_true(longest_free_run(model) < n); // a refusal is only right when there really is no room
        return;
    }
    size_t first = (size_t)(memory - BASE) / UNIT;
    assert_int_equal((size_t)(memory - BASE) % UNIT, 0);
    assert_true(first + n <= model->n_units);
    for (size_t u = first; u < first + n; u++) {
        assert_int_equal(model->owned[u], 0); // no overlap
        model->owned[u] = 1;
    }
    model->held[model->n_held++] = (struct held){memory, n};
    model->used_units += n;
    model->high_water = model->used_units > model->high_water ? model->used_units : model->high_water;
}

static void model_free(struct model *model, size_t i) {
    struct held held = model->held[i];
    model->held[i] = model->held[--model->n_held];
    memset(model->owned + (size_t)(held.memory - BASE) / UNIT, 0, held.n_units);
    model->used_units -= held.n_units;
    sl_arena_free(model->arena, held.memory);
}

static size_t random_bytes(size_t n_units) {
    switch (rng(4)) {
    case 0:
        return 1 + rng(UNIT);
    case 1:
        return 1 + rng(20 * UNIT);
    case 2:
        return (1 + rng(64)) * UNIT;
    default:
        return 1 + rng(n_units * UNIT / 3);
    }
}

static void check_against_model(uint64_t seed, size_t n_units, int n_steps) {
    rng_state = seed;
    struct model model = {.arena = create(n_units * UNIT), .n_units = n_units};
    model.owned = calloc(n_units, 1);
    model.held = calloc(n_units, sizeof *model.held);
    for (int step = 0; step < n_steps; step++) {
        // Phases of growing and shrinking, so that both a full and a nearly empty arena are visited.
        bool grow = rng(10) < (step / 500 % 2 ? 3 : 7);
        if (grow || model.n_held == 0) {
            model_alloc(&model, random_bytes(n_units));
        } else {
            model_free(&model, rng(model.n_held));
        }
        struct sl_arena_stats s = stats(model.arena);
        assert_int_equal(s.n_blocks, model.n_held);
        assert_int_equal(s.used_bytes, model.used_units * UNIT);
        assert_int_equal(s.high_water_bytes, model.high_water * UNIT);
        if (step % 16 == 0) { // neighbours that were not merged would make the largest block too small
            assert_int_equal(s.largest_free_bytes, longest_free_run(&model) * UNIT);
        }
    }
    while (model.n_held > 0) {
        model_free(&model, rng(model.n_held));
    }
    assert_int_equal(stats(model.arena).n_blocks, 0);
    assert_int_equal(stats(model.arena).used_bytes, 0);
    assert_int_equal(stats(model.arena).largest_free_bytes, n_units * UNIT);
    sl_arena_destroy(&model.arena);
    free(model.held);
    free(model.owned);
}

static void test_arena_agrees_with_a_model(void **state) {
    (void)state;
    check_against_model(1, 7, 2000);
    check_against_model(2, 100, 4000);
    check_against_model(3, 4099, 6000);
    check_against_model(4, 20000, 4000);
}

static void *churn(void *arg) {
    struct sl_arena *arena = arg;
    void *held[16] = {0};
    for (unsigned i = 0; i < 4000; i++) {
        unsigned slot = i * 7 % 16;
        sl_arena_free(arena, held[slot]);
        held[slot] = sl_arena_alloc(arena, (i * 977 % 40 + 1) * UNIT);
    }
    for (int i = 0; i < 16; i++) {
        sl_arena_free(arena, held[i]);
    }
    return NULL;
}

static void test_arena_is_whole_again_after_threads(void **state) {
    (void)state;
    struct sl_arena *arena = create(1000 * UNIT);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(sl_thread_start("churn", churn, arena, &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(stats(arena).n_blocks, 0);
    assert_int_equal(stats(arena).largest_free_bytes, 1000 * UNIT);
    sl_arena_destroy(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_refuses_bad_ranges),
        cmocka_unit_test(test_arena_hands_out_everything_in_one_block),
        cmocka_unit_test(test_arena_survives_absurd_sizes),
        cmocka_unit_test(test_arena_large_range_costs_little),
        cmocka_unit_test(test_arena_foresees_what_freeing_would_give),
        cmocka_unit_test(test_arena_ignores_foreign_and_double_frees),
        cmocka_unit_test(test_arena_of_several_ranges),
        cmocka_unit_test(test_arena_high_water_is_kept_and_reset),
        cmocka_unit_test(test_arena_agrees_with_a_model),
        cmocka_unit_test(test_arena_is_whole_again_after_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
