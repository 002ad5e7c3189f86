// SPDX-License-Identifier: Apache-2.0
// Purpose: see etcd.h.
#include "coordinator/election/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/election/etcd_reply.h"
#include "proto/methods.h"
#include "net/rpc/rpc.h"

enum {
    CALL_MS = 600, // of one server: two that are silent leave time for a third ahead of the fence
    MAX_REPLY_BYTES = 64 << 10,
    KEY_BYTES = 256,
};

struct sl_etcd {
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_rpc_addresses servers;
    struct sl_rpc_channel *channels[SL_RPC_MAX_ADDRESSES];
    int current; // the server that answered last
    char key[KEY_BYTES];
};

enum sl_status sl_etcd_create(const char *servers, const char *prefix, const struct sl_tls_files *tls,
                              struct sl_etcd **etcd_out, struct sl_error *err) {
    struct sl_etcd *etcd = calloc(1, sizeof *etcd);
    if (!etcd) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an election");
    }
    enum sl_status status = sl_rpc_addresses_parse(servers, &etcd->servers, err);
    if (status == SL_OK && (size_t)snprintf(etcd->key, sizeof etcd->key, "%s/leader", prefix) >= sizeof etcd->key) {
        status = sl_fail(err, SL_ERR_INVALID, "the prefix is longer than %d bytes", KEY_BYTES);
    }
    if (status == SL_OK) {
        status = sl_rpc_credentials_create_foreign(tls, &etcd->credentials, err);
    }
    for (int i = 0; i < etcd->servers.n && status == SL_OK; i++) {
        status = sl_rpc_channel_create_bounded(etcd->servers.text[i], etcd->credentials, SL_ROLE_ANY, MAX_REPLY_BYTES,
                                               &etcd->channels[i], err);
    }
    if (status != SL_OK) {
        sl_error_prefix(err, "etcd");
        sl_etcd_destroy(&etcd);
        return status;
    }
    *etcd_out = etcd;
    return SL_OK;
}

void sl_etcd_destroy(struct sl_etcd **etcd_in) {
    struct sl_etcd *etcd = *etcd_in;
    if (!etcd) {
        return;
    }
    for (int i = 0; i < SL_RPC_MAX_ADDRESSES; i++) {
        sl_rpc_channel_destroy(&etcd->channels[i]);
    }
    sl_rpc_credentials_destroy(&etcd->credentials);
    free(etcd);
    *etcd_in = NULL;
}

// Returns the only message of a call that may send several.
static const ProtobufCMessage *once(void *arg) {
    const ProtobufCMessage **next = arg, *message = *next;
    *next = NULL;
    return message;
}

// Asks the servers in turn and returns the first reply. SL_ERR_NOT_FOUND is a reply: the lease has ended.
static enum sl_status ask(struct sl_etcd *etcd, const struct sl_rpc_method *method, const ProtobufCMessage *request,
                          ProtobufCMessage **reply_out, struct sl_error *err) {
    enum sl_status status = SL_ERR_PEER_LOST;
    for (int i = 0; i < etcd->servers.n; i++) {
        struct sl_rpc_channel *channel = etcd->channels[etcd->current];
        int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
        const ProtobufCMessage *next = request;
        status = method->kind == SL_RPC_BIDI
                     ? sl_rpc_upload(channel, method, once, &next, deadline_ns, reply_out, err)
                     : sl_rpc_unary(channel, method, request, deadline_ns, NULL, reply_out, err);
        if (status == SL_OK || status == SL_ERR_NOT_FOUND) {
            return status;
        }
        sl_log_debug("election", "etcd %s: %s", etcd->servers.text[etcd->current], err->text);
        etcd->current = (etcd->current + 1) % etcd->servers.n;
    }
    sl_error_prefix(err, "etcd");
    return status;
}

static ProtobufCBinaryData bytes_of(const char *text) {
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

// ---- the table -----------------------------------------------------------------------------------------------------

static enum sl_status grant(void *arg, int64_t ttl_ms, int64_t *lease_out, struct sl_error *err) {
    Etcdserverpb__LeaseGrantRequest request = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
    request.ttl = (ttl_ms + 999) / 1000;
    ProtobufCMessage *reply;
    enum sl_status status = ask(arg, &sl_method_etcdserverpb_lease_lease_grant, &request.base, &reply, err);
    if (status == SL_OK) {
        status = sl_etcd_read_grant((const Etcdserverpb__LeaseGrantResponse *)reply, request.ttl, lease_out, err);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

static enum sl_status renew(void *arg, int64_t lease, struct sl_error *err) {
    Etcdserverpb__LeaseKeepAliveRequest request = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    request.id = lease;
    ProtobufCMessage *reply;
    enum sl_status status = ask(arg, &sl_method_etcdserverpb_lease_lease_keep_alive, &request.base, &reply, err);
    if (status == SL_OK) {
        status = sl_etcd_read_renewal((const Etcdserverpb__LeaseKeepAliveResponse *)reply, lease, err);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

static enum sl_status revoke(void *arg, int64_t lease, struct sl_error *err) {
    Etcdserverpb__LeaseRevokeRequest request = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
    request.id = lease;
    enum sl_status status = ask(arg, &sl_method_etcdserverpb_lease_lease_revoke, &request.base, NULL, err);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static enum sl_status look(void *arg, struct sl_leader_key *key_out, struct sl_error *err) {
    struct sl_etcd *etcd = arg;
    Etcdserverpb__RangeRequest request = ETCDSERVERPB__RANGE_REQUEST__INIT;
    request.key = bytes_of(etcd->key);
    ProtobufCMessage *reply;
    enum sl_status status = ask(etcd, &sl_method_etcdserverpb_kv_range, &request.base, &reply, err);
    if (status == SL_ERR_NOT_FOUND) { // etcd does not report a missing key in this way
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "etcd: a range is not found");
    }
    if (status == SL_OK) {
        status = sl_etcd_read_range((const Etcdserverpb__RangeResponse *)reply, etcd->key, key_out, err);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

// Creates the key if it does not exist; else reads it.
static enum sl_status take(void *arg, int64_t lease, const char *holder, struct sl_leader_key *key_out,
                           struct sl_error *err) {
    struct sl_etcd *etcd = arg;
    Etcdserverpb__Compare is_free = ETCDSERVERPB__COMPARE__INIT, *compare = &is_free;
    is_free.result = ETCDSERVERPB__COMPARE__COMPARE_RESULT__EQUAL;
    is_free.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__CREATE;
    is_free.key = bytes_of(etcd->key);
    is_free.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_CREATE_REVISION;
    is_free.create_revision = 0;
    Etcdserverpb__PutRequest put = ETCDSERVERPB__PUT_REQUEST__INIT;
    put.key = bytes_of(etcd->key);
    put.value = bytes_of(holder);
    put.lease = lease;
    Etcdserverpb__RangeRequest range = ETCDSERVERPB__RANGE_REQUEST__INIT;
    range.key = bytes_of(etcd->key);
    Etcdserverpb__RequestOp sit = ETCDSERVERPB__REQUEST_OP__INIT, *success = &sit;
    sit.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
    sit.request_put = &put;
    Etcdserverpb__RequestOp see = ETCDSERVERPB__REQUEST_OP__INIT, *failure = &see;
    see.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    see.request_range = &range;
    Etcdserverpb__TxnRequest request = ETCDSERVERPB__TXN_REQUEST__INIT;
    request.n_compare = request.n_success = request.n_failure = 1;
    request.compare = &compare;
    request.success = &success;
    request.failure = &failure;
    ProtobufCMessage *reply;
    enum sl_status status = ask(etcd, &sl_method_etcdserverpb_kv_txn, &request.base, &reply, err);
    if (status == SL_OK) {
        status = sl_etcd_read_txn((const Etcdserverpb__TxnResponse *)reply, etcd->key, lease, holder, key_out, err);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

const struct sl_leader_key_ops sl_etcd_ops = {grant, renew, revoke, look, take};
