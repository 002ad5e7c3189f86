// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a whole cluster on this machine: the real executables, found beside this one, with addresses of the
 *          loopback interface. Nothing in it differs from a cluster of many machines but the addresses.
 *
 * Design: start the coordinator (or an etcd, and several), wait for its "ready" line (its port may have been 0), start the workers with its
 *         address, and the gateway; wait for theirs. Stopping goes the other way: SIGTERM to the gateway, to the workers,
 *         then to the coordinator, so that nobody complains of a lost one; SIGKILL to whoever is still there when the grace is over.
 * Threads: one thread at a time, or sl_cluster_run_thread(). Started before sl_rpc_init(): it forks.
 */
#pragma once

#include "client/cli/child.h"
#include "client/cli/cluster_tls.h"
#include "client/cli/tool.h"
#include "client/libsluice/sluice.h"
#include "base/options/config.h"
#include "engine/runtime/device_choice.h"

struct sl_cluster_config {
    const char *model, *weights, *device, *host, *transport, *arena, *workers_log;
    int64_t n_prefill, n_decode, n_kvstore;
    int64_t ready_ms; // longest time without progress of a process that starts
    bool quiet;       // no progress on standard error
    int64_t ranks;    // of every worker with a model; 0: one
    int64_t port;     // of the coordinator, and the next ones of further ones; 0 picks free ones
    bool has_gateway;
    int64_t http_port;             // of the gateway, likewise
    const char *generation_config; // of the coordinator; NULL: its default
    const char *tls;               // NULL, or a folder of certificates, which are made: everything asks who is there
    const char *disk;              // NULL or a folder in which every KV store has one of its own name; made if need be
    int64_t disk_bytes;            // of each
    const char
        *coordinator_state; // NULL or where the coordinator keeps jobs; of several: each in a folder of its own name
    int64_t n_coordinators; // above 1: and an etcd in which they agree on who leads
    char *const *worker_arguments; // given to every worker in addition
    size_t n_worker_arguments;
};

// Rows for the member `cluster` of the command's config struct `type`; the port is the command's own affair.
#define SL_CLUSTER_OPTIONS(type)                                                                                       \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, NULL, "MODEL",                                                        \
                  "model folder, GGUF file, or a name of `sluice models`", SL_FIELD(type, cluster.model)),             \
        SL_OPTION_ROW("prefill", 0, SL_OPTION_INT, "1", "N", "prefill workers of a cluster on this machine",           \
                      SL_FIELD(type, cluster.n_prefill), 1, 32),                                                       \
        SL_OPTION_ROW("weights", 0, SL_OPTION_STRING, "stored", "FORMAT",                                              \
                      "of the model's weights in memory: stored, int8 or int4", SL_FIELD(type, cluster.weights)),      \
        SL_DEVICE_OPTION(type, cluster.device), SL_RANKS_OPTION(type, cluster.ranks),                                  \
        SL_OPTION_ROW("decode", 0, SL_OPTION_INT, "1", "N", "decode workers, likewise",                                \
                      SL_FIELD(type, cluster.n_decode), 1, 32),                                                        \
        SL_OPTION_ROW("kvstore", 0, SL_OPTION_INT, "1", "N", "KV stores, likewise", SL_FIELD(type, cluster.n_kvstore), \
                      0, 32),                                                                                          \
        SL_OPTION_ROW("transport", 't', SL_OPTION_STRING, "auto", "NAME", "data plane: auto, shm, tcp or rdma",        \
                      SL_FIELD(type, cluster.transport)),                                                              \
        SL_OPTION_ROW("arena", 'a', SL_OPTION_STRING, "", "SIZE",                                                      \
                      "memory for KV of each worker, all taken at once, or of run --local. Without: of workers for "   \
                      "16384 tokens of the model in f16; at least 256M, and of all together at most half of what "     \
                      "this machine has free",                                                                         \
                      SL_FIELD(type, cluster.arena)),                                                                  \
        SL_OPTION_ROW("tls", 0, SL_OPTION_STRING, NULL, "DIR",                                                         \
                      "make certificates there, and let only them in (tools/test-ca.sh, docs/SECURITY.md)",            \
                      SL_FIELD(type, cluster.tls)),                                                                    \
        SL_OPTION_ROW("ready-timeout", 0, SL_OPTION_DURATION, "60s", "TIME",                                           \
                      "longest time in which a process that starts makes no progress; a model that is being loaded "   \
                      "makes progress",                                                                                \
                      SL_FIELD(type, cluster.ready_ms), 100, 3600000)

struct sl_cluster;

// Starts all processes and waits for their ready lines. Passes their output to `file`, and shows on standard error how far models are
// loaded. SL_ERR_CANCELLED: a signal came. SL_ERR_DEADLINE names a process that made no progress for ready_ms.
enum sl_status sl_cluster_start(const struct sl_cluster_config *config, struct sl_signals *signals, FILE *file,
                                struct sl_cluster **cluster_out, struct sl_error *err);

const char *sl_cluster_address(const struct sl_cluster *cluster); // of the coordinator, or of all, as clients take them
const struct sl_tls_files *
sl_cluster_operator(const struct sl_cluster *cluster); // its operator's; NULL: it has no certificates
size_t sl_cluster_n_children(const struct sl_cluster *cluster);
const struct sl_child *sl_cluster_child(const struct sl_cluster *cluster, size_t i);

// Pass on output for up to timeout_ms. SL_ERR_PEER_LOST names a process that has ended; each is named once.
enum sl_status sl_cluster_pump(struct sl_cluster *cluster, int timeout_ms, struct sl_error *err);

/*
 * Pass on output for up to timeout_ms; and whoever has ended but a coordinator is started again, after a pause that doubles each time
 * it ends within 10 s or before it is ready, for which it has ready_ms; what happened is told on standard error.
 * SL_ERR_PEER_LOST: a coordinator or etcd has ended, or somebody five times in a row. *changed_out: somebody has ended, runs
 * again, or is ready, elsewhere than before.
 */
enum sl_status sl_cluster_look_after(struct sl_cluster *cluster, int timeout_ms, bool *changed_out,
                                     struct sl_error *err);

// Waits until the coordinator counts every worker as ready, and passes on output meanwhile. SL_ERR_DEADLINE: not within ready_ms of
// the last ready line.
enum sl_status sl_cluster_wait_ready(struct sl_cluster *cluster, struct sl_client *client, struct sl_signals *signals,
                                     struct sl_error *err);

// Pump on a thread of its own from here on, until sl_cluster_stop().
enum sl_status sl_cluster_run_thread(struct sl_cluster *cluster, struct sl_error *err);
bool sl_cluster_coordinator_lost(struct sl_cluster *cluster); // all of them; with the thread running

// Accepts NULL, nulls *cluster. A further signal cuts the grace short.
void sl_cluster_stop(struct sl_cluster **cluster, int64_t grace_ms, struct sl_signals *signals);
