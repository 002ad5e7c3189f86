// SPDX-License-Identifier: Apache-2.0
// Purpose: workers are lost, break, fall silent and come back; clients see each token once and an honest end, in time.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "base/processors.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/workers/admit_internal.h"
#include "fake_worker.h"
#include "proto/methods.h"
#include "tests/unit/running_clock.h"

#define PREFILL SLUICE__V1__WORKER_ROLE__PREFILL
#define DECODE  SLUICE__V1__WORKER_ROLE__DECODE

static struct fake_cluster cluster;
static struct fake_worker prefill[2], decode[2], store; // store: of the test that needs it
static struct fake_events events;
static char id[64];

static void start_worker(struct fake_worker *worker, const char *name, Sluice__V1__WorkerRole role) {
    struct sl_error err = {0};
    fake_worker_init(worker, name, role);
    assert_int_equal(fake_worker_start(worker, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
}

static int count_readings(void) {
    struct sl_admission *admission = cluster.coordinator->admission;
    SL_LOCKED(&admission->mutex);
    return admission->n_reading;
}

// On a busy machine a heartbeat or a token may come late: workers that are not lost must not seem so.
static void patient_config(struct sl_coordinator_config *config) {
    fake_cluster_config(config);
    config->heartbeat_ms = 5 * FAKE_HEARTBEAT_MS;
    config->silence_ms = 5 * FAKE_SILENCE_MS;
}

static int start_with(const struct sl_coordinator_config *config) {
    fake_cluster_start(&cluster, config);
    start_worker(&prefill[0], "prefill-0", PREFILL);
    start_worker(&prefill[1], "prefill-1", PREFILL);
    start_worker(&decode[0], "decode-0", DECODE);
    start_worker(&decode[1], "decode-1", DECODE);
    return 0;
}

// Two of each role; on an idle cluster the first job goes to number 0 of each.
static int start(void **state) {
    (void)state;
    struct sl_coordinator_config config;
    patient_config(&config);
    return start_with(&config);
}

// Jobs wait for workers for as long as a machine may stand still.
static int start_patient(void **state) {
    (void)state;
    struct sl_coordinator_config config;
    patient_config(&config);
    config.worker_wait_ms = 15000;
    return start_with(&config);
}

static int start_one_at_a_time(void **state) {
    (void)state;
    struct sl_coordinator_config config;
    patient_config(&config);
    config.max_jobs = 1;
    return start_with(&config);
}

static int stop(void **state) {
    (void)state;
    fake_cluster_stop(&cluster);
    fake_worker_stop(&store);
    for (int i = 0; i < 2; i++) {
        fake_worker_stop(&prefill[i]);
        fake_worker_stop(&decode[i]);
    }
    assert_int_equal(sl_rpc_live_calls(), 0);
    return 0;
}

static bool is_lost(const char *name) {
    Sluice__V1__WorkersRequest request = SLUICE__V1__WORKERS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_unary(cluster.channel, &sl_method_cluster_workers, &request.base, sl_deadline_in_ms(5000),
                                  NULL, &message, &err),
                     SL_OK);
    const Sluice__V1__WorkersReply *reply = (const Sluice__V1__WorkersReply *)message;
    bool lost = false;
    for (size_t i = 0; i < reply->n_workers; i++) {
        lost |= strcmp(reply->workers[i]->info->name, name) == 0 &&
                reply->workers[i]->state == SLUICE__V1__WORKER_STATE__LOST;
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return lost;
}

static void await_lost(const char *name) {
    for (int64_t end_ns = sl_deadline_in_ms(20000); !is_lost(name); sl_sleep_ms(5)) {
        assert_true(sl_now_ns() < end_ns);
    }
}

// Waits until a worker has counted one.
static void await_first(atomic_int *count) {
    for (int64_t end_ns = sl_deadline_in_ms(20000); atomic_load(count) == 0; sl_sleep_ms(5)) {
        assert_true(sl_now_ns() < end_ns);
    }
}

// Until the job has said something.
static void await_tokens(int64_t n) {
    int64_t end_ns = sl_deadline_in_ms(20000), told;
    do {
        sl_sleep_ms(5);
        Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_get, id);
        told = job->n_output_tokens;
        sluice__v1__job__free_unpacked(job, NULL);
        assert_true(sl_now_ns() < end_ns);
    } while (told < n);
}

static const Sluice__V1__Finished *run_job(int n_tokens, int n_expected) {
    Sluice__V1__GenerateRequest request;
    fake_request(&request, n_tokens);
    fake_generate(&cluster, &request, &events);
    return fake_events_check(&events, n_expected);
}

static void test_broken_prefill_is_retried_elsewhere(void **state) {
    (void)state;
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_UNAVAILABLE);
    const Sluice__V1__Finished *finished = run_job(10, 10);
    assert_int_equal(finished->status_code, 0);
    assert_int_equal(finished->statistics->retries, 1);
    assert_true(fake_events_tell(&events, "retry 1: prefill-0"));
    assert_true(fake_events_tell(&events, "prefill-1 -> "));
    assert_int_equal(atomic_load(&decode[0].open_leases) + atomic_load(&decode[1].open_leases), 0);
    assert_int_equal(atomic_load(&decode[0].n_released) + atomic_load(&decode[1].n_released), 1);
    fake_events_free(&events);
}

// A worker that released its lease is not to blame for a failure of the other worker: the retry uses it again, as the
// other decode worker has no room.
static void test_decode_that_released_its_lease_is_not_to_blame(void **state) {
    (void)state;
    struct sl_error err = {0};
    fake_worker_stop(&decode[1]);
    fake_worker_init(&decode[1], "decode-1", DECODE);
    decode[1].arena_bytes = 4096;
    assert_int_equal(fake_worker_start(&decode[1], sl_coordinator_address(cluster.coordinator), &err), SL_OK);
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_UNAVAILABLE);
    const Sluice__V1__Finished *finished = run_job(10, 10);
    assert_int_equal(finished->status_code, 0);
    assert_int_equal(finished->statistics->retries, 1);
    assert_true(fake_events_tell(&events, "prefill-1 -> decode-0"));
    assert_int_equal(atomic_load(&decode[0].n_released), 1);
    fake_events_free(&events);
}

static void test_silent_prefill_is_lost_and_retried(void **state) {
    (void)state;
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_SILENT);
    const Sluice__V1__Finished *finished = run_job(10, 10);
    assert_in_range(finished->statistics->retries, 1, 3); // on a busy machine the other worker may seem silent, too
    assert_true(fake_events_tell(&events, "silent"));
    await_first(&prefill[0].n_cancelled); // it is told to stop
    fake_events_free(&events);
}

static void test_killed_prefill_is_retried(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_SHIPS_FOR_EVER);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__SHIPPING);
    assert_int_equal(count_readings(), 0); // meanwhile the worker may read
    fake_worker_stop(&prefill[0]);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 10)->status_code, 0);
    assert_int_equal(fake_events_check(&events, 10)->statistics->retries, 1);
    fake_events_free(&events);
}

static void test_refusal_is_not_retried(void **state) {
    (void)state;
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_REFUSES);
    const Sluice__V1__Finished *finished = run_job(10, 0);
    assert_int_equal(finished->status_code, 9); // FAILED_PRECONDITION
    assert_non_null(strstr(finished->status_text, "scruples"));
    assert_int_equal(finished->statistics->retries, 0);
    assert_int_equal(events.status, SL_ERR_PRECONDITION); // Generate does not call a failure a success
    assert_int_equal(atomic_load(&decode[0].open_leases), 0);
    fake_events_free(&events);
}

static void refuse_reserve(int n, enum sl_status status) {
    for (int i = 0; i < 2; i++) {
        atomic_store(&decode[i].reserve_refusal, status);
        atomic_store(&decode[i].n_reserve_refusals, n);
    }
}

// The coordinator has counted the job's memory when the worker refuses it: that is undone (fake_cluster_assert_idle()
// demands it), and asked again.
static void test_reserve_refused_after_the_claim_is_asked_again(void **state) {
    (void)state;
    refuse_reserve(2, SL_ERR_EXHAUSTED);
    const Sluice__V1__Finished *finished = run_job(10, 10);
    assert_int_equal(finished->status_code, 0);
    int left = atomic_load(&decode[0].n_reserve_refusals) + atomic_load(&decode[1].n_reserve_refusals);
    assert_in_range(left, 0, 3); // some were
    assert_int_equal(atomic_load(&decode[0].n_reserved) + atomic_load(&decode[1].n_reserved), 1);
    assert_int_equal(atomic_load(&decode[0].open_leases) + atomic_load(&decode[1].open_leases), 0);
    assert_int_equal(atomic_load(&prefill[0].n_runs) + atomic_load(&prefill[1].n_runs), 1);
    fake_events_free(&events);
}

static void test_reserve_refused_for_good_leaves_nothing_claimed(void **state) {
    (void)state;
    refuse_reserve(100, SL_ERR_PRECONDITION);
    const Sluice__V1__Finished *finished = run_job(10, 0);
    assert_int_equal(finished->status_code, 9); // FAILED_PRECONDITION
    assert_int_equal(atomic_load(&prefill[0].n_runs) + atomic_load(&prefill[1].n_runs), 0);
    assert_int_equal(atomic_load(&decode[0].open_leases) + atomic_load(&decode[1].open_leases), 0);
    fake_events_free(&events);
    refuse_reserve(0, SL_OK); // and the memory that it had claimed is there for the next
    finished = run_job(10, 10);
    assert_int_equal(finished->status_code, 0);
    fake_events_free(&events);
}

static void test_broken_decode_resumes_without_repeating_a_token(void **state) {
    (void)state;
    atomic_store(&decode[0].break_at_token, 7);
    const Sluice__V1__Finished *finished = run_job(20, 20); // each index once: fake_events_check()
    assert_int_equal(finished->status_code, 0);
    assert_int_equal(finished->statistics->retries, 1);
    assert_int_equal(finished->statistics->n_output_tokens, 20);
    assert_int_equal(atomic_load(&decode[1].last_resumed), 7);
    assert_int_equal(atomic_load(&decode[1].last_said), -1);
    // The prefill call ran again: it found the stored capsule and had it shipped.
    assert_int_equal(atomic_load(&prefill[0].n_runs) + atomic_load(&prefill[1].n_runs), 2);
    assert_true(fake_events_tell(&events, "retry 1: decode-0"));
    // Five of the one that finished, three that the other told of: its tokens stay.
    assert_int_equal(finished->statistics->retrieval->fallbacks, 8);
    fake_events_free(&events);
}

static void test_decode_lost_after_the_last_token_still_finishes(void **state) {
    (void)state;
    atomic_store(&decode[0].break_at_token, 20); // all were sent, but not that it was the end
    const Sluice__V1__Finished *finished = run_job(20, 20);
    assert_int_equal(finished->status_code, 0);
    assert_int_equal(finished->reason, SLUICE__V1__FINISHED__REASON__LENGTH);
    assert_int_equal(finished->statistics->retries, 1);
    assert_int_equal(atomic_load(&decode[1].last_resumed), 19); // the last one is written again, and told once
    assert_int_equal(atomic_load(&decode[1].last_said), FAKE_FIRST_ID + 19);
    fake_events_free(&events);
}

static void test_killed_decode_resumes(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    atomic_store(&decode[0].token_ms, 20);
    fake_submit(&cluster, &request, id);
    await_tokens(5);
    fake_worker_stop(&decode[0]);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 400)->status_code, 0);
    assert_in_range(atomic_load(&decode[1].last_resumed), 1, 399);
    fake_events_free(&events);
}

static void test_decode_that_dies_during_prefill_aborts_it(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_READS_FOR_EVER);
    fake_submit(&cluster, &request, id);
    await_first(&prefill[0].n_runs);
    sl_sleep_ms(50);
    atomic_store(&prefill[0].prefill_mode, FAKE_PREFILL_WORKS); // for the next attempt
    fake_worker_stop(&decode[0]);
    fake_watch(&cluster, id, 0, &events);
    const Sluice__V1__Finished *finished = fake_events_check(&events, 10);
    assert_int_equal(finished->statistics->retries, 1);
    assert_true(fake_events_tell(&events, "decode-0 was lost"));
    await_first(&prefill[0].n_cancelled); // which may come after the job has ended
    assert_int_equal(atomic_load(&prefill[0].n_cancelled), 1);
    fake_events_free(&events);
}

static void test_reregistration_fails_jobs_over(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    struct sl_error err = {0};
    fake_request(&request, 10);
    atomic_store(&decode[0].decode_hangs, true);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
    struct fake_worker reborn; // the same name while the old one still answers: a stale incarnation
    fake_worker_init(&reborn, "decode-0", DECODE);
    atomic_store(&decode[0].mute, true);
    assert_int_equal(fake_worker_start(&reborn, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 10)->status_code, 0);
    assert_int_equal(fake_events_check(&events, 10)->statistics->retries, 1);
    fake_events_free(&events);
    fake_worker_stop(&reborn);
}

static void test_nobody_left_fails_in_time_with_unavailable(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    atomic_store(&decode[0].token_ms, 20);
    fake_worker_stop(&decode[1]);
    await_lost("decode-1");
    fake_submit(&cluster, &request, id);
    await_tokens(3);
    int64_t start_ns = sl_now_ns(), running = running_ns();
    fake_worker_stop(&decode[0]);
    fake_watch(&cluster, id, 0, &events);
    int64_t took_ms = (sl_now_ns() - start_ns) / SL_NS_PER_MS, ran_ms = (running_ns() - running) / SL_NS_PER_MS;
    const Sluice__V1__Finished *finished = fake_events_check(&events, -1);
    assert_int_equal(finished->status_code, 14);
    assert_non_null(strstr(finished->status_text, "no decode worker"));
    assert_true(took_ms >= FAKE_WAIT_MS && ran_ms < FAKE_WAIT_MS + 3000);
    fake_events_free(&events);
}

static bool was_told_to_wait(void) {
    for (int i = 0; i < events.n; i++) {
        const Sluice__V1__Event *event = events.events[i];
        if (event->what_case == SLUICE__V1__EVENT__WHAT_NOTICE && strstr(event->notice->text, "no decode worker")) {
            return true;
        }
    }
    return false;
}

static void stop_decode_workers(void) {
    fake_worker_stop(&decode[0]);
    fake_worker_stop(&decode[1]);
    await_lost("decode-0");
    await_lost("decode-1");
}

// A deadline of its own is all that ends the wait: neither --worker-wait nor another limit.
static void test_job_with_a_deadline_waits_until_then(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    stop_decode_workers();
    request.deadline_ms = 15000;
    fake_submit(&cluster, &request, id);
    sl_sleep_ms(2500 + FAKE_WAIT_MS);
    start_worker(&decode[0], "decode-0", DECODE);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 10)->status_code, 0);
    assert_true(was_told_to_wait());
    fake_events_free(&events);
}

static void test_deadline_without_a_worker_names_the_worker(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    stop_decode_workers();
    request.deadline_ms = 2 * FAKE_WAIT_MS;
    fake_generate(&cluster, &request, &events);
    const Sluice__V1__Finished *finished = fake_events_check(&events, 0);
    assert_int_equal(finished->status_code, 4); // DEADLINE_EXCEEDED
    assert_non_null(strstr(finished->status_text, "no decode worker"));
    fake_events_free(&events);
}

static void test_worker_that_comes_back_is_waited_for(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    atomic_store(&decode[0].token_ms, 20);
    fake_worker_stop(&decode[1]);
    await_lost("decode-1");
    fake_submit(&cluster, &request, id);
    await_tokens(3);
    fake_worker_stop(&decode[0]);
    await_lost("decode-0");
    start_worker(&decode[1], "decode-0", DECODE);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 400)->status_code, 0);
    assert_true(atomic_load(&decode[1].last_resumed) > 0);
    fake_events_free(&events);
}

// The second job waits to take the beginning of its prompt from a store. The store leaves, and prefill reads the
// prompt.
static void test_prefill_reads_when_the_store_has_left(void **state) {
    (void)state;
    Sluice__V1__TokenIds prompt = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__GenerateRequest request;
    int32_t ids[200];
    char first[64];
    for (int i = 0; i < 200; i++) {
        ids[i] = 5 + i;
    }
    prompt.ids = ids;
    prompt.n_ids = 200;
    fake_request(&request, 5);
    request.tokens = &prompt;
    start_worker(&store, "kvstore-0", SLUICE__V1__WORKER_ROLE__KVSTORE);
    fake_generate(&cluster, &request, &events);
    assert_int_equal(fake_events_check(&events, 5)->status_code, 0);
    fake_events_free(&events);
    for (int i = 0; i < 2; i++) {
        fake_worker_stop(&prefill[i]);
        await_lost(prefill[i].name);
        atomic_store(&decode[i].decode_hangs, true);
    }
    fake_submit(&cluster, &request, first);
    fake_await_state(&cluster, first, SLUICE__V1__JOB_STATE__DECODING);
    fake_submit(&cluster, &request, id);
    sl_sleep_ms(100 * SLOWNESS); // the job's thread decides how it begins
    start_worker(&prefill[0], "prefill-0", PREFILL);
    fake_worker_stop(&store);
    await_lost("kvstore-0");
    atomic_store(&decode[0].decode_hangs, false);
    atomic_store(&decode[1].decode_hangs, false);

    fake_watch(&cluster, first, 0, &events);
    assert_int_equal(fake_events_check(&events, 5)->status_code, 0);
    assert_true(fake_events_tell(&events, "with the stored beginning of its prompt"));
    fake_events_free(&events);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 5)->status_code, 0);
    assert_true(fake_events_tell(&events, "with the stored beginning of its prompt"));
    assert_true(fake_events_tell(&events, "no kvstore is ready any more") &&
                fake_events_tell(&events, "prefill-0 -> "));
    assert_int_equal(atomic_load(&decode[0].n_runs) + atomic_load(&decode[1].n_runs),
                     3); // none without prefill and store
    fake_events_free(&events);
}

// Clients hear the same of it, however workers put it.
static void retries_are_bounded(int prefill_mode) {
    atomic_store(&prefill[0].prefill_mode, prefill_mode);
    atomic_store(&prefill[1].prefill_mode, prefill_mode);
    const Sluice__V1__Finished *finished = run_job(10, 0);
    assert_int_equal(finished->status_code, 14);
    assert_int_equal(finished->statistics->retries, 2);
    assert_int_equal(events.status, SL_ERR_PEER_LOST);
    assert_int_equal(atomic_load(&prefill[0].n_runs) + atomic_load(&prefill[1].n_runs), 3);
    assert_int_equal(atomic_load(&decode[0].open_leases) + atomic_load(&decode[1].open_leases), 0);
    fake_events_free(&events);
}

static void test_retries_are_bounded(void **state) {
    (void)state;
    retries_are_bounded(FAKE_PREFILL_UNAVAILABLE);
}

static void test_retries_that_others_cause_are_bounded(void **state) {
    (void)state;
    retries_are_bounded(FAKE_PREFILL_LOST_ANOTHER);
}

static void test_deadline_ends_a_job_everywhere(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    request.deadline_ms = 400;
    atomic_store(&decode[0].decode_hangs, true);
    int64_t start_ns = sl_now_ns(), running = running_ns();
    fake_submit(&cluster, &request, id);
    fake_watch(&cluster, id, 0, &events);
    assert_true(sl_now_ns() - start_ns >= 380 * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 1400);
    assert_int_equal(fake_events_check(&events, 0)->status_code, 4); // DEADLINE_EXCEEDED
    assert_int_equal(atomic_load(&decode[0].open_leases), 0);
    assert_int_equal(atomic_load(&decode[0].n_released), 1);
    fake_events_free(&events);
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_passed;

static void pass_the_held(void *arg) {
    (void)arg;
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    atomic_fetch_add(&n_passed, 1);
}

static void test_workers_are_heard_while_no_fiber_can_run(void **state) {
    (void)state;
    const int n = 2 * sl_processors_count() + 8; // more than there are carriers
    struct sl_error err;
    pthread_mutex_lock(&held);
    for (int i = 0; i < n; i++) {
        assert_int_equal(sl_fiber_start("test", pass_the_held, NULL, &err), SL_OK);
    }
    (void)is_lost("prefill-0"); // a call of the heartbeats' service, which is answered in time
    pthread_mutex_unlock(&held);
    for (const int64_t end_ns = sl_deadline_in_ms(60000); atomic_load(&n_passed) < n; sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
    }
}

// So do all programs with fake workers (fake_config.c).
static void test_a_failed_assertion_ends_the_program(void **state) {
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || prctl(PR_SET_DUMPABLE, 0) != 0) { // no message, no core
            _exit(1);
        }
        alarm(10);
        assert_true(false);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(test_broken_prefill_is_retried_elsewhere),
        TEST(test_decode_that_released_its_lease_is_not_to_blame),
        TEST(test_silent_prefill_is_lost_and_retried),
        TEST(test_killed_prefill_is_retried),
        TEST(test_refusal_is_not_retried),
        TEST(test_reserve_refused_after_the_claim_is_asked_again),
        TEST(test_reserve_refused_for_good_leaves_nothing_claimed),
        TEST(test_broken_decode_resumes_without_repeating_a_token),
        TEST(test_decode_lost_after_the_last_token_still_finishes),
        TEST(test_killed_decode_resumes),
        TEST(test_decode_that_dies_during_prefill_aborts_it),
        TEST(test_reregistration_fails_jobs_over),
        TEST(test_nobody_left_fails_in_time_with_unavailable),
        TEST(test_job_with_a_deadline_waits_until_then),
        TEST(test_deadline_without_a_worker_names_the_worker),
        cmocka_unit_test_setup_teardown(test_worker_that_comes_back_is_waited_for, start_patient, stop),
        cmocka_unit_test_setup_teardown(test_prefill_reads_when_the_store_has_left, start_one_at_a_time, stop),
        TEST(test_retries_are_bounded),
        TEST(test_retries_that_others_cause_are_bounded),
        TEST(test_deadline_ends_a_job_everywhere),
        TEST(test_workers_are_heard_while_no_fiber_can_run),
        cmocka_unit_test(test_a_failed_assertion_ends_the_program), // the last one: without its end, the child returns
    };
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
