// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_etcd.h.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
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

// ---- other keys (under the mutex) -------------------------------------------------------------------------------------

static int compare_keys(const ProtobufCBinaryData *key, const char *with) {
    size_t n = strlen(with), n_both = key->len < n ? key->len : n;
    int order = memcmp(key->data, with, n_both);
    return order != 0 ? order : key->len < n ? -1 : key->len > n;
}

static void drop_pair(int i) {
    free(fake_etcd.pairs[i].value);
    memmove(&fake_etcd.pairs[i], &fake_etcd.pairs[i + 1], (size_t)(--fake_etcd.n_pairs - i) * sizeof *fake_etcd.pairs);
}

static void apply(const Etcdserverpb__RequestOp *op) {
    if (op->request_case == ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE) {
        const Etcdserverpb__DeleteRangeRequest *range = op->request_delete_range;
        for (int i = fake_etcd.n_pairs - 1; i >= 0; i--) {
            if (compare_keys(&range->key, fake_etcd.pairs[i].key) <= 0 &&
                compare_keys(&range->range_end, fake_etcd.pairs[i].key) > 0) {
                drop_pair(i);
            }
        }
        return;
    }
    const Etcdserverpb__PutRequest *put = op->request_put;
    int at = 0;
    while (at < fake_etcd.n_pairs && compare_keys(&put->key, fake_etcd.pairs[at].key) > 0) {
        at++;
    }
    if (at < fake_etcd.n_pairs && compare_keys(&put->key, fake_etcd.pairs[at].key) == 0) {
        drop_pair(at);
    }
    assert_true(fake_etcd.n_pairs < FAKE_ETCD_PAIRS && put->key.len < sizeof fake_etcd.pairs->key);
    struct fake_etcd_pair *pair = &fake_etcd.pairs[at];
    memmove(pair + 1, pair, (size_t)(fake_etcd.n_pairs++ - at) * sizeof *pair);
    *pair = (struct fake_etcd_pair){.value = malloc(put->value.len + 1), .n_value = put->value.len};
    memcpy(pair->key, put->key.data, put->key.len);
    memcpy(pair->value, put->value.data, put->value.len);
}

static enum sl_status send_pairs(struct sl_rpc_call *call, const Etcdserverpb__RangeRequest *request) {
    Etcdserverpb__KeyValue pairs[FAKE_ETCD_PAIRS], *pointers[FAKE_ETCD_PAIRS];
    Etcdserverpb__RangeResponse reply = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    reply.kvs = pointers;
    for (int i = 0; i < fake_etcd.n_pairs; i++) {
        const struct fake_etcd_pair *pair = &fake_etcd.pairs[i];
        if (compare_keys(&request->key, pair->key) > 0 || compare_keys(&request->range_end, pair->key) <= 0) {
            continue;
        }
        if (reply.n_kvs == (size_t)request->limit) {
            reply.more = true;
            break;
        }
        Etcdserverpb__KeyValue *kv = pointers[reply.n_kvs] = &pairs[reply.n_kvs];
        reply.n_kvs++;
        etcdserverpb__key_value__init(kv);
        kv->key = (ProtobufCBinaryData){strlen(pair->key), (uint8_t *)pair->key};
        kv->value = (ProtobufCBinaryData){pair->n_value, pair->value};
    }
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status handle_compact(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err) {
    (void)err;
    Etcdserverpb__CompactionResponse reply = ETCDSERVERPB__COMPACTION_RESPONSE__INIT;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    pthread_mutex_lock(&fake_etcd.mutex);
    fake_etcd.n_compactions += ((const Etcdserverpb__CompactionRequest *)request)->revision == fake_etcd.revision;
    pthread_mutex_unlock(&fake_etcd.mutex);
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status change(struct sl_rpc_call *call, const Etcdserverpb__TxnRequest *txn) {
    Etcdserverpb__TxnResponse reply = ETCDSERVERPB__TXN_RESPONSE__INIT;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    assert_int_equal(compare_keys(&txn->compare[0]->key, KEY), 0);
    reply.succeeded = txn->compare[0]->create_revision == fake_etcd.created;
    for (size_t i = 0; i < txn->n_success && reply.succeeded; i++) {
        apply(txn->success[i]);
    }
    header.revision = fake_etcd.revision += reply.succeeded;
    reply.header = &header;
    return sl_rpc_call_send(call, &reply.base);
}

// ---- the leader key ---------------------------------------------------------------------------------------------------

static enum sl_status handle_range(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    (void)err;
    if (is_silent(service, call)) {
        return SL_ERR_CANCELLED;
    }
    Etcdserverpb__RangeResponse reply = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    pthread_mutex_lock(&fake_etcd.mutex);
    Etcdserverpb__KeyValue kv = kept_pair(), *kvs = &kv;
    reply.kvs = &kvs;
    reply.n_kvs = fake_etcd.created != 0;
    const Etcdserverpb__RangeRequest *range = (const Etcdserverpb__RangeRequest *)request;
    enum sl_status status = range->range_end.len > 0 ? send_pairs(call, range) : sl_rpc_call_send(call, &reply.base);
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
    if (txn->n_failure == 0) {
        enum sl_status changed = change(call, txn);
        pthread_mutex_unlock(&fake_etcd.mutex);
        return changed;
    }
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
                                               {&sl_method_etcdserverpb_kv_txn, handle_txn, SL_ROLE_ANY},
                                               {&sl_method_etcdserverpb_kv_compact, handle_compact, SL_ROLE_ANY}};
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
    while (fake_etcd.n_pairs > 0) {
        drop_pair(0);
    }
    pthread_mutex_destroy(&fake_etcd.mutex);
}
