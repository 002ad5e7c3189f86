// SPDX-License-Identifier: Apache-2.0
// Purpose: a coordinator among several: what it refuses when it does not lead, and when it stops; and jobs that another
// one has begun.
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
#include "tests/unit/coordinator/election/fake_etcd.h"
#include "tests/unit/rpc_group.h"

#define DECODE   SLUICE__V1__WORKER_ROLE__DECODE
#define FIRST_ID 100 // of the fake decode worker's tokens

static struct fake_cluster cluster, other;
static struct fake_worker prefill, decode;
static struct fake_events events;
static char etcd_list[FAKE_ETCD_LIST_BYTES];

static void start_coordinator(struct fake_cluster *one, bool several) {
    struct sl_coordinator_config config;
    fake_cluster_config(&config);
    if (several) {
        config.etcd = etcd_list;
        config.etcd_prefix = FAKE_ETCD_PREFIX;
    }
    fake_cluster_start(one, &config);
}

static void stop_workers(void) {
    fake_worker_stop(&prefill);
    fake_worker_stop(&decode);
}

static int64_t term_of(struct fake_cluster *one, char leader_out[128]) {
    Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    assert_int_equal(sl_rpc_unary(one->channel, &sl_method_inference_model, &request.base, sl_deadline_in_ms(5000),
                                  NULL, &message, NULL),
                     SL_OK);
    const Sluice__V1__ModelReply *reply = (const Sluice__V1__ModelReply *)message;
    int64_t term = reply->term;
    assert_int_equal(reply->standby, term == 0);
    snprintf(leader_out, 128, "%s", reply->leader);
    protobuf_c_message_free_unpacked(message, NULL);
    return term;
}

static int64_t wait_until_it_leads(struct fake_cluster *one, bool leads) {
    char leader[128];
    int64_t deadline_ns = sl_deadline_in_ms(20000), term;
    while ((term = term_of(one, leader), (term != 0) != leads) && sl_now_ns() < deadline_ns) {
        sl_sleep_ms(10);
    }
    assert_int_equal(term != 0, leads);
    return term;
}

static enum sl_status submit(struct fake_cluster *one, const char *key, char id_out[64], struct sl_error *err) {
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 4);
    request.idempotency_key = (char *)key;
    ProtobufCMessage *message = NULL;
    enum sl_status status = sl_rpc_unary(one->channel, &sl_method_inference_submit, &request.base,
                                         sl_deadline_in_ms(5000), NULL, &message, err);
    if (status == SL_OK) {
        const Sluice__V1__SubmitReply *reply = (const Sluice__V1__SubmitReply *)message;
        snprintf(id_out, 64, "%s", reply->job_id);
        assert_string_equal(reply->recipe, "full,format=int8"); // what a request that names none has got
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}

static void test_a_coordinator_that_does_not_lead_says_who_does(void **state) {
    (void)state;
    char id[64], leader[128];
    struct sl_error err = {0};
    fake_etcd_start(etcd_list);
    start_coordinator(&cluster, true);
    wait_until_it_leads(&cluster, true);
    start_coordinator(&other, true);
    int64_t deadline_ns = sl_deadline_in_ms(10000);
    while (term_of(&other, leader) == 0 && leader[0] == '\0' && sl_now_ns() < deadline_ns) {
        sl_sleep_ms(10);
    }
    assert_string_equal(leader, sl_coordinator_address(cluster.coordinator));
    assert_int_equal(submit(&other, "k", id, &err), SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, leader));
    Sluice__V1__JobRequest job = SLUICE__V1__JOB_REQUEST__INIT;
    job.job_id = (char *)"job-of-another";
    assert_int_equal(
        sl_rpc_unary(other.channel, &sl_method_inference_get, &job.base, sl_deadline_in_ms(5000), NULL, NULL, &err),
        SL_ERR_PEER_LOST); // it may be there
    assert_int_equal(
        sl_rpc_unary(cluster.channel, &sl_method_inference_get, &job.base, sl_deadline_in_ms(5000), NULL, NULL, &err),
        SL_ERR_NOT_FOUND);
    Sluice__V1__ListRequest list = SLUICE__V1__LIST_REQUEST__INIT;
    assert_int_equal(
        sl_rpc_unary(other.channel, &sl_method_inference_list, &list.base, sl_deadline_in_ms(5000), NULL, NULL, &err),
        SL_ERR_PEER_LOST);
    Sluice__V1__DrainRequest drain = SLUICE__V1__DRAIN_REQUEST__INIT;
    drain.name = (char *)"decode-0";
    assert_int_equal(
        sl_rpc_unary(other.channel, &sl_method_cluster_drain, &drain.base, sl_deadline_in_ms(5000), NULL, NULL, &err),
        SL_ERR_PEER_LOST);
    fake_cluster_stop(&cluster); // makes way
    wait_until_it_leads(&other, true);
    fake_cluster_stop(&other);
    fake_etcd_stop();
    assert_int_equal(sl_rpc_live_calls(), 0);
}

// The leader's lease ends, and another coordinator takes the key; the leader does not know yet.
static void give_the_key_to_another(void) {
    pthread_mutex_lock(&fake_etcd.mutex);
    strcpy(fake_etcd.value, "127.0.0.1:1");
    fake_etcd.lease = 100;
    fake_etcd.created = ++fake_etcd.revision;
    pthread_mutex_unlock(&fake_etcd.mutex);
}

static void free_the_key(void) {
    pthread_mutex_lock(&fake_etcd.mutex);
    fake_etcd.lease = fake_etcd.created = 0;
    pthread_mutex_unlock(&fake_etcd.mutex);
}

static void test_a_coordinator_that_is_refused_stops_leading(void **state) {
    (void)state;
    char id[64], again[64];
    struct sl_error err = {0};
    fake_etcd_start(etcd_list);
    start_coordinator(&cluster, true);
    fake_workers_start(&cluster, &prefill, &decode);
    int64_t term = wait_until_it_leads(&cluster, true);
    atomic_store(&decode.guard_term, term + 1); // it has heard of another one
    give_the_key_to_another();
    assert_int_equal(submit(&cluster, "a key", id, &err), SL_OK);
    fake_watch(&cluster, id, 0, &events);
    const Sluice__V1__Finished *finished = fake_events_check(&events, 0);
    assert_true(finished->another_leads);
    assert_int_equal(finished->status_code, sl_rpc_code_of_status(SL_ERR_PEER_LOST));
    assert_non_null(strstr(finished->status_text, "term"));
    assert_int_equal(atomic_load(&prefill.n_runs), 0);
    fake_events_free(&events);
    char leader[128];
    assert_int_equal(term_of(&cluster, leader), 0);
    assert_int_equal(submit(&cluster, "a key", again, &err), SL_ERR_PEER_LOST);
    free_the_key();
    assert_true(wait_until_it_leads(&cluster, true) > term);
    assert_int_equal(submit(&cluster, "a key", again, &err), SL_OK);
    assert_string_not_equal(id, again); // the one that failed for want of a term is not the answer
    fake_watch(&cluster, again, 0, &events);
    assert_false(fake_events_check(&events, 4)->another_leads);
    fake_events_free(&events);
    stop_workers();
    fake_cluster_stop(&cluster);
    fake_etcd_stop();
}

static void report_term(int64_t term) {
    Sluice__V1__HeartbeatRequest beat = SLUICE__V1__HEARTBEAT_REQUEST__INIT;
    beat.name = (char *)"decode-0";
    beat.epoch = decode.epoch;
    beat.term = term;
    assert_int_equal(sl_rpc_unary(cluster.channel, &sl_method_cluster_heartbeat, &beat.base, sl_deadline_in_ms(5000),
                                  NULL, NULL, NULL),
                     SL_OK);
}

static int calls_of_etcd(void) {
    pthread_mutex_lock(&fake_etcd.mutex);
    int n = fake_etcd.n_calls[0] + fake_etcd.n_calls[1];
    pthread_mutex_unlock(&fake_etcd.mutex);
    return n;
}

// A newer term in a worker's heartbeat makes the leader ask etcd at once, which decides; a lie changes nothing.
static void test_a_coordinator_that_hears_of_a_newer_term_asks_etcd(void **state) {
    (void)state;
    char leader[128];
    fake_etcd_start(etcd_list);
    start_coordinator(&cluster, true);
    fake_workers_start(&cluster, &prefill, &decode);
    int64_t term = wait_until_it_leads(&cluster, true);
    const int n_before = calls_of_etcd();
    int64_t end_ns = sl_deadline_in_ms(1000);
    while (sl_now_ns() < end_ns) {
        report_term((int64_t)1 << 62);
        assert_int_equal(term_of(&cluster, leader), term);
    }
    const int n_asked = calls_of_etcd() - n_before; // a question is two calls: renew and range
    assert_in_range(n_asked, 2, 12);                // four times a second, however often the worker reports
    give_the_key_to_another();
    report_term(term + 1);
    end_ns = sl_deadline_in_ms(1000 * SLOWNESS); // sooner than the next renewal
    while (term_of(&cluster, leader) != 0 && sl_now_ns() < end_ns) {
        sl_sleep_ms(10);
    }
    assert_int_equal(term_of(&cluster, leader), 0);
    stop_workers();
    fake_cluster_stop(&cluster);
    fake_etcd_stop();
}

static void test_a_worker_that_lies_about_terms_is_avoided(void **state) {
    (void)state;
    char id[64], leader[128];
    struct sl_error err = {0};
    struct fake_worker honest;
    fake_etcd_start(etcd_list);
    start_coordinator(&cluster, true);
    fake_workers_start(&cluster, &prefill, &decode);
    fake_worker_init(&honest, "decode-1", DECODE);
    assert_int_equal(fake_worker_start(&honest, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
    int64_t term = wait_until_it_leads(&cluster, true);
    atomic_store(&decode.guard_term, INT64_MAX);
    for (int i = 0; i < 4; i++) {
        char key[] = {'k', (char)('0' + i), '\0'};
        assert_int_equal(submit(&cluster, key, id, &err), SL_OK);
        fake_watch(&cluster, id, 0, &events);
        assert_int_equal(fake_events_check(&events, 4)->status_code, 0);
        fake_events_free(&events);
    }
    assert_int_equal(term_of(&cluster, leader), term);
    fake_worker_stop(&honest);
    stop_workers();
    fake_cluster_stop(&cluster);
    fake_etcd_stop();
}

// Without etcd: nothing is new but that a request may say what it has.
static void test_a_job_goes_on_behind_what_was_delivered(void **state) {
    (void)state;
    start_coordinator(&cluster, false);
    fake_workers_start(&cluster, &prefill, &decode);
    int32_t ids[] = {FIRST_ID, FIRST_ID + 1, FIRST_ID + 2};
    Sluice__V1__TokenIds delivered = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    Sluice__V1__GenerateRequest request;
    fake_request(&request, 8);
    delivered.ids = ids;
    delivered.n_ids = 3;
    resumption.delivered = &delivered;
    resumption.recipe = (char *)"full,format=int4";
    resumption.elapsed_ms = 5000;
    request.resumption = &resumption;
    request.idempotency_key = (char *)"one job";
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_OK);
    assert_int_equal(atomic_load(&decode.last_resumed), 3);
    int next = 3;
    for (int i = 0; i < events.n; i++) {
        if (events.events[i]->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
            assert_int_equal(events.events[i]->token->index, next++);
        }
    }
    assert_int_equal(next, 8);
    const Sluice__V1__Finished *finished = events.events[events.n - 1]->finished;
    assert_int_equal(finished->statistics->n_output_tokens, 8);
    assert_string_equal(finished->statistics->recipe, "full,format=int4");
    assert_true(finished->statistics->total_ms >= 5000); // since it was first submitted
    assert_true(finished->statistics->tpot_ms < 1000);   // of what was written here
    fake_events_free(&events);
    // With its key it is the same job, whatever it has by now.
    char id[64];
    resumption.elapsed_ms = 6000;
    delivered.n_ids = 2;
    fake_submit(&cluster, &request, id);
    fake_watch(&cluster, id, 0, &events);
    assert_int_equal(atomic_load(&decode.n_runs), 1);
    fake_events_free(&events);
    // All tokens were delivered, but not the end: the last one is written again, and shown to no client.
    int32_t all[8];
    for (int i = 0; i < 8; i++) {
        all[i] = FIRST_ID + i;
    }
    delivered.ids = all;
    delivered.n_ids = 8;
    request.idempotency_key = (char *)"another";
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_OK);
    assert_int_equal(atomic_load(&decode.last_resumed), 7);
    for (int i = 0; i < events.n; i++) {
        assert_true(events.events[i]->what_case != SLUICE__V1__EVENT__WHAT_TOKEN);
    }
    assert_int_equal(events.events[events.n - 1]->finished->statistics->n_output_tokens, 8);
    fake_events_free(&events);
    // It goes on with what the worker writes, or not at all.
    all[7] = 5;
    request.idempotency_key = (char *)"a third";
    fake_generate(&cluster, &request, &events);
    assert_int_equal(events.status, SL_ERR_PEER_LOST);
    fake_events_free(&events);
    stop_workers();
    fake_cluster_stop(&cluster);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_coordinator_that_does_not_lead_says_who_does),
        cmocka_unit_test(test_a_coordinator_that_is_refused_stops_leading),
        cmocka_unit_test(test_a_coordinator_that_hears_of_a_newer_term_asks_etcd),
        cmocka_unit_test(test_a_worker_that_lies_about_terms_is_avoided),
        cmocka_unit_test(test_a_job_goes_on_behind_what_was_delivered),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
