// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_etcd.h.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/etcd/election.pb-c.h"
#include "proto/methods.h"
#include "tests/unit/coordinator/election/fake_etcd.h"

#define KEY FAKE_ETCD_PREFIX "/leader"

struct fake_etcd fake_etcd;

struct one {
    int index;
};
static struct one ones[2] = {{0}, {1}};

// True: it does not answer, and the call is over.
static bool is_silent(const struct one *one, const struct sl_rpc_call *call) {
    pthread_mutex_lock(&fake_etcd.mutex);
    fake_etcd.n_calls[one->index]++;
    bool silent = atomic_load(&fake_etcd.silent[one->index]);
    pthread_mutex_unlock(&fake_etcd.mutex);
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
    pthread_mutex_lock(&fake_etcd.mutex);
    if (fake_etcd.lease == ((const Etcdserverpb__LeaseRevokeRequest *)request)->id) {
        fake_etcd.lease = fake_etcd.created = 0;
    }
    pthread_mutex_unlock(&fake_etcd.mutex);
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
    while (sl_rpc_call_receive(call, &etcdserverpb__lease_keep_alive_request__descriptor, &message, NULL) == SL_OK) {
        Etcdserverpb__LeaseKeepAliveResponse reply = ETCDSERVERPB__LEASE_KEEP_ALIVE_RESPONSE__INIT;
        reply.id = ((const Etcdserverpb__LeaseKeepAliveRequest *)message)->id;
        protobuf_c_message_free_unpacked(message, NULL);
        pthread_mutex_lock(&fake_etcd.mutex);
        reply.ttl = reply.id == fake_etcd.lease ? 5 : 0;
        pthread_mutex_unlock(&fake_etcd.mutex);
        (void)sl_rpc_call_send(call, &reply.base);
    }
    return SL_OK;
}

// As it stands now. Under the mutex.
static Etcdserverpb__KeyValue kept_pair(void) {
    Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
    kv.key.data = (uint8_t *)KEY;
    kv.key.len = strlen(KEY);
    kv.value.data = (uint8_t *)fake_etcd.value;
    kv.value.len = strlen(fake_etcd.value);
    kv.create_revision = fake_etcd.created;
    kv.lease = fake_etcd.lease;
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
    pthread_mutex_lock(&fake_etcd.mutex);
    Etcdserverpb__KeyValue kv = kept_pair(), *kvs = &kv;
    reply.kvs = &kvs;
    reply.n_kvs = fake_etcd.created != 0;
    enum sl_status status = sl_rpc_call_send(call, &reply.base);
    pthread_mutex_unlock(&fake_etcd.mutex);
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
    pthread_mutex_lock(&fake_etcd.mutex);
    const Etcdserverpb__PutRequest *put = txn->success[0]->request_put;
    reply.succeeded = fake_etcd.created == 0;
    if (reply.succeeded) {
        fake_etcd.created = ++fake_etcd.revision;
        fake_etcd.lease = put->lease;
        memset(fake_etcd.value, 0, sizeof fake_etcd.value);
        memcpy(fake_etcd.value, put->value.data, put->value.len);
    }
    header.revision = fake_etcd.revision;
    Etcdserverpb__KeyValue kv = kept_pair(), *kvs = &kv;
    range.kvs = &kvs;
    range.n_kvs = 1;
    op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
    op.response_range = &range;
    reply.header = &header;
    reply.responses = &ops;
    reply.n_responses = !reply.succeeded;
    enum sl_status status = sl_rpc_call_send(call, &reply.base);
    pthread_mutex_unlock(&fake_etcd.mutex);
    return status;
}

void fake_etcd_start(char list_out[FAKE_ETCD_LIST_BYTES]) {
    static const struct sl_rpc_handler kv[] = {{&sl_method_etcdserverpb_kv_range, handle_range, SL_ROLE_ANY},
                                               {&sl_method_etcdserverpb_kv_txn, handle_txn, SL_ROLE_ANY}};
    static const struct sl_rpc_handler lease[] = {
        {&sl_method_etcdserverpb_lease_lease_grant, handle_grant, SL_ROLE_ANY},
        {&sl_method_etcdserverpb_lease_lease_revoke, handle_revoke, SL_ROLE_ANY},
        {&sl_method_etcdserverpb_lease_lease_keep_alive, handle_keep_alive, SL_ROLE_ANY}};
    memset(&fake_etcd, 0, sizeof fake_etcd);
    pthread_mutex_init(&fake_etcd.mutex, NULL);
    fake_etcd.revision = 40;
    list_out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        struct sl_rpc_implementation services[] = {
            SL_RPC_IMPLEMENTATION(&sl_service_etcdserverpb_kv, kv, &ones[i]),
            SL_RPC_IMPLEMENTATION(&sl_service_etcdserverpb_lease, lease, &ones[i])};
        struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = services, .n_services = 2};
        assert_int_equal(sl_rpc_server_start(&config, &fake_etcd.servers[i], NULL), SL_OK);
        snprintf(list_out + strlen(list_out), 64, "%s%s", i ? "," : "", sl_rpc_server_address(fake_etcd.servers[i]));
    }
}

void fake_etcd_stop(void) {
    for (int i = 0; i < 2; i++) {
        sl_rpc_server_stop(&fake_etcd.servers[i], 0);
    }
    pthread_mutex_destroy(&fake_etcd.mutex);
}
