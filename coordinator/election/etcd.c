// SPDX-License-Identifier: Apache-2.0
#include "coordinator/election/etcd.h"

#include <inttypes.h>
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
    LARGE_CALL_MS = 3000,
    MAX_REPLY_BYTES = 64 << 10,
    KEY_BYTES = 256,
};
#define MAX_LARGE_REPLY_BYTES ((SL_ETCD_PAGE_KEYS + 1) * SL_ETCD_MAX_VALUE_BYTES)

struct sl_etcd {
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_rpc_addresses servers;
    struct sl_rpc_channel *channels[SL_RPC_MAX_ADDRESSES];
    int current; // the server that answered last
    int64_t call_ms;
    char key[KEY_BYTES]; // the leader key
    size_t n_prefix;     // of its bytes, with the slash
};

enum sl_status sl_etcd_create(const char *servers, const char *prefix, const struct sl_tls_files *tls, bool is_large,
                              struct sl_etcd **etcd_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_etcd, etcd, err, "no memory for an election");
    etcd->call_ms = is_large ? LARGE_CALL_MS : CALL_MS;
    etcd->n_prefix = strlen(prefix) + 1;
    enum sl_status status = sl_rpc_addresses_parse(servers, &etcd->servers, err);
    SL_THEN_IF(status, (size_t)snprintf(etcd->key, sizeof etcd->key, "%s/leader", prefix) >= sizeof etcd->key,
               sl_fail(err, SL_ERR_INVALID, "the prefix is longer than %d bytes", KEY_BYTES));
    SL_THEN(status, sl_rpc_credentials_create_foreign(tls, &etcd->credentials, err));
    for (int i = 0; i < etcd->servers.n && status == SL_OK; i++) {
        status =
            sl_rpc_channel_create_bounded(etcd->servers.text[i], etcd->credentials, SL_ROLE_ANY,
                                          is_large ? MAX_LARGE_REPLY_BYTES : MAX_REPLY_BYTES, &etcd->channels[i], err);
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
    SL_TAKE_OR_RETURN(etcd, etcd_in);
    for (int i = 0; i < SL_RPC_MAX_ADDRESSES; i++) {
        sl_rpc_channel_destroy(&etcd->channels[i]);
    }
    sl_rpc_credentials_destroy(&etcd->credentials);
    free(etcd);
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
        int64_t deadline_ns = sl_deadline_in_ms(etcd->call_ms);
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
    if (status == SL_ERR_DEADLINE) { // our own, for one server; the caller's is another
        return sl_fail(err, SL_ERR_PEER_LOST, "etcd does not answer");
    }
    sl_error_prefix(err, "etcd");
    return status;
}

// The same for keys, about which etcd does not report a missing one in this way.
static enum sl_status ask_keys(struct sl_etcd *etcd, const struct sl_rpc_method *method,
                               const ProtobufCMessage *request, ProtobufCMessage **reply_out, struct sl_error *err) {
    enum sl_status status = ask(etcd, method, request, reply_out, err);
    return status == SL_ERR_NOT_FOUND ? sl_fail(err, SL_ERR_PEER_CORRUPT, "etcd: a range is not found") : status;
}

static ProtobufCBinaryData bytes_of(const char *text) {
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

// ---- the table -----------------------------------------------------------------------------------------------------

static enum sl_status grant(void *arg, int64_t ttl_ms, int64_t *lease_out, struct sl_error *err) {
    Etcdserverpb__LeaseGrantRequest request = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
    request.ttl = (ttl_ms + 999) / 1000;
    ProtobufCMessage *reply;
    SL_TRY(ask(arg, &sl_method_etcdserverpb_lease_lease_grant, &request.base, &reply, err));
    enum sl_status status =
        sl_etcd_read_grant((const Etcdserverpb__LeaseGrantResponse *)reply, request.ttl, lease_out, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

static enum sl_status renew(void *arg, int64_t lease, struct sl_error *err) {
    Etcdserverpb__LeaseKeepAliveRequest request = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    request.id = lease;
    ProtobufCMessage *reply;
    SL_TRY(ask(arg, &sl_method_etcdserverpb_lease_lease_keep_alive, &request.base, &reply, err));
    enum sl_status status = sl_etcd_read_renewal((const Etcdserverpb__LeaseKeepAliveResponse *)reply, lease, err);
    protobuf_c_message_free_unpacked(reply, NULL);
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
    SL_TRY(ask_keys(etcd, &sl_method_etcdserverpb_kv_range, &request.base, &reply, err));
    enum sl_status status = sl_etcd_read_range((const Etcdserverpb__RangeResponse *)reply, etcd->key, key_out, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

// Asks for a transaction that succeeds if the leader key was created at this revision, its term; 0: if there is none.
static enum sl_status transact(struct sl_etcd *etcd, int64_t term, Etcdserverpb__TxnRequest *request,
                               ProtobufCMessage **reply_out, struct sl_error *err) {
    Etcdserverpb__Compare created = ETCDSERVERPB__COMPARE__INIT, *compare = &created;
    created.result = ETCDSERVERPB__COMPARE__COMPARE_RESULT__EQUAL;
    created.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__CREATE;
    created.key = bytes_of(etcd->key);
    created.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_CREATE_REVISION;
    created.create_revision = term;
    request->n_compare = 1;
    request->compare = &compare;
    return ask(etcd, &sl_method_etcdserverpb_kv_txn, &request->base, reply_out, err);
}

// Creates the key if it does not exist; else reads it.
static enum sl_status take(void *arg, int64_t lease, const char *holder, struct sl_leader_key *key_out,
                           struct sl_error *err) {
    struct sl_etcd *etcd = arg;
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
    request.n_success = request.n_failure = 1;
    request.success = &success;
    request.failure = &failure;
    ProtobufCMessage *reply;
    SL_TRY(transact(etcd, 0, &request, &reply, err));
    enum sl_status status =
        sl_etcd_read_txn((const Etcdserverpb__TxnResponse *)reply, etcd->key, lease, holder, key_out, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

const struct sl_leader_key_ops sl_etcd_ops = {grant, renew, revoke, look, take};

// ---- other keys ----------------------------------------------------------------------------------------------------

// Writes the whole key of a name, or of the first name after those that begin so.
static enum sl_status make_key(const struct sl_etcd *etcd, const char *name, bool is_end, char key_out[KEY_BYTES],
                               struct sl_error *err) {
    int n = snprintf(key_out, KEY_BYTES, "%.*s%s", (int)etcd->n_prefix, etcd->key, name);
    SL_FAIL_IF(n >= KEY_BYTES, err, SL_ERR_INVALID, "etcd: the key of %.100s is longer than %d bytes", name, KEY_BYTES);
    key_out[n - 1] = (char)(key_out[n - 1] + is_end);
    return SL_OK;
}

// Makes changes, if the leader key has this term; *revision_out is etcd's after them.
static enum sl_status change(struct sl_etcd *etcd, int64_t term, Etcdserverpb__RequestOp **changes, size_t n_changes,
                             int64_t *revision_out, struct sl_error *err) {
    Etcdserverpb__TxnRequest request = ETCDSERVERPB__TXN_REQUEST__INIT;
    request.success = changes;
    request.n_success = n_changes;
    if (term <= 0) { // 0 would stand for a leader key that does not exist
        return sl_fail(err, SL_ERR_PEER_LOST, "this coordinator does not lead any more");
    }
    ProtobufCMessage *message;
    enum sl_status status = transact(etcd, term, &request, &message, err);
    SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, SL_ERR_PEER_CORRUPT, "etcd: a transaction is not found");
    SL_TRY(status);
    const Etcdserverpb__TxnResponse *reply = (const Etcdserverpb__TxnResponse *)message;
    *revision_out = reply->header != NULL ? reply->header->revision : 0;
    bool succeeded = reply->succeeded;
    protobuf_c_message_free_unpacked(message, NULL);
    return succeeded ? SL_OK : sl_fail(err, SL_ERR_PEER_LOST, "this coordinator does not lead any more");
}

enum sl_status sl_etcd_put(struct sl_etcd *etcd, int64_t term, const char *name, const void *bytes, size_t n_bytes,
                           struct sl_error *err) {
    char key[KEY_BYTES];
    int64_t revision;
    SL_TRY(make_key(etcd, name, false, key, err));
    Etcdserverpb__PutRequest put = ETCDSERVERPB__PUT_REQUEST__INIT;
    put.key = bytes_of(key);
    put.value = (ProtobufCBinaryData){n_bytes, (uint8_t *)bytes};
    Etcdserverpb__RequestOp op = ETCDSERVERPB__REQUEST_OP__INIT, *ops = &op;
    op.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
    op.request_put = &put;
    return change(etcd, term, &ops, 1, &revision, err);
}

// Lets etcd forget removed values: it keeps the history of every key until then, and takes no change when it is full.
static void compact(struct sl_etcd *etcd, int64_t revision) {
    Etcdserverpb__CompactionRequest request = ETCDSERVERPB__COMPACTION_REQUEST__INIT;
    struct sl_error err = {0};
    request.revision = revision;
    if (ask(etcd, &sl_method_etcdserverpb_kv_compact, &request.base, NULL, &err) != SL_OK) {
        sl_log_debug("election", "etcd keeps its history up to %" PRId64 ": %s", revision, err.text);
    }
}

enum sl_status sl_etcd_remove(struct sl_etcd *etcd, int64_t term, const char *const *beginnings, size_t n_beginnings,
                              struct sl_error *err) {
    enum { MAX = 2 };
    char keys[MAX][KEY_BYTES], ends[MAX][KEY_BYTES];
    Etcdserverpb__DeleteRangeRequest deletions[MAX];
    Etcdserverpb__RequestOp ops[MAX], *pointers[MAX];
    int64_t revision = 0;
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < n_beginnings && status == SL_OK; i++) {
        status = make_key(etcd, beginnings[i], false, keys[i], err);
        SL_THEN(status, make_key(etcd, beginnings[i], true, ends[i], err));
        etcdserverpb__delete_range_request__init(&deletions[i]);
        deletions[i].key = bytes_of(keys[i]);
        deletions[i].range_end = bytes_of(ends[i]);
        etcdserverpb__request_op__init(&ops[i]);
        ops[i].request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
        ops[i].request_delete_range = &deletions[i];
        pointers[i] = &ops[i];
    }
    SL_THEN(status, change(etcd, term, pointers, n_beginnings, &revision, err));
    if (status == SL_OK) {
        compact(etcd, revision);
    }
    return status;
}

enum sl_status sl_etcd_read(struct sl_etcd *etcd, const char *beginning, sl_etcd_key_fn fn, void *arg,
                            struct sl_error *err) {
    char first[KEY_BYTES], end[KEY_BYTES], next[KEY_BYTES];
    enum sl_status status = make_key(etcd, beginning, false, first, err);
    SL_THEN(status, make_key(etcd, beginning, true, end, err));
    strcpy(next, status == SL_OK ? first : "");
    bool more = status == SL_OK;
    while (more && status == SL_OK) {
        Etcdserverpb__RangeRequest request = ETCDSERVERPB__RANGE_REQUEST__INIT;
        request.key = bytes_of(next);
        request.key.len += strcmp(next, first) != 0; // with the terminating zero: the key after the last one
        request.range_end = bytes_of(end);
        request.limit = SL_ETCD_PAGE_KEYS;
        ProtobufCMessage *message;
        SL_TRY(ask_keys(etcd, &sl_method_etcdserverpb_kv_range, &request.base, &message, err));
        const Etcdserverpb__RangeResponse *reply = (const Etcdserverpb__RangeResponse *)message;
        for (size_t i = 0; i < reply->n_kvs && status == SL_OK; i++) {
            status = sl_etcd_read_next(reply->kvs[i], first, next, sizeof next, err);
            SL_THEN(status, fn(arg, next + etcd->n_prefix, reply->kvs[i]->value.data, reply->kvs[i]->value.len, err));
        }
        more = reply->more && reply->n_kvs > 0;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}
