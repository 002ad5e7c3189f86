// SPDX-License-Identifier: Apache-2.0
// Purpose: valid and invalid replies of etcd, and the leader key when some of its servers do not answer.
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
#include "net/rpc/rpc.h"
#include "tests/unit/coordinator/election/fake_etcd.h"
#include "tests/unit/rpc_group.h"

// ---- replies --------------------------------------------------------------------------------------------------------

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

static enum sl_status read_range(Etcdserverpb__KeyValue *kvs, size_t n, struct sl_leader_key *key) {
    Etcdserverpb__RangeResponse reply = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__KeyValue *pointers[] = {&kvs[0], &kvs[1]};
    struct sl_error err;
    reply.kvs = pointers;
    reply.n_kvs = n;
    return sl_etcd_read_range(&reply, "/x/leader", key, &err);
}

static void test_range_is_a_leader_key_or_nothing(void **state) {
    (void)state;
    struct sl_leader_key key;
    char large[SL_LEADER_BYTES + 1];
    memset(large, 'a', sizeof large);
    large[SL_LEADER_BYTES] = '\0';
    Etcdserverpb__KeyValue kvs[2] = {pair("/x/leader", "10.0.0.1:7600", 5), pair("/x/leader", "b:1", 6)};
    assert_int_equal(read_range(kvs, 1, &key), SL_OK);
    assert_int_equal(key.term, 5);
    assert_int_equal(key.lease, 77);
    assert_string_equal(key.holder, "10.0.0.1:7600");
    assert_int_equal(read_range(kvs, 0, &key), SL_ERR_NOT_FOUND);
    assert_int_equal(read_range(kvs, 2, &key), SL_ERR_PEER_CORRUPT);
    const Etcdserverpb__KeyValue wrong[] = {pair("/x/leaders", "b:1", 5),  pair("/x/leade", "b:1", 5),
                                            pair("/x/leader", "", 5),      pair("/x/leader", "b:1", 0),
                                            pair("/x/leader", "b:1", -5),  pair("/x/leader", "b 1", 5),
                                            pair("/x/leader", "b\xff", 5), pair("/x/leader", large, 5)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvs[0] = wrong[i];
        assert_int_equal(read_range(kvs, 1, &key), SL_ERR_PEER_CORRUPT);
    }
}

static void test_txn_names_the_holder_of_the_leader_key(void **state) {
    (void)state;
    struct sl_leader_key key;
    struct sl_error err;
    Etcdserverpb__TxnResponse reply = ETCDSERVERPB__TXN_RESPONSE__INIT;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    reply.succeeded = true;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_ERR_PEER_CORRUPT);
    reply.header = &header;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_ERR_PEER_CORRUPT);
    header.revision = 12;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_OK);
    assert_true(key.term == 12 && key.lease == 9);
    assert_string_equal(key.holder, "a:1");
    reply.succeeded = false; // and then the holder is missing
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_ERR_PEER_CORRUPT);
    Etcdserverpb__KeyValue kv = pair("/x/leader", "b:1", 8), *kvs = &kv;
    Etcdserverpb__RangeResponse range = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__ResponseOp op = ETCDSERVERPB__RESPONSE_OP__INIT, *ops = &op;
    reply.responses = &ops;
    reply.n_responses = 1;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_ERR_PEER_CORRUPT);
    op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
    op.response_range = &range;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_ERR_PEER_CORRUPT);
    range.kvs = &kvs;
    range.n_kvs = 1;
    assert_int_equal(sl_etcd_read_txn(&reply, "/x/leader", 9, "a:1", &key, &err), SL_OK);
    assert_true(key.term == 8 && key.lease == 77);
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

// ---- servers --------------------------------------------------------------------------------------------------------

static void test_etcd_that_is_silent_is_followed_by_the_next(void **state) {
    (void)state;
    char list[128];
    fake_etcd_start(list);
    struct sl_etcd *etcd;
    struct sl_error err = {0};
    struct sl_tls_files none = {.ca = "", .certificate = "", .key = ""};
    assert_int_equal(sl_etcd_create(list, "/test", &none, false, &etcd, &err), SL_OK);
    struct sl_leader_key key;
    int64_t lease = 0;
    assert_int_equal(sl_etcd_ops.look(etcd, &key, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_etcd_ops.grant(etcd, 5000, &lease, &err), SL_OK);
    assert_int_equal(sl_etcd_ops.renew(etcd, lease, &err), SL_ERR_NOT_FOUND); // the fake has leases with keys alone
    assert_int_equal(sl_etcd_ops.take(etcd, lease, "a:1", &key, &err), SL_OK);
    assert_true(key.term == 41 && key.lease == lease);
    fake_etcd.silent[0] = true;
    assert_int_equal(sl_etcd_ops.renew(etcd, lease, &err), SL_OK);
    int n_before = fake_etcd.n_calls[0];
    assert_int_equal(sl_etcd_ops.look(etcd, &key, &err), SL_OK); // and is not asked again
    assert_string_equal(key.holder, "a:1");
    assert_int_equal(fake_etcd.n_calls[0], n_before);
    assert_int_equal(sl_etcd_ops.take(etcd, 100, "b:1", &key, &err), SL_OK);
    assert_true(key.term == 41 && key.lease == lease); // another's
    fake_etcd.silent[1] = true;
    assert_true(sl_etcd_ops.renew(etcd, lease, &err) != SL_OK); // no server answers: the call fails, and soon
    fake_etcd.silent[0] = fake_etcd.silent[1] = false;
    assert_int_equal(sl_etcd_ops.revoke(etcd, lease, &err), SL_OK);
    assert_int_equal(sl_etcd_ops.look(etcd, &key, &err), SL_ERR_NOT_FOUND);
    sl_etcd_destroy(&etcd);
    fake_etcd_stop();
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
    fake_etcd_start(list);
    const struct sl_tls_files tls = {.ca = "", .certificate = "", .key = ""};
    struct sl_election *a, *b;
    assert_int_equal(sl_election_create(list, "/test", &tls, &a, NULL), SL_OK);
    assert_int_equal(sl_election_create(list, "/test", &tls, &b, NULL), SL_OK);
    assert_int_equal(sl_election_term(a), 0); // it does not stand yet
    assert_int_equal(sl_election_stand(a, "a:1", NULL), SL_OK);
    int64_t first = wait_for_term(a, true);
    assert_int_equal(sl_election_stand(b, "b:1", NULL), SL_OK);
    sl_election_destroy(&a);
    assert_true(wait_for_term(b, true) > first); // without waiting for the lease's end: the fake's has none
    sl_election_leader(b, leader);
    assert_string_equal(leader, "b:1");
    const int64_t term = sl_election_term(b);
    assert_int_equal(sl_election_confirm(b, sl_deadline_in_ms(5000)), term); // etcd says so
    pthread_mutex_lock(&fake_etcd.mutex);
    fake_etcd.created = ++fake_etcd.revision; // the key is another's, under its lease
    fake_etcd.lease = 100;
    pthread_mutex_unlock(&fake_etcd.mutex);
    assert_int_equal(sl_election_term(b), term); // it does not know yet
    assert_int_equal(sl_election_confirm(b, sl_deadline_in_ms(5000)), 0);
    pthread_mutex_lock(&fake_etcd.mutex);
    fake_etcd.created = fake_etcd.lease = 0;
    pthread_mutex_unlock(&fake_etcd.mutex);
    assert_true(wait_for_term(b, true) > term);
    fake_etcd.silent[0] = fake_etcd.silent[1] = true;
    wait_for_term(b, false); // fenced
    fake_etcd.silent[0] = fake_etcd.silent[1] = false;
    wait_for_term(b, true);
    sl_election_withdraw(b);
    assert_int_equal(sl_election_term(b), 0);
    sl_election_destroy(&b);
    fake_etcd_stop();
    assert_int_equal(sl_rpc_live_calls(), 0);
}

static void test_options_are_checked(void **state) {
    (void)state;
    struct sl_election *election;
    struct sl_error err = {0};
    struct sl_tls_files tls = {.ca = "", .certificate = "", .key = ""};
    const char *const wrong[] = {"", "a", "a:1,", "a:1,b", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(sl_election_create(wrong[i], "/sluice", &tls, &election, &err), SL_ERR_INVALID);
    }
    tls.ca = "/nowhere/ca.pem";
    assert_int_equal(sl_election_create("a:1", "/sluice", &tls, &election, &err), SL_ERR_INVALID);
    tls.certificate = tls.key = tls.ca;
    assert_int_equal(sl_election_create("a:1", "/sluice", &tls, &election, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range_is_a_leader_key_or_nothing),
        cmocka_unit_test(test_txn_names_the_holder_of_the_leader_key),
        cmocka_unit_test(test_leases_are_as_asked_for),
        cmocka_unit_test(test_etcd_that_is_silent_is_followed_by_the_next),
        cmocka_unit_test(test_election_stands_leads_and_makes_way),
        cmocka_unit_test(test_options_are_checked),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
