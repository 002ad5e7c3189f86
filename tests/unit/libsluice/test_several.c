// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an answer goes on whatever becomes of its coordinator: no token twice, none another.
 * The coordinators here are real gRPC servers with a script: who leads, after how many tokens the first job breaks, and
 * how.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/libsluice/sluice.h"
#include "proto/methods.h"
#include "net/rpc/rpc.h"
#include "tests/unit/rpc_group.h"

#define N_TOKENS 12
#define BREAK_AT 5
#define FIRST_ID 100

enum breaking { NEVER, BY_ERROR, BY_SILENCE, BY_MOVING, BY_FORGETTING, BY_LOSING_EVENTS, BY_LOSING_THE_END };

struct node {
    int index;
    struct sl_rpc_server *server;
    // The script; what happens is under the lock.
    bool standby, lies;
    int n_silent; // of the next questions for the model, those that are not answered
    enum breaking breaking;
    bool is_broken;
    int n_submitted, n_delivered, n_watched, n_cancelled;
    char key[64], recipe[64];
    int64_t elapsed_ms;
    uint64_t seed; // that a resumption says; 0: none
    int32_t max_new_tokens;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node nodes[2];

static enum sl_status handle_model(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    (void)request;
    (void)err;
    struct node *node = service;
    pthread_mutex_lock(&lock);
    Sluice__V1__ModelReply reply = SLUICE__V1__MODEL_REPLY__INIT;
    reply.standby = node->standby;
    bool silent = node->n_silent > 0 || (node->is_broken && node->breaking == BY_SILENCE);
    node->n_silent -= node->n_silent > 0;
    pthread_mutex_unlock(&lock);
    while (silent && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(5);
    }
    return silent ? SL_ERR_CANCELLED : sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_submit(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    struct node *node = service;
    const Sluice__V1__GenerateRequest *request = (const Sluice__V1__GenerateRequest *)message;
    pthread_mutex_lock(&lock);
    bool standby = node->standby;
    if (!standby) {
        node->n_submitted++;
        snprintf(node->key, sizeof node->key, "%s", request->idempotency_key);
        const Sluice__V1__Resumption *resumption = request->resumption;
        node->n_delivered = resumption && resumption->delivered ? (int)resumption->delivered->n_ids : 0;
        node->elapsed_ms = resumption ? resumption->elapsed_ms : -1;
        bool has_seed = resumption && resumption->seed_present_case == SLUICE__V1__RESUMPTION__SEED_PRESENT_SEED;
        node->seed = has_seed ? resumption->seed : 0;
        node->max_new_tokens = resumption ? resumption->max_new_tokens : 0;
        snprintf(node->recipe, sizeof node->recipe, "%s", resumption ? resumption->recipe : "");
        for (int i = 0; i < node->n_delivered; i++) {
            assert_int_equal(resumption->delivered->ids[i], FIRST_ID + i);
        }
    }
    char id[32];
    snprintf(id, sizeof id, "job-%d-%d", node->index, node->n_submitted);
    pthread_mutex_unlock(&lock);
    if (standby) {
        return sl_fail(err, SL_ERR_PEER_LOST, "this coordinator does not lead");
    }
    Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
    reply.job_id = id;
    reply.recipe = (char *)"full,format=int4";
    Sluice__V1__Accepted accepted = SLUICE__V1__ACCEPTED__INIT; // the request named neither
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    sampling.seed_present_case = SLUICE__V1__SAMPLING__SEED_PRESENT_SEED;
    sampling.seed = 4711;
    accepted.sampling = &sampling;
    accepted.max_new_tokens = 77;
    reply.accepted = &accepted;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status send_token(struct sl_rpc_call *call, int64_t sequence, int index, bool lies) {
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = FIRST_ID + index + lies;
    token.index = index;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.sequence = sequence;
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = &token;
    return sl_rpc_call_send(call, &event.base);
}

static enum sl_status send_end(struct sl_rpc_call *call, int64_t sequence, bool moves) {
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.another_leads = moves;
    finished.status_code = moves ? 14 : 0;
    finished.status_text = (char *)(moves ? "another one leads" : "");
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.sequence = sequence;
    event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    event.finished = &finished;
    return sl_rpc_call_send(call, &event.base);
}

// The script's turn: the job of this node is lost, and the other node leads, if there is one.
static enum sl_status break_off(struct node *node, struct sl_rpc_call *call, struct sl_error *err) {
    pthread_mutex_lock(&lock);
    node->is_broken = true;
    enum breaking breaking = node->breaking;
    if (nodes[1].server) {
        node->standby = breaking != BY_SILENCE; // a suspended coordinator does not know it
        nodes[!node->index].standby = false;
    }
    pthread_mutex_unlock(&lock);
    if (breaking == BY_MOVING) {
        return send_end(call, BREAK_AT + 1, true);
    }
    while (breaking == BY_SILENCE && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(5);
    }
    return sl_fail(err, SL_ERR_PEER_LOST, "as the script says");
}

static enum sl_status handle_watch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                   struct sl_error *err) {
    struct node *node = service;
    const Sluice__V1__WatchRequest *watch = (const Sluice__V1__WatchRequest *)message;
    pthread_mutex_lock(&lock);
    char id[32];
    snprintf(id, sizeof id, "job-%d-%d", node->index, node->n_submitted);
    bool breaks = node->breaking != NEVER && !node->is_broken, lies = node->lies;
    bool forgotten = node->is_broken && node->breaking == BY_FORGETTING && node->n_submitted == 1;
    int first = node->n_delivered, lost = 0;
    bool again = node->is_broken && node->n_submitted == 1;
    lost = again && node->breaking == BY_LOSING_EVENTS ? 2 : 0;
    again &= node->breaking == BY_LOSING_THE_END;
    node->n_watched++;
    pthread_mutex_unlock(&lock);
    if (strcmp(id, watch->job_id) != 0 || forgotten) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "there is no job %s", watch->job_id);
    }
    if (again) {
        return SL_OK; // its events are fewer than the client has seen
    }
    first -= first > 0; // as a worker that writes the last one again, and a coordinator that tells of it
    int64_t sequence = 1 - lost;
    for (int i = first; i < N_TOKENS; i++, sequence++) {
        if (breaks && i == BREAK_AT) {
            return break_off(node, call, err);
        }
        if (sequence >= watch->from_sequence && send_token(call, sequence, i, lies) != SL_OK) {
            return SL_ERR_CANCELLED;
        }
    }
    return send_end(call, sequence, false);
}

static enum sl_status handle_cancel(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    (void)message;
    (void)err;
    struct node *node = service;
    pthread_mutex_lock(&lock);
    node->n_cancelled++;
    pthread_mutex_unlock(&lock);
    Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    return sl_rpc_call_send(call, &job.base);
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_inference_watch, handle_watch, SL_ROLE_ANY},
    {&sl_method_inference_submit, handle_submit, SL_ROLE_ANY},
    {&sl_method_inference_cancel, handle_cancel, SL_ROLE_ANY},
    {&sl_method_inference_model, handle_model, SL_ROLE_ANY},
};
// As much of sluice.v1.Inference as the client is made to call here.
static const struct sl_rpc_method *const methods[] = {&sl_method_inference_watch, &sl_method_inference_submit,
                                                      &sl_method_inference_cancel, &sl_method_inference_model};
static const struct sl_rpc_service inference = {"sluice.v1.Inference", methods, 4};

// The first one leads, and breaks.
static struct sl_client *start(int n, enum breaking breaking) {
    char list[256] = "";
    memset(nodes, 0, sizeof nodes);
    for (int i = 0; i < n; i++) {
        nodes[i].index = i;
        nodes[i].standby = i > 0;
        struct sl_rpc_implementation service = SL_RPC_IMPLEMENTATION(&inference, handlers, &nodes[i]);
        struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &service, .n_services = 1};
        assert_int_equal(sl_rpc_server_start(&config, &nodes[i].server, NULL), SL_OK);
        snprintf(list + strlen(list), 64, "%s%s", i ? "," : "", sl_rpc_server_address(nodes[i].server));
    }
    nodes[0].breaking = breaking;
    struct sl_client *client = NULL;
    assert_int_equal(sl_client_connect(list, NULL, &client, NULL), SL_OK);
    return client;
}

static void stop(struct sl_client **client) {
    sl_client_close(client);
    for (int i = 0; i < 2; i++) {
        sl_rpc_server_stop(&nodes[i].server, 0);
    }
    assert_int_equal(sl_rpc_live_calls(), 0);
}

struct seen {
    int n_tokens, n_ends;
    int64_t last_sequence;
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct seen *seen = arg;
    assert_true(event->sequence > seen->last_sequence);
    seen->last_sequence = event->sequence;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        assert_int_equal(event->token->index, seen->n_tokens);
        assert_int_equal(event->token->id, FIRST_ID + seen->n_tokens);
        seen->n_tokens++;
    } else {
        assert_false(event->finished->another_leads);
        seen->n_ends++;
    }
}

static enum sl_status generate(struct sl_client *client, struct seen *seen, char id[SL_JOB_ID_BYTES],
                               struct sl_error *err) {
    *seen = (struct seen){0};
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(30000), .on_event = on_event, .arg = seen};
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    return sl_client_generate(client, &request, &watch, id, err);
}

static void check_that_it_goes_on(enum breaking breaking) {
    struct sl_client *client = start(2, breaking);
    struct seen seen;
    struct sl_error err = {0};
    char id[SL_JOB_ID_BYTES];
    enum sl_status status = generate(client, &seen, id, &err);
    if (status != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(id, "job-1-1");
    assert_int_equal(seen.n_tokens, N_TOKENS);
    assert_int_equal(seen.n_ends, 1);
    assert_int_equal(nodes[0].n_submitted, 1);
    assert_int_equal(nodes[1].n_submitted, 1);
    assert_int_equal(nodes[1].n_delivered, BREAK_AT);
    assert_string_equal(nodes[1].recipe, "full,format=int4");
    assert_true(nodes[1].seed == 4711 && nodes[1].max_new_tokens == 77);
    assert_string_equal(nodes[1].key, nodes[0].key);
    assert_true(nodes[1].elapsed_ms >= 0 && nodes[1].elapsed_ms < 30000);
    assert_int_equal(nodes[0].n_watched, 1); // its job is not asked for again
    stop(&client);
}

static void test_generate_goes_on_at_the_next_leader(void **state) {
    (void)state;
    check_that_it_goes_on(BY_ERROR);
}

static void test_generate_leaves_a_leader_that_is_silent_where_another_one_leads(void **state) {
    (void)state;
    check_that_it_goes_on(BY_SILENCE);
}

static void test_generate_goes_on_where_its_coordinator_says_that_another_one_leads(void **state) {
    (void)state;
    check_that_it_goes_on(BY_MOVING);
}

static void be_silent(int n_first, int n_second) {
    pthread_mutex_lock(&lock);
    nodes[0].n_silent = n_first;
    nodes[1].n_silent = n_second;
    pthread_mutex_unlock(&lock);
}

// On a busy machine no coordinator answers within the time that each is given: the caller's own deadline is far away.
static void test_a_call_waits_for_slow_coordinators(void **state) {
    (void)state;
    for (int n_alive = 2; n_alive > 0; n_alive--) {
        struct sl_client *client = start(2, NEVER);
        struct sl_error err = {0};
        Sluice__V1__ModelReply *reply = NULL;
        if (n_alive == 1) {
            sl_rpc_server_stop(&nodes[1].server, 0);
        }
        be_silent(2, 2); // asked whether they lead, and for the model
        if (sl_client_model(client, sl_deadline_in_ms(60000), &reply, &err) != SL_OK) {
            fail_msg("%d alive: %s", n_alive, err.text);
        }
        protobuf_c_message_free_unpacked(&reply->base, NULL);
        be_silent(100, 100);
        assert_int_equal(sl_client_model(client, sl_deadline_in_ms(1), &reply, &err), SL_ERR_DEADLINE);
        stop(&client);
    }
}

// One coordinator, which was restarted.
static void test_generate_goes_on_where_the_job_was_lost(void **state) {
    (void)state;
    struct sl_client *client = start(1, BY_FORGETTING);
    struct seen seen;
    struct sl_error err = {0};
    char id[SL_JOB_ID_BYTES];
    assert_int_equal(generate(client, &seen, id, &err), SL_OK);
    assert_string_equal(id, "job-0-2");
    assert_true(seen.n_tokens == N_TOKENS && seen.n_ends == 1);
    assert_int_equal(nodes[0].n_submitted, 2);
    stop(&client);
}

// One coordinator, after a crash of its system: it has fewer events of the job than the client has seen.
static void test_generate_goes_on_where_a_part_of_the_job_was_lost(void **state) {
    (void)state;
    for (enum breaking breaking = BY_LOSING_EVENTS; breaking <= BY_LOSING_THE_END; breaking++) {
        struct sl_client *client = start(1, breaking);
        struct seen seen;
        struct sl_error err = {0};
        char id[SL_JOB_ID_BYTES];
        if (generate(client, &seen, id, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
        assert_true(seen.n_tokens == N_TOKENS && seen.n_ends == 1);
        assert_int_equal(nodes[0].n_submitted, 2);
        assert_int_equal(nodes[0].n_delivered, BREAK_AT);
        stop(&client);
    }
}

static void test_generate_does_not_believe_another_answer(void **state) {
    (void)state;
    struct sl_client *client = start(2, BY_ERROR);
    struct seen seen;
    struct sl_error err = {0};
    char id[SL_JOB_ID_BYTES];
    nodes[1].lies = true;
    assert_int_equal(generate(client, &seen, id, &err), SL_ERR_PEER_CORRUPT);
    assert_int_equal(seen.n_tokens, BREAK_AT);
    assert_int_equal(nodes[1].n_cancelled, 1);
    stop(&client);
}

static void *lead_later(void *arg) {
    (void)arg;
    sl_sleep_ms(600);
    pthread_mutex_lock(&lock);
    nodes[1].standby = false;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void test_submit_waits_until_somebody_leads(void **state) {
    (void)state;
    struct sl_client *client = start(2, NEVER);
    pthread_t thread;
    nodes[0].standby = true;
    assert_int_equal(pthread_create(&thread, NULL, lead_later, NULL), 0);
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    char id[SL_JOB_ID_BYTES];
    struct sl_error err = {0};
    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(20000), id, &err), SL_OK);
    assert_string_equal(id, "job-1-1");
    pthread_join(thread, NULL);
    Sluice__V1__ModelReply *reply = NULL;
    pthread_mutex_lock(&lock);
    nodes[1].standby = true; // what needs no leader is answered without one
    pthread_mutex_unlock(&lock);
    assert_int_equal(sl_client_model(client, sl_deadline_in_ms(20000), &reply, &err), SL_OK);
    assert_true(reply->standby);
    sluice__v1__model_reply__free_unpacked(reply, NULL);
    assert_int_equal(sl_client_submit(client, &request, sl_deadline_in_ms(500), id, &err), SL_ERR_PEER_LOST);
    stop(&client);
}

static void test_jobs_are_looked_for_everywhere(void **state) {
    (void)state;
    struct sl_client *client = start(2, NEVER);
    struct seen seen = {0};
    struct sl_error err = {0};
    nodes[0].n_submitted = 1; // has job-0-1, and does not lead any more
    nodes[0].standby = true;
    nodes[1].standby = false;
    struct sl_watch watch = {
        .job_id = "job-0-1", .deadline_ns = sl_deadline_in_ms(20000), .on_event = on_event, .arg = &seen};
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_OK);
    assert_true(seen.n_tokens == N_TOKENS && seen.n_ends == 1);
    watch.job_id = "job-9-9";
    assert_int_equal(sl_client_watch(client, &watch, &err), SL_ERR_NOT_FOUND);
    stop(&client);
}

static void test_addresses_are_checked(void **state) {
    (void)state;
    struct sl_client *client = NULL;
    const char *const wrong[] = {"",     "a",     ",",       "a:1,",
                                 ",a:1", "a:1,b", "a:1,a:0", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(sl_client_connect(wrong[i], NULL, &client, NULL), SL_ERR_INVALID);
    }
    assert_null(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_goes_on_at_the_next_leader),
        cmocka_unit_test(test_generate_leaves_a_leader_that_is_silent_where_another_one_leads),
        cmocka_unit_test(test_generate_goes_on_where_its_coordinator_says_that_another_one_leads),
        cmocka_unit_test(test_a_call_waits_for_slow_coordinators),
        cmocka_unit_test(test_generate_goes_on_where_the_job_was_lost),
        cmocka_unit_test(test_generate_goes_on_where_a_part_of_the_job_was_lost),
        cmocka_unit_test(test_generate_does_not_believe_another_answer),
        cmocka_unit_test(test_submit_waits_until_somebody_leads),
        cmocka_unit_test(test_jobs_are_looked_for_everywhere),
        cmocka_unit_test(test_addresses_are_checked),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
