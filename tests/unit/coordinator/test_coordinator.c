// SPDX-License-Identifier: Apache-2.0
// Purpose: the coordinator in this process with fake workers: jobs that go well, that are followed, refused, cancelled.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "fake_worker.h"
#include "proto/methods.h"
#include "tests/unit/running_clock.h"

#define PREFILL SLUICE__V1__WORKER_ROLE__PREFILL
#define DECODE  SLUICE__V1__WORKER_ROLE__DECODE

static struct fake_cluster cluster;
static struct fake_worker prefill, decode, stores[2]; // stores: of the tests that need them
static struct fake_events events;
static char id[64];

static void start_stores(int n) {
    struct sl_error err = {0};
    for (int i = 0; i < n; i++) {
        fake_worker_init(&stores[i], i == 0 ? "kvstore-0" : "kvstore-1", SLUICE__V1__WORKER_ROLE__KVSTORE);
        assert_int_equal(fake_worker_start(&stores[i], sl_coordinator_address(cluster.coordinator), &err), SL_OK);
    }
}

// No test here loses a worker: a machine that lets this process wait for seconds loses none either.
static void patient_config(struct sl_coordinator_config *config) {
    fake_cluster_config(config);
    config->heartbeat_ms = 10000;
    config->silence_ms = 30000;
    config->worker_wait_ms = 30000;
    config->deadline_ms = 60000;
}

static int start(void **state) {
    (void)state;
    struct sl_coordinator_config config;
    patient_config(&config);
    fake_cluster_start(&cluster, &config);
    fake_workers_start(&cluster, &prefill, &decode);
    return 0;
}

static int stop(void **state) {
    (void)state;
    fake_cluster_assert_idle(&cluster);
    assert_int_equal(atomic_load(&decode.open_leases), 0);
    fake_cluster_stop(&cluster);
    fake_worker_stop(&prefill);
    fake_worker_stop(&decode);
    fake_worker_stop(&stores[0]);
    fake_worker_stop(&stores[1]);
    assert_int_equal(sl_rpc_live_calls(), 0);
    return 0;
}

// ---- jobs that go well ------------------------------------------------------------------------------------------

static void test_generate_streams_every_event(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 30);
    request.label = "first";
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_OK);
    const Sluice__V1__Finished *finished = fake_events_check(&events, 30);
    assert_int_equal(finished->reason, SLUICE__V1__FINISHED__REASON__LENGTH);
    assert_int_equal(finished->status_code, 0);
    assert_string_equal(finished->text, "the whole answer");

    const int expected[] = {1, 2, 3, 4, 5}; // QUEUED to DONE, each once
    int n_states = 0, n_prefill = 0, n_ship = 0;
    for (int i = 0; i < events.n; i++) {
        const Sluice__V1__Event *event = events.events[i];
        if (event->what_case == SLUICE__V1__EVENT__WHAT_STATE) {
            assert_int_equal((int)event->state->state, expected[n_states++]);
            if (event->state->state == SLUICE__V1__JOB_STATE__PREFILLING) {
                assert_string_equal(event->state->detail, "prefill-0 -> decode-0");
            }
        }
        n_prefill += event->what_case == SLUICE__V1__EVENT__WHAT_PREFILL;
        n_ship += event->what_case == SLUICE__V1__EVENT__WHAT_SHIP;
    }
    assert_int_equal(n_states, 5);
    assert_int_equal(n_prefill, 2); // the first and the last
    assert_int_equal(n_ship, 1);
    assert_int_equal(events.events[0]->sequence, 1);
    assert_int_equal(atomic_load(&prefill.last_prompt), 19); // the last prompt token is the decode worker's
    assert_int_equal(atomic_load(&decode.last_prompt), 20);
    assert_int_equal(atomic_load(&decode.n_released), 0); // it ended by itself
    fake_events_free(&events);
}

static void test_statistics_come_from_both_legs_and_the_clock(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 11);
    atomic_store(&decode.token_ms, 20);
    fake_generate(&cluster, &request, &events);
    const Sluice__V1__Statistics *s = fake_events_check(&events, 11)->statistics;
    assert_int_equal(s->n_prompt_tokens, 20);
    assert_int_equal(s->n_output_tokens, 11);
    assert_int_equal(s->full_bytes, 20 * 8 * 2 * 64 * 2 * 2);
    assert_int_equal(s->capsule_bytes, 5000);
    assert_int_equal(s->prefill_peak_bytes, 7777);
    assert_int_equal(s->decode_resident_bytes, 4321);
    assert_int_equal(s->slots_evicted, 3);
    assert_int_equal(s->retries, 0);
    assert_string_equal(s->transport, "put/fake");
    assert_true(s->slots_per_head == 12.5 && s->prefill_ms == 8 && s->ship_ms == 2);
    assert_true(s->queue_ms >= 0 && s->queue_ms < s->ttft_ms && s->ttft_ms < s->total_ms);
    assert_true(s->tpot_ms >= 19);
    double gap_ms = s->total_ms - s->ttft_ms - s->tpot_ms * 10; // the definition: tpot = (end - first) / (out - 1)
    assert_true(gap_ms > -0.01 && gap_ms < 0.01);
    assert_int_equal(s->not_cached, SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID);
    assert_true(s->restore_ms == 7);
    fake_events_free(&events);
    request.no_reuse = true; // the worker is told
    fake_generate(&cluster, &request, &events);
    assert_int_equal(fake_events_check(&events, 11)->statistics->not_cached, SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF);
    fake_events_free(&events);
}

static void test_watch_resumes_from_any_sequence(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 40);
    fake_submit(&cluster, &request, id);
    fake_watch(&cluster, id, 0, &events); // live
    fake_events_check(&events, 40);
    int n_all = events.n;
    fake_events_free(&events);
    for (int from = 1; from <= n_all; from += 7) { // after the end
        fake_watch(&cluster, id, from, &events);
        assert_int_equal(events.status, SL_OK);
        assert_int_equal(events.n, n_all - from + 1);
        assert_int_equal(events.events[0]->sequence, from);
        fake_events_free(&events);
    }
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_get, id);
    assert_int_equal(job->state, SLUICE__V1__JOB_STATE__DONE);
    assert_int_equal(job->last_sequence, n_all);
    assert_string_equal(job->prefill_worker, "prefill-0");
    assert_string_equal(job->decode_worker, "decode-0");
    protobuf_c_message_free_unpacked(&job->base, NULL);
    fake_watch(&cluster, "job-nobody", 0, &events);
    assert_int_equal(events.n, 0);
}

static void test_prompt_of_one_token_has_no_capsule(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 5);
    Sluice__V1__TokenIds one = SLUICE__V1__TOKEN_IDS__INIT;
    int32_t token = 9;
    one.ids = &token;
    one.n_ids = 1;
    request.tokens = &one;
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_OK);
    fake_events_check(&events, 5);
    assert_int_equal(atomic_load(&prefill.n_runs), 0);
    assert_int_equal(atomic_load(&decode.n_reserved), 0);
    assert_true(atomic_load(&decode.last_lease_empty));
    fake_events_free(&events);
}

static void test_lease_is_renewed_while_the_job_runs(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    atomic_store(&prefill.prefill_mode, FAKE_PREFILL_READS_FOR_EVER);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__PREFILLING);
    int64_t begin_ns = sl_now_ns(), n = 0;
    for (int64_t end_ns = sl_deadline_in_ms(10000); n < 6 && sl_now_ns() < end_ns; sl_sleep_ms(5)) {
        n = atomic_load(&decode.n_renewed); // of two leases
    }
    assert_in_range(n, 6, 8 + (sl_now_ns() - begin_ns) / (50 * SL_NS_PER_MS));
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_cancel, id);
    protobuf_c_message_free_unpacked(&job->base, NULL);
}

// The second replica's leases are renewed as well, although it gets no request while the first one answers.
static void test_remote_kvs_are_renewed_while_decode_runs_and_given_back(void **state) {
    (void)state;
    start_stores(2);
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    request.recipe = "place=offload/1-,retrieve=near,topk=64,replicas=2";
    atomic_store(&decode.decode_hangs, true);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
    int64_t begin_ns = sl_now_ns(), end_ns = sl_deadline_in_ms(20000);
    while ((atomic_load(&stores[0].n_renewed) < 3 || atomic_load(&stores[1].n_renewed) < 3) && sl_now_ns() < end_ns) {
        sl_sleep_ms(5);
    }
    for (int i = 0; i < 2; i++) { // every third of a lease of 300 ms
        assert_in_range(atomic_load(&stores[i].n_renewed), 3, 8 + (sl_now_ns() - begin_ns) / (50 * SL_NS_PER_MS));
    }
    atomic_store(&decode.decode_hangs, false);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 10)->status_code, 0);
    fake_events_free(&events);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(atomic_load(&stores[i].n_released), 1);
    }
}

// A store that answers every call and refuses what is offloaded: it is avoided, and not the worker that tells of it.
static void test_a_store_that_refuses_is_avoided_where_there_is_another(void **state) {
    (void)state;
    static const enum sl_status refusals[] = {SL_ERR_EXHAUSTED, SL_ERR_PEER_STALE};
    for (int n_stores = 1; n_stores <= 2; n_stores++) {
        start_stores(n_stores);
        Sluice__V1__GenerateRequest request;
        fake_request(&request, 10);
        request.recipe = "place=offload/1-,retrieve=near,topk=64";
        for (int i = 0; i < n_stores; i++) {
            atomic_store(&prefill.n_runs, 0);
            atomic_store(&prefill.store_refusal, refusals[i]);
            atomic_store(&prefill.n_store_refusals, 1);
            fake_generate(&cluster, &request, &events);
            const Sluice__V1__Finished *finished = fake_events_check(&events, n_stores == 2 ? 10 : 0);
            assert_int_equal(finished->statistics->retries, n_stores == 2);
            if (n_stores == 2) {
                assert_int_equal(finished->status_code, 0);
                assert_int_equal(atomic_load(&prefill.n_runs), 2);
                assert_string_not_equal(prefill.first_stores[0], prefill.first_stores[1]);
            } else { // nowhere else to go: its words
                assert_int_equal(finished->status_code, 8);
                assert_non_null(strstr(finished->status_text, "it has no room for this"));
            }
            fake_events_free(&events);
        }
        for (int i = 0; i < n_stores; i++) {
            fake_worker_stop(&stores[i]);
        }
    }
}

// An address in an error's text decides nothing: a client may have put it there.
static void test_a_store_that_only_the_words_name_is_not_avoided(void **state) {
    (void)state;
    start_stores(2);
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    request.recipe = "place=offload/1-,retrieve=near,topk=64";
    atomic_store(&prefill.blames_in_words, true);
    atomic_store(&prefill.store_refusal, SL_ERR_EXHAUSTED);
    atomic_store(&prefill.n_store_refusals, 1);
    fake_generate(&cluster, &request, &events);
    const Sluice__V1__Finished *finished = fake_events_check(&events, 0);
    assert_int_equal(finished->status_code, 8);
    assert_non_null(strstr(finished->status_text, prefill.first_stores[0]));
    assert_int_equal(finished->statistics->retries, 0);
    assert_int_equal(atomic_load(&prefill.n_runs), 1);
    fake_events_free(&events);
}

static void test_duplicate_tokens_of_a_worker_are_dropped(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    atomic_store(&decode.repeat_tokens, true);
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_OK);
    fake_events_check(&events, 10);
    fake_events_free(&events);
}

struct client {
    pthread_t thread;
    struct fake_events events;
};

static void *generate(void *arg) {
    struct client *client = arg;
    Sluice__V1__GenerateRequest request;
    sluice__v1__generate_request__init(&request);
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = "Once upon a time there was a cluster";
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = 20;
    fake_generate(&cluster, &request, &client->events);
    return NULL;
}

static void test_many_jobs_at_once_all_end_and_leave_nothing(void **state) {
    (void)state;
    enum { N_CLIENTS = 24 }; // more than the workers take at once: some wait in line
    static struct client clients[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        assert_int_equal(sl_thread_start("client", generate, &clients[i], &clients[i].thread, NULL), SL_OK);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].events.status, SL_OK);
        fake_events_check(&clients[i].events, 20);
        fake_events_free(&clients[i].events);
    }
    assert_int_equal(atomic_load(&decode.n_done), N_CLIENTS);
}

// ---- jobs that are refused --------------------------------------------------------------------------------------

static enum sl_status submit_status(const Sluice__V1__GenerateRequest *request, struct sl_error *err) {
    return sl_rpc_unary(cluster.channel, &sl_method_inference_submit, &request->base, sl_deadline_in_ms(5000), NULL,
                        NULL, err);
}

static void test_submit_refuses_at_once_with_the_reason(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    struct sl_error err = {0};
    fake_request(&request, 0);
    assert_int_equal(submit_status(&request, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "max_new_tokens"));

    fake_worker_stop(&decode); // a cluster whose only decode worker is tiny
    fake_worker_init(&decode, "decode-0", DECODE);
    decode.arena_bytes = 4096;
    assert_int_equal(fake_worker_start(&decode, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
    fake_request(&request, 100);
    assert_int_equal(submit_status(&request, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "4096"));
    assert_non_null(strstr(err.text, "never"));
}

static void test_full_queue_refuses_with_a_hint(void **state) {
    (void)state;
    fake_cluster_stop(&cluster);
    fake_worker_stop(&prefill);
    fake_worker_stop(&decode);
    struct sl_coordinator_config config;
    patient_config(&config);
    config.max_jobs = 1;
    config.max_queued = 2;
    fake_cluster_start(&cluster, &config);
    fake_workers_start(&cluster, &prefill, &decode);
    atomic_store(&decode.decode_hangs, true);

    Sluice__V1__GenerateRequest request;
    char ids[3][64];
    fake_request(&request, 5);
    fake_submit(&cluster, &request, ids[0]);
    fake_await_state(&cluster, ids[0], SLUICE__V1__JOB_STATE__DECODING);
    fake_submit(&cluster, &request, ids[1]);
    fake_submit(&cluster, &request, ids[2]);
    struct sl_error err = {0};
    assert_int_equal(submit_status(&request, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry in "));
    for (int i = 2; i >= 0; i--) { // two of them still QUEUED
        Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_cancel, ids[i]);
        assert_int_equal(job->state, SLUICE__V1__JOB_STATE__CANCELLED);
        protobuf_c_message_free_unpacked(&job->base, NULL);
    }
}

static void test_worker_with_another_model_is_refused(void **state) {
    (void)state;
    struct fake_worker stranger;
    struct sl_error err = {0};
    fake_worker_init(&stranger, "prefill-9", PREFILL);
    stranger.model_fingerprint ^= 1;
    atomic_store(&stranger.mute, true);
    assert_int_equal(fake_worker_start(&stranger, sl_coordinator_address(cluster.coordinator), &err),
                     SL_ERR_PRECONDITION);
    char ours[32];
    snprintf(ours, sizeof(ours), "%016llx", (unsigned long long)cluster.model_fingerprint);
    assert_non_null(strstr(err.text, ours));
    fake_worker_stop(&stranger);
}

// ---- jobs that are cancelled ------------------------------------------------------------------------------------

static void cancel_in(Sluice__V1__JobState state_wanted) {
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, state_wanted);
    int64_t start_ns = running_ns();
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_cancel, id);
    assert_true(running_ns() - start_ns < 1000 * SL_NS_PER_MS);
    assert_int_equal(job->state, SLUICE__V1__JOB_STATE__CANCELLED);
    assert_int_equal(job->status_code, 1);
    protobuf_c_message_free_unpacked(&job->base, NULL);
    // When Cancel has returned, everything has been returned.
    assert_int_equal(atomic_load(&decode.open_leases), 0);
    fake_cluster_assert_idle(&cluster);
    job = fake_call_job(&cluster, &sl_method_inference_cancel, id); // idempotent
    assert_int_equal(job->state, SLUICE__V1__JOB_STATE__CANCELLED);
    protobuf_c_message_free_unpacked(&job->base, NULL);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, -1)->reason, SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT);
    fake_events_free(&events);
}

static void test_cancel_while_prefilling(void **state) {
    (void)state;
    atomic_store(&prefill.prefill_mode, FAKE_PREFILL_READS_FOR_EVER);
    cancel_in(SLUICE__V1__JOB_STATE__PREFILLING);
    assert_int_equal(atomic_load(&decode.n_released), 1);
}

static void test_cancel_while_shipping(void **state) {
    (void)state;
    atomic_store(&prefill.prefill_mode, FAKE_PREFILL_SHIPS_FOR_EVER);
    cancel_in(SLUICE__V1__JOB_STATE__SHIPPING);
    assert_int_equal(atomic_load(&decode.n_released), 1);
}

static void test_cancel_while_decoding(void **state) {
    (void)state;
    atomic_store(&decode.decode_hangs, true);
    cancel_in(SLUICE__V1__JOB_STATE__DECODING);
    assert_int_equal(atomic_load(&decode.n_released), 1);
}

static void test_cancel_after_the_end_changes_nothing(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 3);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DONE);
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_cancel, id);
    assert_int_equal(job->state, SLUICE__V1__JOB_STATE__DONE);
    protobuf_c_message_free_unpacked(&job->base, NULL);
}

static void test_client_of_generate_gone_cancels_the_job(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 10);
    atomic_store(&decode.decode_hangs, true);
    struct sl_rpc_stream *stream = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_stream_open(cluster.channel, &sl_method_inference_generate, &request.base,
                                        sl_deadline_in_ms(30000), NULL, &stream, &err),
                     SL_OK);
    ProtobufCMessage *message = NULL;
    assert_int_equal(sl_rpc_stream_next(stream, 5000, &message, &err), SL_OK);
    snprintf(id, sizeof(id), "%s", ((Sluice__V1__Event *)message)->job_id);
    protobuf_c_message_free_unpacked(message, NULL);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
    sl_rpc_stream_close(&stream);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__CANCELLED);
    assert_int_equal(atomic_load(&decode.n_released), 1);
}

static void test_stop_lets_jobs_finish_and_refuses_new_ones(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 20);
    atomic_store(&decode.token_ms, 20);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
    sl_coordinator_stop(cluster.coordinator, 10000);
    struct sl_error err = {0};
    assert_int_equal(submit_status(&request, &err), SL_ERR_PEER_LOST);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(fake_events_check(&events, 20)->status_code, 0);
    fake_events_free(&events);
}

static void test_limits_out_of_bounds_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t field;
        int64_t low, high; // the first ones outside; 0 as high: no bound
    } limits[] = {
        {offsetof(struct sl_coordinator_config, max_jobs), 0, 65537},
        {offsetof(struct sl_coordinator_config, max_queued), 0, 65537},
        {offsetof(struct sl_coordinator_config, max_watchers), 0, 65537},
        {offsetof(struct sl_coordinator_config, heartbeat_ms), 9, 0},
        {offsetof(struct sl_coordinator_config, stall_ms), 999, 0},
        {offsetof(struct sl_coordinator_config, silence_ms), 9, 0},
        {offsetof(struct sl_coordinator_config, max_retries), -1, 101},
        {offsetof(struct sl_coordinator_config, deadline_ms), 0, INT64_MAX},
        {offsetof(struct sl_coordinator_config, max_kept_jobs), 0, 0},
        {offsetof(struct sl_coordinator_config, max_prefixes), 0, 0},
    };
    for (size_t i = 0; i < 2 * sizeof limits / sizeof limits[0]; i++) {
        struct sl_coordinator_config config;
        struct sl_coordinator *coordinator = NULL;
        struct sl_error err = {0};
        fake_cluster_config(&config);
        int64_t value = i % 2 ? limits[i / 2].high : limits[i / 2].low;
        if (i % 2 && value == 0) {
            continue;
        }
        memcpy((char *)&config + limits[i / 2].field, &value, sizeof value);
        assert_int_equal(sl_coordinator_create(&config, &coordinator, &err), SL_ERR_INVALID);
        assert_null(coordinator);
        assert_non_null(strstr(err.text, "a limit is out of bounds"));
    }
}

// The model's name for clients: the name that was given, or its folder's; a name of one letter is valid.
static void test_model_is_known_by_its_name(void **state) {
    (void)state;
    static const struct {
        const char *given, *expected;
    } names[] = {{NULL, "demo"}, {"m", "m"}, {"", "model"}, {"meta/llama", "meta/llama"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sl_coordinator_config config;
        fake_cluster_config(&config);
        config.model_name = names[i].given;
        fake_cluster_start(&cluster, &config);
        Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
        ProtobufCMessage *reply = NULL;
        assert_int_equal(sl_rpc_unary(cluster.channel, &sl_method_inference_model, &request.base,
                                      sl_deadline_in_ms(5000), NULL, &reply, NULL),
                         SL_OK);
        assert_string_equal(((Sluice__V1__ModelReply *)reply)->name, names[i].expected);
        assert_false(((Sluice__V1__ModelReply *)reply)->ready); // without workers
        protobuf_c_message_free_unpacked(reply, NULL);
        fake_cluster_stop(&cluster);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_out_of_bounds_are_refused),
        cmocka_unit_test(test_model_is_known_by_its_name),
        TEST(test_generate_streams_every_event),
        TEST(test_statistics_come_from_both_legs_and_the_clock),
        TEST(test_watch_resumes_from_any_sequence),
        TEST(test_prompt_of_one_token_has_no_capsule),
        TEST(test_lease_is_renewed_while_the_job_runs),
        TEST(test_remote_kvs_are_renewed_while_decode_runs_and_given_back),
        TEST(test_a_store_that_refuses_is_avoided_where_there_is_another),
        TEST(test_a_store_that_only_the_words_name_is_not_avoided),
        TEST(test_duplicate_tokens_of_a_worker_are_dropped),
        TEST(test_many_jobs_at_once_all_end_and_leave_nothing),
        TEST(test_submit_refuses_at_once_with_the_reason),
        TEST(test_full_queue_refuses_with_a_hint),
        TEST(test_worker_with_another_model_is_refused),
        TEST(test_cancel_while_prefilling),
        TEST(test_cancel_while_shipping),
        TEST(test_cancel_while_decoding),
        TEST(test_cancel_after_the_end_changes_nothing),
        TEST(test_client_of_generate_gone_cancels_the_job),
        TEST(test_stop_lets_jobs_finish_and_refuses_new_ones),
    };
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
