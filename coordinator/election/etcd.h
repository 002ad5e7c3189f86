// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the leader key in etcd (version 3's API, over net/rpc/).
 * Design: a call asks one server. When that fails or is silent for CALL_MS, the call asks the next, until all were asked once. One answer is
 *         enough: a majority of the servers has agreed on it, and without a majority no server answers.
 * Threads: one at a time.
 */
#pragma once

#include "coordinator/election/leader_key.h"

struct sl_etcd;

extern const struct sl_leader_key_ops sl_etcd_ops; // of a struct sl_etcd

enum sl_status sl_etcd_create(const char *servers, const char *prefix, const struct sl_tls_files *tls,
                              struct sl_etcd **etcd_out, struct sl_error *err);
void sl_etcd_destroy(struct sl_etcd **etcd); // accepts NULL
