// SPDX-License-Identifier: Apache-2.0
// Capsules over a real fabric on the loopback interface: the store keeps what was announced once it has arrived, and nothing else.
#include "tests/unit/kvstore/harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kvstore/capsules/arrivals.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_TOKENS    256
#define LEASE_MS    30000
#define WAIT_MS     5000

struct fixture {
    struct parts parts;
    struct sl_arrivals *arrivals;
    struct prompt prompt;
    struct sl_capsule_keys keys;
    struct sl_capsule_bytes capsule; // as its sender has it
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, LEASE_MS, 0);
    assert_int_equal(sl_arrivals_create(&fixture->parts.room, NULL, NULL, &fixture->arrivals, NULL), SL_OK);
    make_prompt(&fixture->prompt, 1, 0, N_TOKENS);
    fixture->keys = (struct sl_capsule_keys){.id = {11, 22, fixture->prompt.hashes.whole},
                                             .hashes = fixture->prompt.prefixes,
                                             .n_hashes = N_TOKENS / SL_PREFIX_BLOCK,
                                             .stride = SL_PREFIX_BLOCK};
    fixture->capsule = make_capsule(fixture->parts.arena, &fixture->keys.id, N_TOKENS, false);
    fixture->capsule.body = calloc(1, fixture->capsule.body_bytes);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_arrivals_destroy(&fixture->arrivals);
    sl_arrivals_destroy(&fixture->arrivals);
    free(fixture->capsule.header);
    free(fixture->capsule.body);
    close_parts(&fixture->parts);
    free(fixture);
    return 0;
}

// As a Reserve does.
static struct sl_inbound_ticket announce(struct fixture *fixture) {
    struct sl_inbound_ticket ticket;
    assert_int_equal(
        sl_room_open_inbound(&fixture->parts.room, "test", fixture->capsule.body_bytes, 4096, 0, &ticket, NULL), SL_OK);
    assert_int_equal(sl_arrivals_expect(fixture->arrivals, ticket.id, &fixture->keys, NULL), SL_OK);
    assert_true(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
    return ticket;
}

static void wait_until_nothing_is_expected(struct fixture *fixture) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    uint64_t seen = 0;
    do {
        sl_inbound_wait_change(fixture->parts.inbound, &seen, sl_deadline_in_ms(100));
        sl_arrivals_cache(fixture->arrivals);
    } while (sl_inbound_count(fixture->parts.inbound) > 0 && sl_now_ns() < deadline);
    assert_int_equal(sl_inbound_count(fixture->parts.inbound), 0);
    assert_int_equal(promised_bytes(&fixture->parts), 0);
}

static void test_arrivals_are_shelved_and_found_by_every_prefix(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket = announce(fixture);
    sl_arrivals_cache(fixture->arrivals); // not yet
    assert_true(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
    assert_false(sl_capsule_cache_has(fixture->parts.capsule_cache, &fixture->keys.id));
    ship_capsule(&fixture->parts, &ticket, &fixture->capsule);
    wait_until_nothing_is_expected(fixture);
    assert_true(sl_capsule_cache_has(fixture->parts.capsule_cache, &fixture->keys.id));
    for (size_t i = 0; i < fixture->keys.n_hashes; i++) {
        struct sl_capsule_id prefix = {11, 22, fixture->prompt.prefixes[i]};
        int64_t covered;
        struct sl_stored *stored = sl_capsule_cache_pin(fixture->parts.capsule_cache, &prefix, &covered);
        assert_non_null(stored);
        assert_int_equal(covered, (i + 1) * SL_PREFIX_BLOCK);
        sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored);
    }
    free(ticket.ticket);
}

static void test_arrivals_that_end_are_forgotten(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket = announce(fixture);
    sl_inbound_release(fixture->parts.inbound, ticket.id);
    wait_until_nothing_is_expected(fixture);
    assert_false(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
    free(ticket.ticket);
}

static void test_arrivals_of_something_else_are_not_shelved(void **state) {
    struct fixture *fixture = *state;
    fixture->keys.id.recipe_fingerprint++;
    struct sl_inbound_ticket ticket = announce(fixture);
    ship_capsule(&fixture->parts, &ticket, &fixture->capsule);
    wait_until_nothing_is_expected(fixture);
    assert_false(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
    free(ticket.ticket);
}

// On its way, arrived, or stored: nothing of it stays, and it may come again.
static void test_arrivals_that_nobody_wants_any_more(void **state) {
    struct fixture *fixture = *state;
    assert_false(sl_arrivals_forget(fixture->arrivals, &fixture->keys.id));
    for (int when = 0; when < 3; when++) {
        struct sl_inbound_ticket ticket = announce(fixture);
        if (when > 0) {
            ship_capsule(&fixture->parts, &ticket, &fixture->capsule);
        }
        if (when > 1) {
            wait_until_nothing_is_expected(fixture);
        }
        assert_true(sl_arrivals_forget(fixture->arrivals, &fixture->keys.id));
        assert_false(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
        wait_until_nothing_is_expected(fixture);
        assert_false(sl_arrivals_knows(fixture->arrivals, &fixture->keys.id));
        free(ticket.ticket);
    }
}

// ---- the same capsule twice ------------------------------------------------------------------------------------------

#define N_THREADS 8
#define N_ROUNDS  50

struct race {
    struct fixture *fixture;
    pthread_barrier_t begin, end;
    _Atomic int n_ok, n_exists;
};

static void *announce_often(void *arg) {
    struct race *race = arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        struct sl_capsule_keys keys = race->fixture->keys;
        keys.id.model_fingerprint = (uint64_t)i;
        pthread_barrier_wait(&race->begin);
        enum sl_status status = sl_arrivals_expect(race->fixture->arrivals, "no such lease", &keys, NULL);
        atomic_fetch_add(&race->n_ok, status == SL_OK);
        atomic_fetch_add(&race->n_exists, status == SL_ERR_EXISTS);
        pthread_barrier_wait(&race->end);
    }
    return NULL;
}

static void test_arrivals_are_announced_by_one_of_many_at_once(void **state) {
    struct race race = {.fixture = *state};
    pthread_t threads[N_THREADS];
    pthread_barrier_init(&race.begin, NULL, N_THREADS);
    pthread_barrier_init(&race.end, NULL, N_THREADS);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, announce_often, &race), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(race.n_ok, N_ROUNDS);
    assert_int_equal(race.n_exists, N_ROUNDS * (N_THREADS - 1));
    pthread_barrier_destroy(&race.begin);
    pthread_barrier_destroy(&race.end);
}

// A client that offers the capsule a moment later, when it is already stored, gets the same status.
static void test_arrivals_are_not_announced_when_they_are_stored(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket = announce(fixture);
    struct sl_error err = {0};
    assert_int_equal(sl_arrivals_expect(fixture->arrivals, "another", &fixture->keys, &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "on its way"));
    ship_capsule(&fixture->parts, &ticket, &fixture->capsule);
    wait_until_nothing_is_expected(fixture);
    assert_int_equal(sl_arrivals_expect(fixture->arrivals, "another", &fixture->keys, NULL), SL_ERR_EXISTS);
    free(ticket.ticket);
}

// When the store stops, capsules that have not arrived give back their leases and memory.
static void test_arrivals_end_with_the_store(void **state) {
    struct fixture *fixture = *state;
    struct sl_inbound_ticket ticket = announce(fixture);
    sl_arrivals_destroy(&fixture->arrivals);
    assert_int_equal(sl_inbound_count(fixture->parts.inbound), 0);
    assert_int_equal(promised_bytes(&fixture->parts), 0);
    free(ticket.ticket);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_arrivals_are_shelved_and_found_by_every_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_that_end_are_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_of_something_else_are_not_shelved, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_that_nobody_wants_any_more, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_are_announced_by_one_of_many_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_are_not_announced_when_they_are_stored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arrivals_end_with_the_store, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
