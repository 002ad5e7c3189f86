// SPDX-License-Identifier: Apache-2.0
// Purpose: a cluster's inside, for cluster.c, cluster_loading.c and cluster_restart.c.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "client/cli/cluster.h"
#include "client/cli/cluster_argv.h"
#include "client/cli/cluster_etcd.h"

// What is shown of the model's loading.
struct sl_cluster_loading {
    int width;            // of the terminal; 0: standard error is none
    int64_t next_line_ns; // without a terminal; 0: nothing was loaded yet
    int64_t drawn_bytes;
    bool is_drawn;
};

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
    struct sl_cluster_loading loading;
    bool file_is_terminal;
    struct sl_cluster_tls operator_tls; // with config.tls

    pthread_t thread;
    bool has_thread;
    atomic_bool stopping, coordinator_lost;
};

// Shows how far the model is loaded; hides it again before something else is written to the terminal.
void sl_cluster_show_loading(struct sl_cluster *cluster);
void sl_cluster_hide_loading(struct sl_cluster *cluster);

// Returns true when child i is not ready and has made no progress for ready_ms; buf then says so, with its name.
bool sl_cluster_is_late(const struct sl_cluster *cluster, size_t i, char *buf, size_t buf_bytes);
