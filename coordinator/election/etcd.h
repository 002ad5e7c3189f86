// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a seat as a key of etcd (version 3's API, over net/rpc/).
 * Design: one server is asked; one that fails or is silent for CALL_MS is followed by the next, until all were asked once. Any of them
 *         answers for all: what it says was agreed on by a majority, and without one it does not answer.
 * Threads: one at a time.
 */
#pragma once

#include "coordinator/election/seat.h"

struct sl_etcd;

extern const struct sl_seat_ops sl_etcd_ops; // of a struct sl_etcd

enum sl_status sl_etcd_create(const char *servers, const char *prefix, const struct sl_tls_files *tls,
                              struct sl_etcd **etcd_out, struct sl_error *err);
void sl_etcd_destroy(struct sl_etcd **etcd); // accepts NULL
