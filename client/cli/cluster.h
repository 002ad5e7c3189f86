// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a whole cluster on this machine: the real executables, found in this one's folder, with addresses of the
 *          loopback interface. Only the addresses differ from a cluster of many machines.
 *
 * Design: starts the coordinator (or an etcd and several coordinators), waits for its "ready" line (its port may have
 *         been 0), starts the workers with its address, and the gateway, and waits for their lines. Stopping uses the
 *         reverse order: SIGTERM to the gateway, to the workers, then to the coordinator, so that no process reports a
 *         lost one. Processes that still run after the grace period get SIGKILL.
 * Threads: one thread at a time, or sl_cluster_run_thread(). Start it before sl_rpc_init(), because it forks.
 */
#pragma once

#include "base/child.h"
#include "client/cli/cluster_tls.h"
#include "client/cli/tool.h"
#include "client/libsluice/sluice.h"
#include "base/options/config.h"
#include "engine/runtime/device_choice.h"

struct sl_cluster_config {
    const char *model, *weights, *device, *host, *transport, *arena, *workers_log;
    int64_t n_prefill; // 0: one, or none if the cluster is aggregated
    int64_t n_decode, n_kvstore;
    bool aggregated;  // decode workers read prompts, too
    int64_t ready_ms; // longest time without progress of a starting process
    bool quiet;       // show no progress on standard error
    bool lines;       // show it in lines even on a terminal
    int64_t ranks;    // ranks of every worker with a model; 0: one
    int64_t port;     // first coordinator's port; further ones get the next ports; 0 picks free ones
    bool has_gateway;
    int64_t http_port;                       // the same for the gateway
    const char *generation_config, *routing; // options of the coordinator; NULL: its defaults
    int64_t rebalance_ms;
    const char *tls;    // NULL, or a folder for certificates, which are made: all connections then need one
    const char *disk;   // NULL, or a folder in which every KV store has one of its own name; made if it does not exist
    int64_t disk_bytes; // disk of each KV store
    const char *evict, *ttl; // of KV stores; NULL: their defaults
    const char
        // NULL, or where the coordinator keeps jobs; several coordinators have a folder each of their own name
        *coordinator_state;
    int64_t n_coordinators;        // above 1: also start an etcd, in which they elect a leader
    char *const *worker_arguments; // given to every worker in addition
    size_t n_worker_arguments;
};

// Table rows for the member `cluster` of the command's config struct `type`; the command has its own row for the port.
#define SL_CLUSTER_OPTIONS(type)                                                                                       \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, NULL, "MODEL",                                                        \
                  "model folder, GGUF file, or a name of `sluice models`", SL_FIELD(type, cluster.model)),             \
        SL_OPTION_ROW("prefill", 0, SL_OPTION_INT, NULL, "N",                                                          \
                      "prefill workers of a cluster on this machine; 1, and none with --aggregated",                   \
                      SL_FIELD(type, cluster.n_prefill), 1, 32),                                                       \
        SL_OPTION_ROW("weights", 0, SL_OPTION_STRING, "stored", "FORMAT",                                              \
                      "format of the model's weights in memory: stored, int8 or int4",                                 \
                      SL_FIELD(type, cluster.weights)),                                                                \
        SL_DEVICE_OPTION(type, cluster.device), SL_RANKS_OPTION(type, cluster.ranks),                                  \
        SL_OPTION_ROW("decode", 0, SL_OPTION_INT, "1", "N", "decode workers of a cluster on this machine",             \
                      SL_FIELD(type, cluster.n_decode), 1, 32),                                                        \
        SL_OPTION_ROW("aggregated", 0, SL_OPTION_FLAG, NULL, NULL,                                                     \
                      "decode workers read prompts, too, and ship nothing. With --prefill, each prompt is read where " \
                      "its answer begins sooner",                                                                      \
                      SL_FIELD(type, cluster.aggregated)),                                                             \
        SL_OPTION_ROW("kvstore", 0, SL_OPTION_INT, "1", "N", "KV stores of a cluster on this machine",                 \
                      SL_FIELD(type, cluster.n_kvstore), 0, 32),                                                       \
        SL_OPTION_ROW("transport", 't', SL_OPTION_STRING, "auto", "NAME", "data plane: auto, shm, tcp or rdma",        \
                      SL_FIELD(type, cluster.transport)),                                                              \
        SL_OPTION_ROW(                                                                                                 \
            "arena", 'a', SL_OPTION_STRING, "", "SIZE",                                                                \
            "memory for KV of each worker, all taken at once, or of run --local. Default for workers: 16384 tokens "   \
            "of the model in f16, at least 256M, and for all together at most half of this machine's free memory",     \
            SL_FIELD(type, cluster.arena)),                                                                            \
        SL_OPTION_ROW("tls", 0, SL_OPTION_STRING, NULL, "DIR",                                                         \
                      "make certificates there, and let only them in (tools/test-ca.sh, docs/SECURITY.md)",            \
                      SL_FIELD(type, cluster.tls)),                                                                    \
        SL_OPTION_ROW("ready-timeout", 0, SL_OPTION_DURATION, "60s", "TIME",                                           \
                      "longest time in which a process that starts makes no progress; a model that is being loaded "   \
                      "makes progress",                                                                                \
                      SL_FIELD(type, cluster.ready_ms), 100, 3600000)

struct sl_cluster;

// Starts all processes and waits for their ready lines. Passes their output to `file`, and shows on standard error how
// much of the models is loaded. SL_ERR_CANCELLED: a signal came. SL_ERR_DEADLINE names a process that made no progress
// for ready_ms.
enum sl_status sl_cluster_start(const struct sl_cluster_config *config, struct sl_signals *signals, FILE *file,
                                struct sl_cluster **cluster_out, struct sl_error *err);

// Address of the coordinator, or of all, in the format of clients
const char *sl_cluster_address(const struct sl_cluster *cluster);
// Returns which texts fit the workers' memory, if no option sets that and not all do; otherwise "".
const char *sl_cluster_fits(const struct sl_cluster *cluster);
const struct sl_tls_files *
// The operator's certificate; NULL: the cluster has no certificates
sl_cluster_operator(const struct sl_cluster *cluster);
size_t sl_cluster_n_children(const struct sl_cluster *cluster);
const struct sl_child *sl_cluster_child(const struct sl_cluster *cluster, size_t i);

// Passes on output for up to timeout_ms. SL_ERR_PEER_LOST names a process that has ended; each is named once.
enum sl_status sl_cluster_pump(struct sl_cluster *cluster, int timeout_ms, struct sl_error *err);

/*
 * Passes on output for up to timeout_ms, and restarts ended processes except coordinators. Before a restart it pauses;
 * the pause doubles each time the process ends within 10 s or before it is ready. A restarted process has ready_ms to
 * become ready. Events are reported on standard error.
 * SL_ERR_PEER_LOST: a coordinator or etcd has ended, or another process five times in a row. *changed_out: a process
 * has ended, runs again, or is ready at another address.
 */
enum sl_status sl_cluster_look_after(struct sl_cluster *cluster, int timeout_ms, bool *changed_out,
                                     struct sl_error *err);

// Waits until the coordinator counts every worker as ready, and passes on output meanwhile. SL_ERR_DEADLINE: not within ready_ms of
// the last ready line.
enum sl_status sl_cluster_wait_ready(struct sl_cluster *cluster, struct sl_client *client, struct sl_signals *signals,
                                     struct sl_error *err);

// Pumps on a thread of its own from here on, until sl_cluster_stop().
enum sl_status sl_cluster_run_thread(struct sl_cluster *cluster, struct sl_error *err);
bool sl_cluster_coordinator_lost(struct sl_cluster *cluster); // true if all are lost; used with the thread

// Stops the cluster. Accepts NULL, nulls *cluster. A further signal ends the grace period.
void sl_cluster_stop(struct sl_cluster **cluster, int64_t grace_ms, struct sl_signals *signals);
