// SPDX-License-Identifier: Apache-2.0
// Purpose: internals of a cluster, for cluster.c, cluster_loading.c and cluster_restart.c.
#pragma once

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "client/cli/cluster.h"
#include "client/cli/cluster_argv.h"
#include "client/cli/cluster_etcd.h"

// State of the progress display while models are loaded.
struct sl_cluster_loading {
    int width;            // width of the terminal; 0: lines, because standard error is not one
    int64_t began_ns;     // of the first step of waiting; 0: none
    int64_t next_line_ns; // time of the next line without a terminal; 0: none is planned
    int64_t drawn;        // bytes or seconds that the drawn line shows
    bool is_drawn;
};

// The start of a child: what a restart needs.
struct sl_child_start {
    struct sl_argv words; // its command line; an etcd has none
    int64_t started_ns;
    int64_t again_ns; // time of its restart; 0: none is planned
    int n_quick;      // how often in a row it ended soon after its start
    bool reported;    // its end was reported
};

struct sl_cluster {
    struct sl_cluster_config config;
    FILE *file;
    char bin[PATH_MAX]; // folder of the executables
    char arena[32];     // config.arena points to it if no option sets that
    char fits[192];     // sl_cluster_arena_describe() of it
    char address[1024];
    size_t n_children, n_allocated;
    struct sl_child *children;         // an etcd if there is one, the coordinators, workers, and the gateway
    size_t first_coordinator, n_first; // index of the first coordinator; number of children before the workers
    struct sl_cluster_etcd etcd;
    struct sl_child_start *starts; // [n_allocated], of the children
    size_t n_ready;                // ready children at the last check
    struct sl_cluster_loading loading;
    bool file_is_terminal;
    struct sl_cluster_tls operator_tls; // used with config.tls

    pthread_t thread;
    bool has_thread;
    atomic_bool stopping, coordinator_lost;
};

// Shows how much of the model is loaded; hides it again before other text is written to the terminal.
void sl_cluster_show_loading(struct sl_cluster *cluster);
void sl_cluster_hide_loading(struct sl_cluster *cluster);

// Returns true when child i is not ready and has made no progress for ready_ms; buf then contains this message, with
// its name.
bool sl_cluster_is_late(const struct sl_cluster *cluster, size_t i, char *buf, size_t buf_bytes);
