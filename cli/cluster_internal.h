// SPDX-License-Identifier: Apache-2.0
// Purpose: a cluster's inside, for cluster.c and cluster_restart.c.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cli/cluster.h"
#include "cli/cluster_argv.h"
#include "cli/cluster_etcd.h"

struct sl_cluster {
    struct sl_cluster_config config;
    FILE *file;
    char bin[512];  // folder of the executables
    char arena[32]; // what config.arena points to where nobody has said it
    char address[1024];
    size_t n_children, n_allocated;
    struct sl_child *children;         // an etcd if there is one, the coordinators, workers, and the gateway
    size_t first_coordinator, n_first; // where they begin, and where workers do
    struct sl_cluster_etcd etcd;
    struct sl_argv *words; // [n_allocated] that the children were started with; none of an etcd
    int64_t *started_ns;   // of each child
    bool *reported;        // its end
    int64_t *again_ns;     // when it is to be started again; 0: it is not
    int *n_quick;          // how often it ended soon after its start
    size_t n_ready;        // when they were last looked after
    int64_t ready_deadline_ns;
    struct sl_cluster_tls operator_tls; // with config.tls

    pthread_t thread;
    bool has_thread;
    atomic_bool stopping, coordinator_lost;
};
