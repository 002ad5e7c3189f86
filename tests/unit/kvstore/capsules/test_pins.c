// SPDX-License-Identifier: Apache-2.0
// Leases on capsules: a leased capsule is not evicted, a lease that is not renewed ends, and that of a capsule being sent ends after the
// send.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>

#include "base/clock.h"
#include "kvstore/capsules/pins.h"
#include "tests/unit/scarce.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_TOKENS    256
#define LEASE_MS    30000
#define LONG_NS     (INT64_C(2) * LEASE_MS * SL_NS_PER_MS)

struct fixture {
    struct parts parts;
    struct sl_pins *pins;
    struct sl_capsule_id id; // of a cached capsule
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, LEASE_MS, 0);
    assert_int_equal(sl_pins_create(fixture->parts.capsule_cache, LEASE_MS, &fixture->pins, NULL), SL_OK);
    struct sl_capsule_keys keys = {.id = {1, 2, {{3}}}};
    struct sl_capsule_bytes capsule = make_capsule(fixture->parts.arena, &keys.id, N_TOKENS, false);
    capsule.body = sl_arena_alloc(fixture->parts.arena, capsule.body_bytes);
    assert_non_null(capsule.body);
    assert_int_equal(sl_capsule_cache_put(fixture->parts.capsule_cache, &keys, &capsule, NULL), SL_OK);
    fixture->id = keys.id;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_pins_destroy(&fixture->pins);
    sl_pins_destroy(&fixture->pins);
    close_parts(&fixture->parts);
    free(fixture);
    return 0;
}

// As a Lookup does.
static struct sl_stored *hold(struct fixture *fixture, char id[SL_LEASE_ID_BYTES]) {
    int64_t covered;
    struct sl_stored *stored = sl_capsule_cache_pin(fixture->parts.capsule_cache, &fixture->id, &covered);
    assert_non_null(stored);
    assert_int_equal(sl_pins_add(fixture->pins, stored, id, NULL), SL_OK);
    return stored;
}

static bool is_evictable(struct fixture *fixture) {
    return sl_capsule_cache_oldest_ns(fixture->parts.capsule_cache, INT64_MAX) != INT64_MAX;
}

static void test_pins_hold_a_capsule_until_released(void **state) {
    struct fixture *fixture = *state;
    char first[SL_LEASE_ID_BYTES], second[SL_LEASE_ID_BYTES];
    hold(fixture, first);
    hold(fixture, second);
    assert_string_not_equal(first, second);
    assert_int_equal(sl_pins_count(fixture->pins), 2);
    assert_false(sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX));
    sl_pins_release(fixture->pins, first);
    sl_pins_release(fixture->pins, first); // idempotent
    assert_int_equal(sl_pins_count(fixture->pins), 1);
    assert_false(is_evictable(fixture));
    sl_pins_release(fixture->pins, second);
    assert_true(is_evictable(fixture));
}

static void test_pins_end_unless_renewed(void **state) {
    struct fixture *fixture = *state;
    char id[SL_LEASE_ID_BYTES];
    hold(fixture, id);
    sl_pins_reap(fixture->pins, sl_now_ns());
    assert_true(sl_pins_renew(fixture->pins, id));
    assert_int_equal(sl_pins_count(fixture->pins), 1);
    sl_pins_reap(fixture->pins, sl_now_ns() + LONG_NS);
    assert_false(sl_pins_renew(fixture->pins, id));
    assert_int_equal(sl_pins_count(fixture->pins), 0);
    assert_true(is_evictable(fixture));
}

static void test_pins_in_use_end_behind_their_return(void **state) {
    struct fixture *fixture = *state;
    char id[SL_LEASE_ID_BYTES];
    struct sl_stored *stored = hold(fixture, id);
    assert_ptr_equal(sl_pins_borrow(fixture->pins, id), stored);
    assert_null(sl_pins_borrow(fixture->pins, id)); // by one at a time
    sl_pins_release(fixture->pins, id);
    sl_pins_reap(fixture->pins, sl_now_ns() + LONG_NS);
    assert_false(is_evictable(fixture));
    sl_pins_return(fixture->pins, id);
    assert_int_equal(sl_pins_count(fixture->pins), 1);
    sl_pins_reap(fixture->pins, sl_now_ns());
    assert_int_equal(sl_pins_count(fixture->pins), 0);
    assert_true(is_evictable(fixture));
}

static void test_pins_know_no_other_ids(void **state) {
    struct fixture *fixture = *state;
    char id[SL_LEASE_ID_BYTES];
    hold(fixture, id);
    id[5] ^= 1;
    assert_null(sl_pins_borrow(fixture->pins, id));
    assert_false(sl_pins_renew(fixture->pins, id));
    sl_pins_release(fixture->pins, id);
    assert_int_equal(sl_pins_count(fixture->pins), 1); // ends with the table
}

static enum sl_status make_pins(void *capsule_cache, struct sl_error *err) {
    struct sl_pins *pins = NULL;
    enum sl_status status = sl_pins_create(capsule_cache, LEASE_MS, &pins, err);
    sl_pins_destroy(&pins);
    return status;
}

static enum sl_status pin(void *arg, struct sl_error *err) {
    struct fixture *fixture = arg;
    int64_t covered;
    char id[SL_LEASE_ID_BYTES];
    struct sl_stored *stored = sl_capsule_cache_pin(fixture->parts.capsule_cache, &fixture->id, &covered);
    enum sl_status status = sl_pins_add(fixture->pins, stored, id, err);
    if (status == SL_OK) {
        sl_pins_release(fixture->pins, id);
    } else {
        sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored); // still ours
    }
    return status;
}

static void test_pins_without_memory_are_refused(void **state) {
    struct fixture *fixture = *state;
    assert_int_equal(assert_refused_without_memory(make_pins, fixture->parts.capsule_cache), 1);
    assert_int_equal(assert_refused_without_memory(pin, fixture), 1);
    assert_int_equal(sl_pins_count(fixture->pins), 0);
    assert_true(is_evictable(fixture));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pins_hold_a_capsule_until_released, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_end_unless_renewed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_in_use_end_behind_their_return, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_know_no_other_ids, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pins_without_memory_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
