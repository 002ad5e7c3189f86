// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads etcd's replies and checks them. SL_ERR_PEER_CORRUPT: a reply makes no sense.
 * Design: the term is the revision in which the leader key was created; no other change of this etcd has the same revision.
 */
#pragma once

#include "coordinator/election/leader_key.h"
#include "proto/etcd/election.pb-c.h"

// Reads the reply to a range request. SL_ERR_NOT_FOUND: the key does not exist.
enum sl_status sl_etcd_read_range(const Etcdserverpb__RangeResponse *reply, const char *key,
                                  struct sl_leader_key *key_out, struct sl_error *err);
// Reads the reply to a transaction that creates the key for holder and lease, or else reads it.
enum sl_status sl_etcd_read_txn(const Etcdserverpb__TxnResponse *reply, const char *key, int64_t lease,
                                const char *holder, struct sl_leader_key *key_out, struct sl_error *err);
// Reads a key that begins so, and comes after key_inout (the beginning: any), which it then is; key_bytes: with the terminating zero.
enum sl_status sl_etcd_read_next(const Etcdserverpb__KeyValue *pair, const char *beginning, char *key_inout,
                                 size_t key_bytes, struct sl_error *err);
// Reads the reply to a grant. Expects a lease of at least ttl_s seconds.
enum sl_status sl_etcd_read_grant(const Etcdserverpb__LeaseGrantResponse *reply, int64_t ttl_s, int64_t *lease_out,
                                  struct sl_error *err);
// Reads the reply to a renewal. SL_ERR_NOT_FOUND: the lease has ended.
enum sl_status sl_etcd_read_renewal(const Etcdserverpb__LeaseKeepAliveResponse *reply, int64_t lease,
                                    struct sl_error *err);
