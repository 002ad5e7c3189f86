// SPDX-License-Identifier: Apache-2.0
// Purpose: turns of a conversation whose session, or its copy, is lost at any moment, and slow copies.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fake_worker.h"
#include "proto/methods.h"

#define N_NEW          4
#define WAIT_MS        (10000 * SLOWNESS)
#define STORE_LEASE_MS (300 * SLOWNESS)   // of a copy's place, which is renewed
#define ANSWER         "the whole answer" // of every fake

static struct fake_cluster cluster;
static struct fake_worker prefill, decode[2], store;
static char text[1024]; // of the next turn
static int n_turns;

static void start_worker(struct fake_worker *worker, const char *name, Sluice__V1__WorkerRole role) {
    struct sl_error err = {0};
    fake_worker_init(worker, name, role);
    atomic_store(&worker->keeps, true);
    worker->lease_ms = role == SLUICE__V1__WORKER_ROLE__KVSTORE ? STORE_LEASE_MS : WAIT_MS;
    assert_int_equal(fake_worker_start(worker, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
}

static int start(void **state) {
    struct sl_coordinator_config config;
    (void)state;
    fake_cluster_config(&config);
    config.heartbeat_ms = 10 * FAKE_HEARTBEAT_MS; // no worker is lost here because it is slow
    config.silence_ms = 10 * FAKE_SILENCE_MS;
    fake_cluster_start(&cluster, &config);
    start_worker(&prefill, "prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL);
    start_worker(&decode[0], "decode-0", SLUICE__V1__WORKER_ROLE__DECODE);
    start_worker(&decode[1], "decode-1", SLUICE__V1__WORKER_ROLE__DECODE);
    start_worker(&store, "kvstore-0", SLUICE__V1__WORKER_ROLE__KVSTORE);
    strcpy(text, "Once upon a time");
    n_turns = 0;
    return 0;
}

static int stop(void **state) {
    (void)state;
    fake_cluster_stop(&cluster);
    fake_worker_stop(&prefill);
    fake_worker_stop(&decode[0]);
    fake_worker_stop(&decode[1]);
    fake_worker_stop(&store);
    assert_int_equal(sl_rpc_live_calls(), 0);
    return 0;
}

static int n_archives(void) {
    return atomic_load(&decode[0].n_archives) + atomic_load(&decode[1].n_archives);
}

// On a busy machine a copy may come after the end of its answer: the coordinator knows of it when no call is under way.
static void wait_for_copies(void) {
    bool hang = atomic_load(&decode[0].archive_hangs);
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while ((n_archives() < n_turns || (!hang && sl_rpc_live_calls() > 0)) && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(n_archives(), n_turns);
}

struct said {
    int64_t n_prompt, n_reused;
    int retries;
    bool from_store, prefilled;
};

// Runs one turn to its end, which must be good; the next turn's text starts after the answer.
static struct said say(void) {
    struct fake_events events;
    Sluice__V1__Conversation conversation = SLUICE__V1__CONVERSATION__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    conversation.id = "one";
    conversation.keep_ms = 600000;
    request.conversation = &conversation;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = text;
    request.recipe = "full";
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = N_NEW;
    request.ignore_eos = true;
    fake_generate(&cluster, &request, &events);
    const Sluice__V1__Finished *finished = fake_events_check(&events, N_NEW);
    assert_int_equal(finished->status_code, 0);
    assert_string_equal(finished->text, ANSWER);
    struct said said = {finished->statistics->n_prompt_tokens, finished->statistics->n_reused_tokens,
                        finished->statistics->retries, false, false};
    for (int i = 0; i < events.n; i++) {
        const Sluice__V1__Event *event = events.events[i];
        said.prefilled |= event->what_case == SLUICE__V1__EVENT__WHAT_PREFILL;
        said.from_store |=
            event->what_case == SLUICE__V1__EVENT__WHAT_STATE && strstr(event->state->detail, "from its store") != NULL;
    }
    fake_events_free(&events);
    strcat(text, ANSWER " and");
    n_turns++;
    wait_for_copies();
    return said;
}

static void end_conversation(void) {
    Sluice__V1__ConversationRequest request = SLUICE__V1__CONVERSATION_REQUEST__INIT;
    struct sl_error err = {0};
    request.id = "one";
    assert_int_equal(sl_rpc_unary(cluster.channel, &sl_method_inference_end_conversation, &request.base,
                                  sl_deadline_in_ms(WAIT_MS), NULL, NULL, &err),
                     SL_OK);
}

static void wait_for_at_least(atomic_int *count, int n) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while (atomic_load(count) < n && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_true(atomic_load(count) >= n);
}

static void wait_for(atomic_int *count, int n) {
    wait_for_at_least(count, n);
    assert_int_equal(atomic_load(count), n);
}

static void on_both(size_t offset, bool value) {
    for (int i = 0; i < 2; i++) {
        atomic_store((atomic_bool *)((char *)&decode[i] + offset), value);
    }
}
#define ON_BOTH(what, value) on_both(offsetof(struct fake_worker, what), value)

static void test_turn_goes_on_where_its_session_is(void **state) {
    (void)state;
    struct said first = say(), second = say(), third = say();
    assert_true(first.prefilled && !second.prefilled && !second.from_store && !third.from_store);
    assert_int_equal(second.n_reused, first.n_prompt + N_NEW - 1);
    assert_int_equal(third.n_reused, second.n_prompt + N_NEW - 1);
    wait_for(&store.n_forgotten, 1); // the first copy
    end_conversation();
    wait_for(&store.n_forgotten, 3);
}

// The lease is over, or the worker has needed the memory: no retry, no reading of what was read.
static void test_turn_goes_on_from_the_store_when_the_lease_is_over(void **state) {
    (void)state;
    struct said first = say();
    ON_BOTH(has_lost_sessions, true);
    struct said second = say();
    assert_true(second.from_store && !second.prefilled);
    assert_int_equal(second.n_reused, first.n_prompt + N_NEW - 1);
    assert_int_equal(second.retries, 0);
    assert_int_equal(store.n_fetched, 1);
    ON_BOTH(has_lost_sessions, false);
    struct said third = say(); // and it is kept again
    assert_true(!third.from_store && !third.prefilled);
    assert_int_equal(store.n_fetched, 1);
    end_conversation();
}

// Lost in the middle of its answer, the turn goes on elsewhere with the copy, and says that it was tried again.
static void test_turn_that_goes_on_elsewhere_counts_as_a_retry(void **state) {
    (void)state;
    struct said first = say();
    atomic_store(&decode[0].break_at_token, 2);
    atomic_store(&decode[1].break_at_token, 2);
    int kept_by = atomic_load(&decode[0].n_archives) > 0 ? 0 : 1;
    atomic_store(&decode[1 - kept_by].break_at_token, -1);
    struct said second = say();
    assert_true(second.from_store && !second.prefilled);
    assert_int_equal(second.retries, 1);
    assert_int_equal(second.n_reused, first.n_prompt + N_NEW - 1);
    end_conversation();
}

// A worker that is lost while it copies has lost the session with it: another one makes the same, and clients see each token once.
static void test_turn_is_made_again_behind_a_lost_copy(void **state) {
    (void)state;
    struct said first = say();
    atomic_store(&decode[0].n_lost_archives, 1);
    atomic_store(&decode[1].n_lost_archives, 1);
    struct said second = say();
    assert_in_range(second.retries, 1, 2);
    assert_true(second.from_store);
    assert_int_equal(second.n_reused, first.n_prompt + N_NEW - 1);
    struct said third = say();
    assert_true(!third.from_store && !third.prefilled);
    end_conversation();
}

// Clients hear the end though the copy is not there. Without the session the next turn goes back to the copy before it.
static void test_turn_ends_before_a_copy_that_takes_long(void **state) {
    (void)state;
    struct said first = say();
    ON_BOTH(archive_hangs, true);
    struct said second = say();
    assert_false(second.from_store);
    ON_BOTH(has_lost_sessions, true);
    struct said third = say();
    assert_true(third.from_store && !third.prefilled);
    assert_int_equal(third.n_reused, first.n_prompt + N_NEW - 1);
    assert_int_equal(store.n_forgotten, 0);
    // The conversation was ended meanwhile: later copies are removed as soon as they exist, as the first one was.
    end_conversation();
    assert_int_equal(store.n_forgotten, 1);
    ON_BOTH(archive_hangs, false);
    wait_for(&store.n_forgotten, 3);
}

// A copy of a large session gets time for its bytes, and the store holds its place meanwhile.
static void test_turn_has_time_to_copy_a_large_session(void **state) {
    (void)state;
    const int64_t more_ms = 600000;
    say();
    for (int i = 0; i < 2; i++) {
        assert_in_range(atomic_load(&decode[i].archive_ms), 0, more_ms);
        atomic_store(&decode[i].kept_bytes, more_ms * 50000);
    }
    const int n_renewed = atomic_load(&store.n_renewed);
    ON_BOTH(archive_hangs, true);
    say();
    wait_for_at_least(&store.n_renewed, n_renewed + 4); // the place is held for longer than its lease
    assert_true(atomic_load(&decode[0].archive_ms) > more_ms || atomic_load(&decode[1].archive_ms) > more_ms);
    ON_BOTH(archive_hangs, false);
    wait_for_copies();
    end_conversation();
    wait_for(&store.n_forgotten, 2); // the second one is there, too
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turn_goes_on_where_its_session_is, start, stop),
        cmocka_unit_test_setup_teardown(test_turn_goes_on_from_the_store_when_the_lease_is_over, start, stop),
        cmocka_unit_test_setup_teardown(test_turn_that_goes_on_elsewhere_counts_as_a_retry, start, stop),
        cmocka_unit_test_setup_teardown(test_turn_is_made_again_behind_a_lost_copy, start, stop),
        cmocka_unit_test_setup_teardown(test_turn_ends_before_a_copy_that_takes_long, start, stop),
        cmocka_unit_test_setup_teardown(test_turn_has_time_to_copy_a_large_session, start, stop),
    };
    sl_rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}
