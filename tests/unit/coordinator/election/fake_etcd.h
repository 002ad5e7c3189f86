// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: two servers of one etcd, as far as coordinators use it: the leader key, leases that live until they are revoked, and other keys. Each
 *          may be silent.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/rpc/rpc.h"

#define FAKE_ETCD_PREFIX     "/test"
#define FAKE_ETCD_LIST_BYTES 128
#define FAKE_ETCD_PAIRS      40

extern struct fake_etcd {
    pthread_mutex_t mutex;
    char value[SL_RPC_ADDRESS_BYTES];
    int64_t lease, revision, created; // created 0: the key is not there
    struct fake_etcd_pair {
        char key[96];
        uint8_t *value; // owned
        size_t n_value;
    } pairs[FAKE_ETCD_PAIRS]; // the other keys, sorted
    int n_pairs, n_compactions;
    int n_calls[2];
    atomic_bool silent[2];
    struct sl_rpc_server *servers[2];
} fake_etcd;

void fake_etcd_start(char list_out[FAKE_ETCD_LIST_BYTES]); // their addresses
void fake_etcd_stop(void);
