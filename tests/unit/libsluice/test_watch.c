// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a watch delivers every event once and in order, whatever happens to its connections.
 * The coordinator here is a real gRPC server with a script: how many events each Watch call sends, and how it ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/libsluice/sluice.h"
#include "proto/methods.h"
#include "net/rpc/rpc.h"
#include "tests/unit/running_clock.h"
#include "engine/text/tokenizer/tokenizer.h"

#define N_EVENTS 20 // of the job; the last one is Finished

enum ending { END_ORDERLY, END_WITH_STATUS, END_HANG };

// The script of one Watch call.
struct act {
    int n_events; // sent at most
    int repeat;   // events sent again, before the ones asked for
    enum ending ending;
    enum sl_status status;
};

struct coordinator {
    pthread_mutex_t lock;
    const struct act *acts; // the last one is played again and again
    int n_acts, n_calls;
    int64_t asked_from[32]; // from_sequence of each call
    atomic_int n_cancelled;
    char cancelled_id[SL_JOB_ID_BYTES];
    enum sl_status submit_status; // of the first n_failing
    atomic_int n_failing, n_submitted;
    char keys[8][64];   // of the submits
    atomic_int n_parts; // of the last request that came in parts, and its text
    bool parts_are_good;
    char text[5 << 20];
    struct sl_rpc_server *server;
};

static struct coordinator coordinator;

static enum sl_status send_event(struct sl_rpc_call *call, int64_t sequence) {
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    event.sequence = sequence;
    event.job_id = (char *)"job-1";
    if (sequence == N_EVENTS) {
        event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
        event.finished = &finished;
    } else {
        event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
        token.index = sequence - 1;
        event.token = &token;
    }
    return sl_rpc_call_send(call, &event.base);
}

static enum sl_status handle_watch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    struct coordinator *c = service;
    const Sluice__V1__WatchRequest *watch = (const Sluice__V1__WatchRequest *)request;
    pthread_mutex_lock(&c->lock);
    const struct act act = c->acts[c->n_calls < c->n_acts ? c->n_calls : c->n_acts - 1];
    if (c->n_calls < 32) {
        c->asked_from[c->n_calls] = watch->from_sequence;
    }
    c->n_calls++;
    pthread_mutex_unlock(&c->lock);
    if (strcmp(watch->job_id, "job-1") != 0) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "no job %s", watch->job_id);
    }
    int64_t first = watch->from_sequence > 0 ? watch->from_sequence : 1;
    for (int64_t s = first - act.repeat > 1 ? first - act.repeat : 1; s < first + act.n_events && s <= N_EVENTS; s++) {
        if (send_event(call, s) != SL_OK) {
            return SL_ERR_CANCELLED;
        }
        if (s == N_EVENTS) {
            return SL_OK;
        }
    }
    while (act.ending == END_HANG && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(5);
    }
    return act.ending == END_WITH_STATUS ? sl_fail(err, act.status, "as the script says") : SL_OK;
}

static enum sl_status handle_submit(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct coordinator *c = service;
    assert_true(c->n_submitted < 8);
    snprintf(c->keys[c->n_submitted], sizeof c->keys[0], "%s",
             ((const Sluice__V1__GenerateRequest *)request)->idempotency_key);
    if (c->n_submitted++ < c->n_failing) {
        return sl_fail(err, c->submit_status, "the cluster is full; retry in 250 ms");
    }
    Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
    reply.job_id = (char *)"job-1";
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_parts(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                   struct sl_error *err) {
    (void)no_request;
    struct coordinator *c = service;
    c->n_parts = 0;
    c->text[0] = '\0';
    for (ProtobufCMessage *message;; c->n_parts++) {
        enum sl_status status = sl_rpc_call_receive(call, &sluice__v1__generate_request__descriptor, &message, NULL);
        if (status != SL_OK) {
            Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
            reply.job_id = (char *)"job-1";
            return status == SL_ERR_NOT_FOUND ? sl_rpc_call_send(call, &reply.base) : sl_fail(err, status, "a part");
        }
        const Sluice__V1__GenerateRequest *part = (const Sluice__V1__GenerateRequest *)message;
        c->parts_are_good &=
            sl_utf8_valid(part->text, strlen(part->text), NULL) && (c->n_parts == 0) == (part->deadline_ms == 1234);
        strcat(c->text, part->text);
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

static enum sl_status handle_cancel(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    (void)err;
    struct coordinator *c = service;
    pthread_mutex_lock(&c->lock);
    c->n_cancelled++;
    snprintf(c->cancelled_id, sizeof c->cancelled_id, "%s", ((const Sluice__V1__JobRequest *)request)->job_id);
    pthread_mutex_unlock(&c->lock);
    Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    return sl_rpc_call_send(call, &job.base);
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_inference_watch, handle_watch, SL_ROLE_ANY},
    {&sl_method_inference_submit, handle_submit, SL_ROLE_ANY},
    {&sl_method_inference_cancel, handle_cancel, SL_ROLE_ANY},
    {&sl_method_inference_submit_in_parts, handle_parts, SL_ROLE_ANY},
};
// As much of sluice.v1.Inference as the client is made to call here.
static const struct sl_rpc_method *const methods[] = {&sl_method_inference_watch, &sl_method_inference_submit,
                                                      &sl_method_inference_cancel,
                                                      &sl_method_inference_submit_in_parts};
static const struct sl_rpc_service inference = {"sluice.v1.Inference", methods, 4};
static const struct sl_rpc_implementation service = {
    .service = &inference, .handlers = handlers, .n_handlers = 4, .context = &coordinator};

static void start(const char *listen, const struct act *acts, int n_acts) {
    coordinator.acts = acts;
    coordinator.n_acts = n_acts;
    coordinator.n_calls = 0;
    coordinator.n_cancelled = 0;
    coordinator.n_failing = coordinator.n_submitted = 0;
    struct sl_rpc_server_config config = {.listen = listen, .services = &service, .n_services = 1};
    struct sl_error err = {0};
    enum sl_status status = sl_rpc_server_start(&config, &coordinator.server, &err);
    if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static void stop(void) {
    sl_rpc_server_stop(&coordinator.server, 0);
}

// Events that the watcher has seen.
struct seen {
    int64_t sequences[64];
    int n, n_reconnects, stop_after;
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct seen *seen = arg;
    assert_true(seen->n < 64);
    seen->sequences[seen->n++] = event->sequence;
}
static void on_reconnect(void *arg, const struct sl_error *why) {
    assert_true(why->text[0] != '\0');
    ((struct seen *)arg)->n_reconnects++;
}
static bool stopped(void *arg) {
    struct seen *seen = arg;
    return seen->stop_after > 0 && seen->n >= seen->stop_after;
}

static struct sl_watch watch_into(struct seen *seen, int64_t deadline_ms) {
    return (struct sl_watch){.job_id = "job-1",
                             .deadline_ns = sl_deadline_in_ms(deadline_ms),
                             .on_event = on_event,
                             .on_reconnect = on_reconnect,
                             .stopped = stopped,
                             .arg = seen};
}

static void assert_sequences(const struct seen *seen, int64_t first, int64_t last) {
    assert_int_equal(seen->n, last - first + 1);
    for (int i = 0; i < seen->n; i++) {
        assert_int_equal(seen->sequences[i], first + i);
    }
}

static struct sl_client *connect_client(void) {
    struct sl_client *client = NULL;
    assert_int_equal(sl_client_connect(sl_rpc_server_address(coordinator.server), NULL, &client, NULL), SL_OK);
    return client;
}

static void test_watch_delivers_all_events(void **state) {
    (void)state;
    static const struct act acts[] = {{N_EVENTS, 0, END_ORDERLY, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 20000);
    struct sl_error err;
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_OK);
    assert_sequences(&seen, 1, N_EVENTS);
    assert_int_equal(seen.n_reconnects, 0);

    struct seen later = {0};
    watch = watch_into(&later, 20000);
    watch.from_sequence = 15;
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_OK);
    assert_sequences(&later, 15, N_EVENTS);
    sl_client_close(&client);
    stop();
}

static void test_watch_resumes_behind_the_last_event(void **state) {
    (void)state;
    static const struct act acts[] = {
        {3, 0, END_WITH_STATUS, SL_ERR_PEER_LOST}, // UNAVAILABLE
        {0, 0, END_ORDERLY, SL_OK},                // a coordinator that goes down gently
        {4, 2, END_WITH_STATUS, SL_ERR_CANCELLED}, // and one that cancels; two events come twice
        {2, 0, END_WITH_STATUS, SL_ERR_EXHAUSTED},
        {N_EVENTS, 3, END_ORDERLY, SL_OK},
    };
    start("127.0.0.1:0", acts, 5);
    struct sl_client *client = connect_client();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 30000);
    struct sl_error err = {0};
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_OK);
    assert_sequences(&seen, 1, N_EVENTS);
    assert_int_equal(seen.n_reconnects, 4);
    static const int64_t asked[] = {1, 4, 4, 8, 10};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(coordinator.asked_from[i], asked[i]);
    }
    sl_client_close(&client);
    stop();
}

struct restart {
    char address[64];
    const struct act *acts;
};

static int calls_so_far(void) {
    pthread_mutex_lock(&coordinator.lock);
    const int n = coordinator.n_calls;
    pthread_mutex_unlock(&coordinator.lock);
    return n;
}

// Restarts the coordinator some time after it was first asked.
static void *restart_later(void *arg) {
    struct restart *restart = arg;
    for (int i = 0; calls_so_far() == 0 && i < 3000; i++) {
        sl_sleep_ms(10);
    }
    sl_sleep_ms(300);
    stop();
    sl_sleep_ms(500);
    start(restart->address, restart->acts, 1);
    return NULL;
}

static void test_watch_survives_a_restart_of_the_coordinator(void **state) {
    (void)state;
    static const struct act before[] = {{6, 0, END_HANG, SL_OK}};
    static const struct act after[] = {{N_EVENTS, 0, END_ORDERLY, SL_OK}};
    start("127.0.0.1:0", before, 1);
    struct restart restart = {.acts = after};
    snprintf(restart.address, sizeof restart.address, "%s", sl_rpc_server_address(coordinator.server));
    struct sl_client *client = connect_client();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, restart_later, &restart), 0);
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 30000);
    struct sl_error err = {0};
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_OK);
    pthread_join(thread, NULL);
    assert_sequences(&seen, 1, N_EVENTS);
    assert_true(seen.n_reconnects >= 1);
    assert_int_equal(coordinator.asked_from[0], 7);
    sl_client_close(&client);
    stop();
}

static void test_watch_does_not_repeat_what_cannot_succeed(void **state) {
    (void)state;
    static const struct act acts[] = {{2, 0, END_WITH_STATUS, SL_ERR_INTERNAL}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 20000);
    struct sl_error err = {0};
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "as the script says"));
    watch.job_id = "job-2";
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "job-2"));
    assert_int_equal(coordinator.n_calls, 2);
    assert_int_equal(seen.n_reconnects, 0);
    sl_client_close(&client);
    stop();
}

static void test_watch_meets_its_deadline(void **state) {
    (void)state;
    static const struct act acts[] = {{2, 0, END_HANG, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 2000);
    struct sl_error err = {0};
    int64_t begin_ns = sl_now_ns(), running = running_ns();
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - begin_ns >= 1950 * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 5000);
    assert_sequences(&seen, 1, 2);
    sl_client_close(&client);
    stop();
}

static void test_watch_loses_patience_without_a_coordinator(void **state) {
    (void)state;
    static const struct act acts[] = {{0, 0, END_ORDERLY, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    stop();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 60000);
    watch.reconnect_ms = 1500;
    struct sl_error err = {0};
    int64_t begin_ns = sl_now_ns(), running = running_ns();
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_ERR_PEER_LOST);
    assert_true(sl_now_ns() - begin_ns >= 1500 * SL_NS_PER_MS);
    assert_in_range((running_ns() - running) / SL_NS_PER_MS, 0, 10000);
    assert_true(seen.n_reconnects >= 2);
    sl_client_close(&client);
}

static void test_watch_stops_when_asked(void **state) {
    (void)state;
    static const struct act acts[] = {{5, 0, END_HANG, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    struct seen seen = {.stop_after = 5};
    struct sl_watch watch = watch_into(&seen, 20000);
    assert_int_equal(sl_client_watch(client, &watch, NULL), SL_ERR_CANCELLED);
    assert_sequences(&seen, 1, 5);
    assert_int_equal(coordinator.n_cancelled, 0); // the job is left alone
    sl_client_close(&client);
    stop();
}

static void test_generate_cancels_the_job_that_it_gives_up(void **state) {
    (void)state;
    static const struct act acts[] = {{5, 0, END_HANG, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    struct seen seen = {.stop_after = 3};
    struct sl_watch watch = watch_into(&seen, 20000);
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    char job_id[SL_JOB_ID_BYTES] = "";
    struct sl_error err = {0};
    assert_int_equal(sl_client_generate(client, &request, &watch, job_id, &err), SL_ERR_CANCELLED);
    assert_string_equal(job_id, "job-1");
    assert_non_null(strstr(err.text, "the job was cancelled"));
    assert_int_equal(coordinator.n_cancelled, 1);
    assert_string_equal(coordinator.cancelled_id, "job-1");
    sl_client_close(&client);
    stop();
}

static void test_generate_reports_a_refusal(void **state) {
    (void)state;
    static const struct act acts[] = {{N_EVENTS, 0, END_ORDERLY, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    coordinator.submit_status = SL_ERR_EXHAUSTED;
    coordinator.n_failing = 8;
    struct sl_client *client = connect_client();
    struct seen seen = {0};
    struct sl_watch watch = watch_into(&seen, 20000);
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    char job_id[SL_JOB_ID_BYTES] = "";
    struct sl_error err = {0};
    assert_int_equal(sl_client_generate(client, &request, &watch, job_id, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry in 250 ms"));
    assert_string_equal(job_id, "");
    assert_int_equal(coordinator.n_cancelled, 0);
    coordinator.n_failing = 0;
    assert_int_equal(sl_client_generate(client, &request, &watch, job_id, &err), SL_OK);
    assert_sequences(&seen, 1, N_EVENTS);
    sl_client_close(&client);
    stop();
    assert_int_equal(sl_rpc_live_calls(), 0);
}

static int start_rpc(void **state) {
    (void)state;
    pthread_mutex_init(&coordinator.lock, NULL);
    sl_log_configure("error", NULL);
    sl_rpc_init();
    return 0;
}

static int stop_rpc(void **state) {
    (void)state;
    sl_rpc_shutdown();
    return 0;
}

// An answer that was lost: the same request again, which its key makes the same job.
static void test_submit_is_repeated_with_its_key(void **state) {
    (void)state;
    static const struct act acts[] = {{N_EVENTS, 0, END_ORDERLY, SL_OK}};
    start("127.0.0.1:0", acts, 1);
    struct sl_client *client = connect_client();
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    char id[SL_JOB_ID_BYTES];
    struct sl_error err;
    coordinator.submit_status = SL_ERR_PEER_LOST;
    coordinator.n_failing = 2;
    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(20000), id, &err), SL_OK);
    assert_string_equal(id, "job-1");
    assert_int_equal(coordinator.n_submitted, 3);
    assert_int_equal(strlen(coordinator.keys[0]), 32);
    assert_string_equal(coordinator.keys[1], coordinator.keys[0]);
    assert_string_equal(coordinator.keys[2], coordinator.keys[0]);

    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(20000), id, &err), SL_OK);
    assert_string_not_equal(coordinator.keys[3], coordinator.keys[0]); // another job
    request.idempotency_key = (char *)"the client's own";
    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(20000), id, &err), SL_OK);
    assert_string_equal(coordinator.keys[4], "the client's own");

    coordinator.submit_status = SL_ERR_INVALID; // what cannot succeed is not repeated
    coordinator.n_failing = 8;
    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(20000), id, &err), SL_ERR_INVALID);
    assert_int_equal(coordinator.n_submitted, 6);
    sl_client_close(&client);
    stop();
}

// Longer than a message may be, of characters of one to four bytes.
static void test_long_prompts_are_submitted_in_parts(void **state) {
    (void)state;
    static const struct act acts[] = {{N_EVENTS, 0, END_ORDERLY, SL_OK}};
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"};
    start("127.0.0.1:0", acts, 1);
    coordinator.parts_are_good = true;
    struct sl_client *client = connect_client();
    struct sl_error err = {0};
    char *text = malloc(5 << 20), id[SL_JOB_ID_BYTES];
    size_t n = 0;
    for (unsigned i = 0; n < (size_t)4500000; i++) {
        const char *character = characters[i % 5];
        strcpy(text + n, character);
        n += strlen(character);
    }
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = text;
    request.deadline_ms = 1234;
    if (sl_client_submit(client, &request, sl_deadline_in_ms(60000), id, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(id, "job-1");
    assert_int_equal(coordinator.n_parts, 5);
    assert_true(coordinator.parts_are_good);
    assert_int_equal(strlen(coordinator.text), n);
    assert_memory_equal(coordinator.text, text, n);
    free(text);
    sl_client_close(&client);
    stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watch_delivers_all_events),
        cmocka_unit_test(test_watch_resumes_behind_the_last_event),
        cmocka_unit_test(test_watch_survives_a_restart_of_the_coordinator),
        cmocka_unit_test(test_watch_does_not_repeat_what_cannot_succeed),
        cmocka_unit_test(test_watch_meets_its_deadline),
        cmocka_unit_test(test_watch_loses_patience_without_a_coordinator),
        cmocka_unit_test(test_watch_stops_when_asked),
        cmocka_unit_test(test_generate_cancels_the_job_that_it_gives_up),
        cmocka_unit_test(test_generate_reports_a_refusal),
        cmocka_unit_test(test_submit_is_repeated_with_its_key),
        cmocka_unit_test(test_long_prompts_are_submitted_in_parts),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
