// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for etcd's replies: an accepted leader key is a valid one.
 * Design: the first byte chooses the reply; the rest is it.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/election/etcd_reply.h"

#define KEY   "/sluice/leader"
#define LEASE 1234567

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_key(enum sl_status status, const struct sl_leader_key *key) {
    if (status != SL_OK) {
        require(status == SL_ERR_NOT_FOUND || status == SL_ERR_PEER_CORRUPT);
        return;
    }
    size_t n = strnlen(key->holder, sizeof key->holder);
    require(key->term > 0 && n > 0 && n < sizeof key->holder);
    for (size_t i = 0; i < n; i++) {
        require(key->holder[i] > ' ' && key->holder[i] <= '~');
    }
}

// Keys of a page come in their order, and begin as they should.
static void check_page(const Etcdserverpb__RangeResponse *reply) {
    char before[32] = "/sluice/", key[32] = "/sluice/";
    struct sl_error err;
    for (size_t i = 0; i < reply->n_kvs; i++) {
        if (sl_etcd_read_next(reply->kvs[i], "/sluice/", key, sizeof key, &err) != SL_OK) {
            require(strcmp(key, before) == 0);
            return;
        }
        require(strlen(key) == reply->kvs[i]->key.len && strncmp(key, "/sluice/", 8) == 0 && strcmp(key, before) > 0);
        strcpy(before, key);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const ProtobufCMessageDescriptor *const kinds[] = {
        &etcdserverpb__range_response__descriptor, &etcdserverpb__txn_response__descriptor,
        &etcdserverpb__lease_grant_response__descriptor, &etcdserverpb__lease_keep_alive_response__descriptor};
    if (size < 1) {
        return 0;
    }
    unsigned kind = data[0] % 4;
    ProtobufCMessage *message = protobuf_c_message_unpack(kinds[kind], NULL, size - 1, data + 1);
    if (!message) {
        return 0;
    }
    struct sl_leader_key key;
    struct sl_error err;
    int64_t lease = 0;
    if (kind == 0) {
        check_key(sl_etcd_read_range((const Etcdserverpb__RangeResponse *)message, KEY, &key, &err), &key);
        check_page((const Etcdserverpb__RangeResponse *)message);
    } else if (kind == 1) {
        check_key(
            sl_etcd_read_txn((const Etcdserverpb__TxnResponse *)message, KEY, LEASE, "127.0.0.1:7600", &key, &err),
            &key);
    } else if (kind == 2) {
        require(sl_etcd_read_grant((const Etcdserverpb__LeaseGrantResponse *)message, 5, &lease, &err) != SL_OK ||
                lease != 0);
    } else {
        const Etcdserverpb__LeaseKeepAliveResponse *reply = (const Etcdserverpb__LeaseKeepAliveResponse *)message;
        require(sl_etcd_read_renewal(reply, LEASE, &err) != SL_OK || (reply->id == LEASE && reply->ttl > 0));
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}
