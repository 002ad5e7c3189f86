// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a coordinator with --state that exits and comes back, with fake workers. Jobs continue after what clients
 *          have, under their ids and numbers; ended jobs can be read; a job that cannot continue gives the reason.
 *          tests/cluster/test_restart.py kills real ones.
 */
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
#include "tests/unit/temp_folder.h"

static struct temp_folder folder;
static struct fake_cluster cluster;
static struct fake_worker prefill, decode;
static struct fake_events events, before;
static struct sl_coordinator_config config;
static char id[64];

static int start(void **state) {
    (void)state;
    folder = temp_folder_create();
    fake_cluster_config(&config);
    config.heartbeat_ms = 10000; // no worker is lost here because its machine is busy
    config.silence_ms = 30000;
    config.deadline_ms = 60000;
    config.state_dir = folder.path;
    fake_cluster_start(&cluster, &config);
    fake_workers_start(&cluster, &prefill, &decode);
    return 0;
}

static void leave(void) {
    sl_coordinator_destroy(&cluster.coordinator); // without grace
    sl_rpc_channel_destroy(&cluster.channel);
    fake_worker_stop(&prefill);
    fake_worker_stop(&decode);
}

static int stop(void **state) {
    (void)state;
    leave();
    temp_folder_destroy(&folder);
    assert_int_equal(sl_rpc_live_calls(), 0);
    return 0;
}

static void come_back(void) {
    leave();
    fake_cluster_start(&cluster, &config);
}

// Reads how far a job has come. Fails if it has ended: its callers would wait forever for more.
static void look(int64_t *n_output_out, int64_t *last_sequence_out) {
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_get, id);
    if (job->state >= SLUICE__V1__JOB_STATE__DONE) {
        fail_msg("%s has ended: %s", id, job->status_text);
    }
    *n_output_out = job->n_output_tokens;
    *last_sequence_out = job->last_sequence; // what watchers may have seen, and so what is written
    sluice__v1__job__free_unpacked(job, NULL);
}

static void test_restart_goes_on_behind_what_was_seen(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    request.idempotency_key = "one";
    atomic_store(&decode.token_ms, 20);
    fake_submit(&cluster, &request, id);
    int64_t n_output, seen, resumed_from, restored;
    for (look(&n_output, &seen); n_output < 20 || seen < 24; look(&n_output, &seen)) {
        sl_sleep_ms(5);
    }
    come_back();
    look(&resumed_from, &restored);
    assert_true(restored >= seen && resumed_from > 0 && resumed_from < 400);
    char again[64];
    fake_submit(&cluster, &request, again);
    assert_string_equal(again, id); // its key is known
    sl_sleep_ms(2 * FAKE_WAIT_MS);  // workers that come later than new jobs would wait
    fake_workers_start(&cluster, &prefill, &decode);
    fake_watch(&cluster, id, 1, &events);
    assert_int_equal(events.status, SL_OK);
    assert_int_equal(fake_events_check(&events, 400)->status_code, 0);
    assert_true(atomic_load(&decode.last_resumed) >= resumed_from - 1);
    fake_events_free(&events);
}

static void test_restart_keeps_what_has_ended(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 30);
    fake_submit(&cluster, &request, id);
    fake_watch(&cluster, id, 1, &before);
    Sluice__V1__Job *was = fake_call_job(&cluster, &sl_method_inference_get, id);
    come_back();
    fake_watch(&cluster, id, 1, &events);
    assert_int_equal(events.n, before.n);
    for (int i = 0; i < events.n; i++) {
        assert_int_equal(events.events[i]->sequence, before.events[i]->sequence);
        assert_int_equal(events.events[i]->time_ms, before.events[i]->time_ms);
        assert_int_equal(events.events[i]->what_case, before.events[i]->what_case);
    }
    fake_events_check(&events, 30);
    Sluice__V1__Job *is = fake_call_job(&cluster, &sl_method_inference_get, id);
    assert_int_equal(is->state, was->state);
    assert_int_equal(is->submitted_ms, was->submitted_ms);
    assert_int_equal(is->n_prompt_tokens, was->n_prompt_tokens);
    assert_string_equal(is->decode_worker, was->decode_worker);
    assert_string_equal(is->recipe, was->recipe);
    assert_true(is->statistics->total_ms == was->statistics->total_ms);
    assert_int_equal(is->statistics->capsule_bytes, was->statistics->capsule_bytes);
    sluice__v1__job__free_unpacked(was, NULL);
    sluice__v1__job__free_unpacked(is, NULL);
    fake_events_free(&events);
    fake_events_free(&before);
}

static void await_failure(int code, const char *words) {
    fake_watch(&cluster, id, 1, &events);
    if (events.status != SL_OK) {
        fail_msg("status %d after %d events: %s", events.status, events.n, events.err.text);
    }
    const Sluice__V1__Finished *finished = events.events[events.n - 1]->finished;
    assert_int_equal(finished->status_code, code);
    assert_non_null(strstr(finished->status_text, words));
    fake_events_free(&events);
}

static void submit_long(void) {
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    atomic_store(&decode.token_ms, 20);
    fake_submit(&cluster, &request, id);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
}

static void test_restart_with_another_model_says_so(void **state) {
    (void)state;
    submit_long();
    config.weights = "int8"; // another fingerprint
    come_back();
    await_failure(9, "another model");
}

// A job's record says how much memory its answer takes. A model that cannot write so much never did.
static void test_restart_drops_answers_that_no_model_writes(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    Sluice__V1__GenerateRequest request;
    char text[4096];
    struct sl_error err = {0};
    struct temp_folder model = temp_folder_create();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        temp_folder_copy(&model, "models/demo", files[i]);
    }
    FILE *file = fopen("models/demo/config.json", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char *positions = strstr(text, "32768"); // max_position_embeddings
    assert_non_null(positions);
    memcpy(positions, "  256", 5);
    temp_folder_write_text(&model, "config.json", text);
    fake_request(&request, 257);
    fake_submit(&cluster, &request, id);
    fake_watch(&cluster, id, 1, &events);
    assert_int_equal(events.status, SL_OK);
    fake_events_free(&events);
    config.model_dir = model.path;
    come_back();
    Sluice__V1__JobRequest asked = SLUICE__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    asked.job_id = id;
    assert_int_equal(sl_rpc_unary(cluster.channel, &sl_method_inference_get, &asked.base, sl_deadline_in_ms(20000),
                                  NULL, &message, &err),
                     SL_ERR_NOT_FOUND);
    temp_folder_destroy(&model);
}

static void test_restart_counts_the_time_that_it_took(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    request.deadline_ms = 1500 * SLOWNESS;
    atomic_store(&decode.token_ms, 100 * SLOWNESS);
    fake_submit(&cluster, &request, id);
    leave();
    sl_sleep_ms(1600 * SLOWNESS);
    fake_cluster_start(&cluster, &config);
    await_failure(4, "deadline");
}

static void test_restart_obeys_a_cancel_that_was_answered(void **state) {
    (void)state;
    submit_long();
    Sluice__V1__Job *job = fake_call_job(&cluster, &sl_method_inference_cancel, id);
    assert_int_equal(job->state, SLUICE__V1__JOB_STATE__CANCELLED);
    sluice__v1__job__free_unpacked(job, NULL);
    come_back();
    await_failure(1, "cancelled");
}

static void test_restart_ends_what_its_call_had_asked_for(void **state) {
    (void)state;
    struct sl_error err = {0};
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 400);
    atomic_store(&decode.token_ms, 20);
    struct sl_rpc_stream *stream = NULL;
    assert_int_equal(sl_rpc_stream_open(cluster.channel, &sl_method_inference_generate, &request.base,
                                        sl_deadline_in_ms(20000), NULL, &stream, &err),
                     SL_OK);
    ProtobufCMessage *message = NULL;
    assert_int_equal(sl_rpc_stream_next(stream, 10000, &message, &err), SL_OK);
    snprintf(id, sizeof id, "%s", ((Sluice__V1__Event *)message)->job_id);
    protobuf_c_message_free_unpacked(message, NULL);
    fake_await_state(&cluster, id, SLUICE__V1__JOB_STATE__DECODING);
    leave();
    sl_rpc_stream_close(&stream);
    fake_cluster_start(&cluster, &config);
    await_failure(14, "the call that had asked");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restart_goes_on_behind_what_was_seen, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_keeps_what_has_ended, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_with_another_model_says_so, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_drops_answers_that_no_model_writes, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_counts_the_time_that_it_took, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_obeys_a_cancel_that_was_answered, start, stop),
        cmocka_unit_test_setup_teardown(test_restart_ends_what_its_call_had_asked_for, start, stop),
    };
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
