// SPDX-License-Identifier: Apache-2.0
// Purpose: what etcd may answer, and what a seat of it does when some of its servers do not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/election/election.h"
#include "coordinator/election/etcd.h"
#include "coordinator/election/etcd_reply.h"
#include "proto/methods.h"
#include "rpc/rpc.h"

// ---- replies ---------------------------------------------------------------------------------------------------------

static ProtobufCBinaryData bytes(const char *text) {
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

static Etcdserverpb__KeyValue pair(const char *key, const char *value, int64_t revision) {
    Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
    kv.key = bytes(key);
    kv.value = bytes(value);
    kv.create_revision = revision;
    kv.lease = 77;
    return kv;
}

static enum sl_status read_range(Etcdserverpb__KeyValue *kvs, size_t n, struct sl_seat *seat) {
    Etcdserverpb__RangeResponse reply = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__KeyValue *pointers[] = {&kvs[0], &kvs[1]};
    struct sl_error err;
    reply.kvs = pointers;
    reply.n_kvs = n;
    return sl_etcd_read_range(&reply, "/x/leader", seat, &err);
}

static void test_range_is_a_seat_or_nothing(void **state) {
    (void)state;
    struct sl_seat seat;
    char large[SL_LEADER_BYTES + 1];
    memset(large, 'a', sizeof large);
    large[SL_LEADER_BYTES] = '\0';
    Etcdserverpb__KeyValue kvs[2] = {pair("/x/leader", "10.0.0.1:7600", 5), pair("/x/leader", "b:1", 6)};
    assert_int_equal(read_range(kvs, 1, &seat), SL_OK);
    assert_int_equal(seat.term, 5);
    assert_int_equal(seat.lease, 77);
    assert_string_equal(seat.holder, "10.0.0.1:7600");
    assert_int_equal(read_range(kvs, 0, &seat), SL_ERR_NOT_FOUND);
    assert_int_equal(read_range(kvs, 2, &seat), SL_ERR_PEER_CORRUPT);
    const Etcdserverpb__KeyValue wrong[] = {pair("/x/leaders", "b:1", 5),  pair("/x/leade", "b:1", 5),
                                            pair("/x/leader", "", 5),      pair("/x/leader", "b:1", 0),
                                            pair("/x/leader", "b:1", -5),  pair("/x/leader", "b 1", 5),
                                            pair("/x/leader", "b\xff", 5), pair("/x/leader", large, 5)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvs[0] = wrong[i];
        assert_int_equal(read_range(kvs, 1, &seat), SL_ERR_PEER_CORRUPT);
    }
}

static void test_txn_says_whose_the_seat_is(void **state) {
    (void)state;
    struct sl_seat seat;
    struct sl_error err;
    Etcdserverpb__TxnResponse reply = ETCDSERVERPB__TXN_RESPONSE__INIT;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    reply.succeeded = true;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_ERR_PEER_CORRUPT);
    reply.header = &header;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_ERR_PEER_CORRUPT);
    header.revision = 12;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_OK);
    assert_true(seat.term == 12 && seat.lease == 9);
    assert_string_equal(seat.holder, "a:1");
    reply.succeeded = false; // and then whose is it?
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_ERR_PEER_CORRUPT);
    Etcdserverpb__KeyValue kv = pair("/x/leader", "b:1", 8), *kvs = &kv;
    Etcdserverpb__RangeResponse range = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__ResponseOp op = ETCDSERVERPB__RESPONSE_OP__INIT, *ops = &op;
    reply.responses = &ops;
    reply.n_responses = 1;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_ERR_PEER_CORRUPT);
    op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
    op.response_range = &range;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_ERR_PEER_CORRUPT);
    range.kvs = &kvs;
    range.n_kvs = 1;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &seat, &err), SL_OK);
    assert_true(seat.term == 8 && seat.lease == 77);
}

static void test_leases_are_as_asked_for(void **state) {
    (void)state;
    struct sl_error err;
    int64_t lease = 0;
    Etcdserverpb__LeaseGrantResponse grant = ETCDSERVERPB__LEASE_GRANT_RESPONSE__INIT;
    assert_int_equal(sl_etcd_read_grant(&grant, 5, &lease, &err), SL_ERR_PEER_CORRUPT);
    grant.id = -3;
    grant.ttl = 4; // it would end ahead of our fence
    assert_int_equal(sl_etcd_read_grant(&grant, 5, &lease, &err), SL_ERR_PEER_CORRUPT);
    grant.ttl = 5;
    assert_int_equal(sl_etcd_read_grant(&grant, 5, &lease, &err), SL_OK);
    assert_int_equal(lease, -3);
    grant.error = (char *)"no";
    assert_int_equal(sl_etcd_read_grant(&grant, 5, &lease, &err), SL_ERR_PEER_LOST);
    Etcdserverpb__LeaseKeepAliveResponse renewal = ETCDSERVERPB__LEASE_KEEP_ALIVE_RESPONSE__INIT;
    renewal.id = 4;
    renewal.ttl = 5;
    assert_int_equal(sl_etcd_read_renewal(&renewal, 3, &err), SL_ERR_PEER_CORRUPT);
    assert_int_equal(sl_etcd_read_renewal(&renewal, 4, &err), SL_OK);
    renewal.ttl = 0;
    assert_int_equal(sl_etcd_read_renewal(&renewal, 4, &err), SL_ERR_NOT_FOUND);
}

// ---- servers -----------------------------------------------------------------------------------------------------------

// Two of one etcd: what they know is one struct, and each may be silent.
struct servers {
    pthread_mutex_t mutex;
    char value[64];
    int64_t lease, revision, created;
    int n_calls[2];
    bool silent[2];
    struct sl_rpc_server *servers[2];
};
static struct servers etcd;

struct one {
    int index;
};
static struct one ones[2] = {{0}, {1}};

// True: it does not answer, and the call is over.
static bool is_silent(const struct one *one, const struct sl_rpc_call *call) {
    pthread_mutex_lock(&etcd.mutex);
    etcd.n_calls[one->index]++;
    bool silent = etcd.silent[one->index];
    pthread_mutex_unlock(&etcd.mutex);
    while (silent && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(5);
    }
    return silent;
}

static enum sl_status handle_grant(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    (void)err;
    Etcdserverpb__LeaseGrantResponse reply = ETCDSERVERPB__LEASE_GRANT_RESPONSE__INIT;
    reply.id = 99;
    reply.ttl = ((const Etcdserverpb__LeaseGrantRequest *)request)->ttl;
    return is_silent(service, call) ? SL_ERR_CANCELLED : sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_revoke(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    (void)err;
    Etcdserverpb__LeaseRevokeResponse reply = ETCDSERVERPB__LEASE_REVOKE_RESPONSE__INIT;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    pthread_mutex_lock(&etcd.mutex);
    if (etcd.lease == ((const Etcdserverpb__LeaseRevokeRequest *)request)->id) {
        etcd.lease = etcd.created = 0;
    }
    pthread_mutex_unlock(&etcd.mutex);
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_keep_alive(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                        struct sl_error *err) {
    (void)no_request;
    (void)err;
    ProtobufCMessage *message;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    while (sl_rpc_call_receive(call, &etcdserverpb__lease_keep_alive_request__descriptor, &message) == SL_OK) {
        Etcdserverpb__LeaseKeepAliveResponse reply = ETCDSERVERPB__LEASE_KEEP_ALIVE_RESPONSE__INIT;
        reply.id = ((const Etcdserverpb__LeaseKeepAliveRequest *)message)->id;
        protobuf_c_message_free_unpacked(message, NULL);
        pthread_mutex_lock(&etcd.mutex);
        reply.ttl = reply.id == etcd.lease ? 5 : 0;
        pthread_mutex_unlock(&etcd.mutex);
        (void)sl_rpc_call_send(call, &reply.base);
    }
    return SL_OK;
}

static Etcdserverpb__KeyValue kept_pair(const char *key) {
    Etcdserverpb__KeyValue kv = pair(key, etcd.value, etcd.created);
    kv.lease = etcd.lease;
    return kv;
}

static enum sl_status handle_range(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    (void)request;
    (void)err;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    Etcdserverpb__RangeResponse reply = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    pthread_mutex_lock(&etcd.mutex);
    Etcdserverpb__KeyValue kv = kept_pair("/test/leader"), *kvs = &kv;
    reply.kvs = &kvs;
    reply.n_kvs = etcd.created != 0;
    enum sl_status status = sl_rpc_call_send(call, &reply.base);
    pthread_mutex_unlock(&etcd.mutex);
    return status;
}

static enum sl_status handle_txn(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    (void)err;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    const Etcdserverpb__TxnRequest *txn = (const Etcdserverpb__TxnRequest *)request;
    Etcdserverpb__TxnResponse reply = ETCDSERVERPB__TXN_RESPONSE__INIT;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    Etcdserverpb__RangeResponse range = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__ResponseOp op = ETCDSERVERPB__RESPONSE_OP__INIT, *ops = &op;
    pthread_mutex_lock(&etcd.mutex);
    const Etcdserverpb__PutRequest *put = txn->success[0]->request_put;
    reply.succeeded = etcd.created == 0;
    if (reply.succeeded) {
        etcd.created = ++etcd.revision;
        etcd.lease = put->lease;
        memcpy(etcd.value, put->value.data, put->value.len);
    }
    header.revision = etcd.revision;
    Etcdserverpb__KeyValue kv = kept_pair("/test/leader"), *kvs = &kv;
    range.kvs = &kvs;
    range.n_kvs = 1;
    op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
    op.response_range = &range;
    reply.header = &header;
    reply.responses = &ops;
    reply.n_responses = !reply.succeeded;
    enum sl_status status = sl_rpc_call_send(call, &reply.base);
    pthread_mutex_unlock(&etcd.mutex);
    return status;
}

static void start_servers(char list_out[128]) {
    static const struct sl_rpc_handler kv[] = {{&sl_method_etcdserverpb_kv_range, handle_range, SL_ROLE_ANY},
                                               {&sl_method_etcdserverpb_kv_txn, handle_txn, SL_ROLE_ANY}};
    static const struct sl_rpc_handler lease[] = {
        {&sl_method_etcdserverpb_lease_lease_grant, handle_grant, SL_ROLE_ANY},
        {&sl_method_etcdserverpb_lease_lease_revoke, handle_revoke, SL_ROLE_ANY},
        {&sl_method_etcdserverpb_lease_lease_keep_alive, handle_keep_alive, SL_ROLE_ANY}};
    memset(&etcd, 0, sizeof etcd);
    pthread_mutex_init(&etcd.mutex, NULL);
    etcd.revision = 40;
    list_out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        struct sl_rpc_implementation services[] = {
            SL_RPC_IMPLEMENTATION(&sl_service_etcdserverpb_kv, kv, &ones[i]),
            SL_RPC_IMPLEMENTATION(&sl_service_etcdserverpb_lease, lease, &ones[i])};
        struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = services, .n_services = 2};
        assert_int_equal(sl_rpc_server_start(&config, &etcd.servers[i], NULL), SL_OK);
        snprintf(list_out + strlen(list_out), 64, "%s%s", i ? "," : "", sl_rpc_server_address(etcd.servers[i]));
    }
}

static void stop_servers(void) {
    for (int i = 0; i < 2; i++) {
        sl_rpc_server_stop(&etcd.servers[i], 0);
    }
    pthread_mutex_destroy(&etcd.mutex);
}

static void test_etcd_that_is_silent_is_followed_by_the_next(void **state) {
    (void)state;
    char list[128];
    start_servers(list);
    struct sl_etcd *seat_of;
    struct sl_error err = {0};
    struct sl_tls_files none = {.ca = "", .certificate = "", .key = ""};
    assert_int_equal(sl_etcd_create(list, "/test", &none, &seat_of, &err), SL_OK);
    struct sl_seat seat;
    int64_t lease = 0;
    assert_int_equal(sl_etcd_ops.look(seat_of, &seat, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_etcd_ops.grant(seat_of, 5000, &lease, &err), SL_OK);
    assert_int_equal(sl_etcd_ops.renew(seat_of, lease, &err), SL_ERR_NOT_FOUND); // the fake has leases with keys alone
    assert_int_equal(sl_etcd_ops.take(seat_of, lease, "a:1", &seat, &err), SL_OK);
    assert_true(seat.term == 41 && seat.lease == lease);
    etcd.silent[0] = true;
    assert_int_equal(sl_etcd_ops.renew(seat_of, lease, &err), SL_OK);
    int n_before = etcd.n_calls[0];
    assert_int_equal(sl_etcd_ops.look(seat_of, &seat, &err), SL_OK); // and is not asked again
    assert_string_equal(seat.holder, "a:1");
    assert_int_equal(etcd.n_calls[0], n_before);
    assert_int_equal(sl_etcd_ops.take(seat_of, 100, "b:1", &seat, &err), SL_OK);
    assert_true(seat.term == 41 && seat.lease == lease); // another's
    etcd.silent[1] = true;
    assert_true(sl_etcd_ops.renew(seat_of, lease, &err) != SL_OK); // nobody answers: that is a failure, and soon
    etcd.silent[0] = etcd.silent[1] = false;
    assert_int_equal(sl_etcd_ops.revoke(seat_of, lease, &err), SL_OK);
    assert_int_equal(sl_etcd_ops.look(seat_of, &seat, &err), SL_ERR_NOT_FOUND);
    sl_etcd_destroy(&seat_of);
    stop_servers();
}

static int64_t wait_for_term(struct sl_election *election, bool leads) {
    int64_t term = 0, deadline_ns = sl_deadline_in_ms(20000);
    do {
        term = sl_election_term(election);
        sl_sleep_ms(5);
    } while ((term != 0) != leads && sl_now_ns() < deadline_ns);
    assert_int_equal(term != 0, leads);
    return term;
}

static void test_election_stands_leads_and_makes_way(void **state) {
    (void)state;
    char list[128], leader[SL_LEADER_BYTES];
    start_servers(list);
    struct sl_election_config config;
    sl_election_config_init(&config);
    config.etcd = list;
    config.prefix = "/test";
    config.tls = (struct sl_tls_files){.ca = "", .certificate = "", .key = ""};
    struct sl_election *a, *b;
    assert_int_equal(sl_election_create(&config, &a, NULL), SL_OK);
    assert_int_equal(sl_election_create(&config, &b, NULL), SL_OK);
    assert_int_equal(sl_election_term(a), 0); // it does not stand yet
    assert_int_equal(sl_election_stand(a, "a:1", NULL), SL_OK);
    int64_t first = wait_for_term(a, true);
    assert_int_equal(sl_election_stand(b, "b:1", NULL), SL_OK);
    sl_election_destroy(&a);
    assert_true(wait_for_term(b, true) > first); // without waiting for the lease's end: the fake's has none
    sl_election_leader(b, leader);
    assert_string_equal(leader, "b:1");
    sl_election_resign(b, sl_election_term(b), "a test says so");
    assert_int_equal(sl_election_term(b), 0);
    wait_for_term(b, true);
    etcd.silent[0] = etcd.silent[1] = true;
    wait_for_term(b, false); // fenced
    etcd.silent[0] = etcd.silent[1] = false;
    wait_for_term(b, true);
    sl_election_withdraw(b);
    assert_int_equal(sl_election_term(b), 0);
    sl_election_destroy(&b);
    stop_servers();
    assert_int_equal(sl_rpc_live_calls(), 0);
}

static void test_options_are_checked(void **state) {
    (void)state;
    struct sl_election_config config;
    struct sl_election *election;
    struct sl_error err = {0};
    sl_election_config_init(&config);
    config.tls = (struct sl_tls_files){.ca = "", .certificate = "", .key = ""};
    const char *const wrong[] = {"", "a", "a:1,", "a:1,b", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        config.etcd = wrong[i];
        assert_int_equal(sl_election_create(&config, &election, &err), SL_ERR_INVALID);
    }
    config.etcd = "a:1";
    config.tls.ca = "/nowhere/ca.pem";
    assert_int_equal(sl_election_create(&config, &election, &err), SL_ERR_INVALID);
    config.tls.certificate = config.tls.key = config.tls.ca;
    assert_int_equal(sl_election_create(&config, &election, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem"));
    config.tls = (struct sl_tls_files){.ca = "", .certificate = "", .key = ""};
    config.fence_ms = config.ttl_ms;
    assert_int_equal(sl_election_create(&config, &election, &err), SL_ERR_INVALID);
}

static int start_rpc(void **state) {
    (void)state;
    sl_log_configure("error", NULL);
    sl_rpc_init();
    return 0;
}

static int stop_rpc(void **state) {
    (void)state;
    sl_rpc_shutdown();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range_is_a_seat_or_nothing),
        cmocka_unit_test(test_txn_says_whose_the_seat_is),
        cmocka_unit_test(test_leases_are_as_asked_for),
        cmocka_unit_test(test_etcd_that_is_silent_is_followed_by_the_next),
        cmocka_unit_test(test_election_stands_leads_and_makes_way),
        cmocka_unit_test(test_options_are_checked),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
