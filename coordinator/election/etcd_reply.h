// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what etcd answers, believed only as far as it makes sense. SL_ERR_PEER_CORRUPT: it does not.
 * Design: a seat is a key; its term is the revision in which the key was created, which no other change of this etcd has.
 */
#pragma once

#include "coordinator/election/seat.h"
#include "proto/etcd/election.pb-c.h"

// Reads the reply to a range request. SL_ERR_NOT_FOUND: the key does not exist.
enum sl_status sl_etcd_read_range(const Etcdserverpb__RangeResponse *reply, const char *key, struct sl_seat *seat_out,
                                  struct sl_error *err);
// Reads the reply to a transaction that creates the key for holder and lease, or else reads it.
enum sl_status sl_etcd_read_txn(const Etcdserverpb__TxnResponse *reply, const char *key, int64_t lease,
                                const char *holder, struct sl_seat *seat_out, struct sl_error *err);
// A lease of ttl_s seconds at least.
enum sl_status sl_etcd_read_grant(const Etcdserverpb__LeaseGrantResponse *reply, int64_t ttl_s, int64_t *lease_out,
                                  struct sl_error *err);
// SL_ERR_NOT_FOUND: the lease has ended.
enum sl_status sl_etcd_read_renewal(const Etcdserverpb__LeaseKeepAliveResponse *reply, int64_t lease,
                                    struct sl_error *err);
