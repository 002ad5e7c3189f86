// SPDX-License-Identifier: Apache-2.0
#include "coordinator/election/etcd_reply.h"

#include <inttypes.h>
#include <string.h>

static enum sl_status read_key(const Etcdserverpb__KeyValue *pair, const char *key, struct sl_leader_key *key_out,
                               struct sl_error *err) {
    SL_FAIL_IF(pair->key.len != strlen(key) || memcmp(pair->key.data, key, pair->key.len) != 0, err,
               SL_ERR_PEER_CORRUPT, "etcd answers with another key than %.100s", key);
    SL_FAIL_IF(pair->create_revision < 1 || pair->value.len < 1 || pair->value.len >= sizeof key_out->holder, err,
               SL_ERR_PEER_CORRUPT, "%.100s: of revision %" PRId64 ", with %zu bytes, is not a coordinator's", key,
               pair->create_revision, pair->value.len);
    for (size_t i = 0; i < pair->value.len; i++) {
        SL_FAIL_IF(pair->value.data[i] <= ' ' || pair->value.data[i] > '~', err, SL_ERR_PEER_CORRUPT,
                   "%.100s: its value is not an address", key);
    }
    *key_out = (struct sl_leader_key){.term = pair->create_revision, .lease = pair->lease};
    memcpy(key_out->holder, pair->value.data, pair->value.len);
    return SL_OK;
}

enum sl_status sl_etcd_read_range(const Etcdserverpb__RangeResponse *reply, const char *key,
                                  struct sl_leader_key *key_out, struct sl_error *err) {
    if (reply->n_kvs == 0) {
        return SL_ERR_NOT_FOUND;
    }
    SL_FAIL_IF(reply->n_kvs > 1, err, SL_ERR_PEER_CORRUPT, "etcd answers with %zu keys, asked for one", reply->n_kvs);
    return read_key(reply->kvs[0], key, key_out, err);
}

enum sl_status sl_etcd_read_txn(const Etcdserverpb__TxnResponse *reply, const char *key, int64_t lease,
                                const char *holder, struct sl_leader_key *key_out, struct sl_error *err) {
    if (reply->succeeded) {
        SL_FAIL_IF(reply->header == NULL || reply->header->revision < 1, err, SL_ERR_PEER_CORRUPT,
                   "etcd has created %.100s without a revision", key);
        *key_out = (struct sl_leader_key){.term = reply->header->revision, .lease = lease};
        memcpy(key_out->holder, holder, strnlen(holder, sizeof key_out->holder - 1));
        return SL_OK;
    }
    SL_FAIL_IF(reply->n_responses != 1 ||
                   reply->responses[0]->response_case != ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE ||
                   reply->responses[0]->response_range->n_kvs != 1,
               err, SL_ERR_PEER_CORRUPT, "etcd has not created %.100s, nor does it say whose it is", key);
    return read_key(reply->responses[0]->response_range->kvs[0], key, key_out, err);
}

enum sl_status sl_etcd_read_next(const Etcdserverpb__KeyValue *pair, const char *beginning, char *key_inout,
                                 size_t key_bytes, struct sl_error *err) {
    size_t n = pair->key.len, n_beginning = strlen(beginning);
    bool fits = n > n_beginning && n < key_bytes && memcmp(pair->key.data, beginning, n_beginning) == 0;
    for (size_t i = 0; i < n && fits; i++) {
        fits = pair->key.data[i] > ' ' && pair->key.data[i] <= '~';
    }
    size_t n_before = strlen(key_inout);
    int order = fits ? memcmp(pair->key.data, key_inout, n < n_before ? n : n_before) : 0;
    SL_FAIL_IF(!fits || order < 0 || (order == 0 && n <= n_before), err, SL_ERR_PEER_CORRUPT,
               "etcd answers with another key than the one after %.100s", key_inout);
    memcpy(key_inout, pair->key.data, n);
    key_inout[n] = '\0';
    return SL_OK;
}

enum sl_status sl_etcd_read_grant(const Etcdserverpb__LeaseGrantResponse *reply, int64_t ttl_s, int64_t *lease_out,
                                  struct sl_error *err) {
    SL_FAIL_IF(reply->error[0] != '\0', err, SL_ERR_PEER_LOST, "etcd grants no lease: %.200s", reply->error);
    SL_FAIL_IF(reply->id == 0 || reply->ttl < ttl_s, err, SL_ERR_PEER_CORRUPT,
               "etcd grants the lease %" PRId64 " for %" PRId64 " s, asked for %" PRId64, reply->id, reply->ttl, ttl_s);
    *lease_out = reply->id;
    return SL_OK;
}

enum sl_status sl_etcd_read_renewal(const Etcdserverpb__LeaseKeepAliveResponse *reply, int64_t lease,
                                    struct sl_error *err) {
    SL_FAIL_IF(reply->id != lease, err, SL_ERR_PEER_CORRUPT, "etcd renews another lease than was asked for");
    return reply->ttl > 0 ? SL_OK : SL_ERR_NOT_FOUND;
}
