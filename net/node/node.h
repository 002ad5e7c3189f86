// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the common parts of every worker, started in one order and stopped in the reverse: log, model, fabric,
 *          arena, gRPC server, agent. A service adds its handlers and its load report; its main.c is then a page long.
 *
 * Design: a service's configuration struct begins with struct sl_node_config, and its option table with
 *         SL_NODE_OPTIONS.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/options/config.h"
#include "base/options/program.h"
#include "base/progress_counter.h"
#include "engine/runtime/runtime.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "net/admin/admin.h"
#include "net/fabric/fabric.h"
#include "net/node/direct.h"
#include "net/node/term_guard.h"
#include "net/node/inbound.h"
#include "net/rpc/rpc_selfcheck.h"
#include "net/rpc/standard/rpc_standard.h"
#include "net/trust/tls_files.h"
#include "proto/sluice/v1/cluster.pb-c.h"

struct sl_node_config {
    struct sl_program_options common;
    const char *listen, *coordinator, *model, *name, *fabric_listen, *transport, *tier, *weights, *device, *inject;
    const char *gpudirect; // NULL: auto
    struct sl_tls_files tls;
    const char *arena; // the text of --arena, from which sl_node_open() computes
    int64_t arena_bytes;
    int64_t beside_bytes; // that the service takes besides; the service sets it, no option does
    int64_t staging_bytes, threads, ranks, lease_ms, max_jobs, grace_ms, stall_ms;
    bool lock_memory, huge_pages, pin, insecure, private_weights, report_loading;
    bool needs_model; // the program sets this, and the check of its own options (NULL: none); no option does
    enum sl_status (*check_fn)(const struct sl_node_config *config, struct sl_error *err);
};

// `type` begins with struct sl_node_config. default_name: "prefill-0"; default_jobs as text.
#define SL_NODE_OPTIONS(default_name, default_jobs)                                                                    \
    SL_OPTION_ROW("listen", 'l', SL_OPTION_STRING, "127.0.0.1:0", "HOST:PORT",                                         \
                  "address of the gRPC server; port 0 picks a free one", SL_FIELD(sl_node_config, listen)),            \
        SL_OPTION_ROW("coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT,...",                         \
                      "the coordinators to register with, all of them", SL_FIELD(sl_node_config, coordinator)),        \
        SL_OPTION_ROW("name", 0, SL_OPTION_STRING, default_name, "NAME", "name of this worker, unique in the cluster", \
                      SL_FIELD(sl_node_config, name)),                                                                 \
        SL_OPTION_ROW("fabric-listen", 0, SL_OPTION_STRING, "127.0.0.1:0", "HOST:PORT",                                \
                      "address of the data plane; a concrete one that peers can reach",                                \
                      SL_FIELD(sl_node_config, fabric_listen)),                                                        \
        SL_OPTION_ROW("transport", 't', SL_OPTION_STRING, "auto", "NAME", "data plane: auto, shm, tcp or rdma",        \
                      SL_FIELD(sl_node_config, transport)),                                                            \
        SL_TLS_OPTIONS(sl_node_config, tls, "worker/ROLE"), SL_UNSTATED_ROLES_OPTION(sl_node_config, tls),             \
        SL_INSECURE_OPTION(sl_node_config, insecure),                                                                  \
        SL_OPTION_ROW("arena", 'a', SL_OPTION_STRING, "", "SIZE",                                                      \
                      "memory for KV, taken and registered once. Default: 1G, or on a device with memory of its own "  \
                      "85% of what the model leaves. auto: what the limit of the container, or of the machine, "       \
                      "leaves beside model and process",                                                               \
                      SL_FIELD(sl_node_config, arena)),                                                                \
        SL_OPTION_ROW("lock", 0, SL_OPTION_FLAG, NULL, NULL, "lock the arena in memory (needs ulimit -l)",             \
                      SL_FIELD(sl_node_config, lock_memory)),                                                          \
        SL_OPTION_ROW("huge-pages", 0, SL_OPTION_FLAG, NULL, NULL,                                                     \
                      "take the arena from reserved huge pages of 2 MiB; with --transport tcp",                        \
                      SL_FIELD(sl_node_config, huge_pages)),                                                           \
        SL_OPTION_ROW("max-jobs", 0, SL_OPTION_INT, default_jobs, "N",                                                 \
                      "jobs taken at once; more wait at the coordinator", SL_FIELD(sl_node_config, max_jobs), 1,       \
                      4096),                                                                                           \
        SL_OPTION_ROW("lease", 0, SL_OPTION_DURATION, "10s", "TIME", "lifetime of a lease that is not renewed",        \
                      SL_FIELD(sl_node_config, lease_ms), 200, 3600000),                                               \
        SL_OPTION_ROW("grace", 0, SL_OPTION_DURATION, "10s", "TIME", "time for running calls when asked to stop",      \
                      SL_FIELD(sl_node_config, grace_ms), 0, 3600000),                                                 \
        SL_OPTION_ROW(                                                                                                 \
            "stall-after", 0, SL_OPTION_DURATION, "30s", "TIME",                                                       \
            "a thread that has work and makes no progress for this long hangs: probes report it, and its jobs move; "  \
            "after twice the time this process exits. So it does when a device makes no progress for this long",       \
            SL_FIELD(sl_node_config, stall_ms), 1000, 86400000),                                                       \
        SL_OPTION_ROW("inject", 0, SL_OPTION_STRING, "", "FAULT", "fault injection for tests (net/fabric/fabric.h)",   \
                      SL_FIELD(sl_node_config, inject)),                                                               \
        SL_PROGRAM_OPTIONS(sl_node_config, common)

// Further options of workers that run a model.
#define SL_NODE_MODEL_OPTIONS                                                                                          \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, NULL, "MODEL",                                                        \
                  "model folder, GGUF file, or a name of `sluice models` (required)",                                  \
                  SL_FIELD(sl_node_config, model)),                                                                    \
        SL_OPTION_ROW("threads", 0, SL_OPTION_INT, "0", "N",                                                           \
                      "threads of the engine; 0 is one for each processor that it may use",                            \
                      SL_FIELD(sl_node_config, threads), 0, 1024),                                                     \
        SL_OPTION_ROW("pin", 0, SL_OPTION_FLAG, "no", NULL,                                                            \
                      "give each thread a processor of its own; for a worker that shares its processors with none",    \
                      SL_FIELD(sl_node_config, pin)),                                                                  \
        SL_OPTION_ROW("weights", 0, SL_OPTION_STRING, "stored", "FORMAT",                                              \
                      "format of the weights in memory: stored, int8 or int4; the same for the whole cluster",         \
                      SL_FIELD(sl_node_config, weights)),                                                              \
        SL_OPTION_ROW("private-weights", 0, SL_OPTION_FLAG, NULL, NULL,                                                \
                      "keep a copy of the weights in this process alone. By default all processes of this user on "    \
                      "this machine share one",                                                                        \
                      SL_FIELD(sl_node_config, private_weights)),                                                      \
        SL_OPTION_ROW("report-loading", 0, SL_OPTION_FLAG, NULL, NULL,                                                 \
                      "write lines `loading done=BYTES total=BYTES` to standard output while the model is loaded, "    \
                      "one for each step of progress; `sluice up` uses them",                                          \
                      SL_FIELD(sl_node_config, report_loading)),                                                       \
        SL_DEVICE_OPTION(sl_node_config, device), SL_RANKS_OPTION(sl_node_config, ranks),                              \
        SL_OPTION_ROW("tier", 0, SL_OPTION_STRING, "auto", "NAME", "instruction set of the engine",                    \
                      SL_FIELD(sl_node_config, tier)),                                                                 \
        SL_OPTION_ROW("staging", 0, SL_OPTION_SIZE, "1G", "SIZE",                                                      \
                      "host memory for capsules in transit, for a device with memory of its own, which --arena is "    \
                      "then taken from",                                                                               \
                      SL_FIELD(sl_node_config, staging_bytes), 1 << 20, 1e15),                                         \
        SL_OPTION_ROW("gpudirect", 0, SL_OPTION_STRING, "auto", "WHEN",                                                \
                      "send capsules from a GPU's memory and receive them there: auto, if network, driver and UCX "    \
                      "can, which takes --staging of that memory, too; or off",                                        \
                      SL_FIELD(sl_node_config, gpudirect))

struct sl_agent;
struct sl_thread_watch;
struct sl_node_service;

struct sl_node {
    struct sl_node_config config;
    struct sl_admin *admin;                 // opened before the following, and serves their checks once they exist
    struct sl_rpc_credentials *credentials; // NULL: without certificates
    struct sl_fabric *fabric;
    struct sl_otlp *otlp;     // NULL: no spans
    struct sl_arena *arena;   // of sessions: the fabric's region, or memory of the device (runtime.arena)
    struct sl_ledger *ledger; // of the arena
    // Holds data in transit: the same two, or those of the region where the device has its own memory.
    struct sl_arena *staging;
    struct sl_ledger *staging_ledger;
    void *shared;                 // the region, registered with the device; NULL: no need
    struct sl_direct direct;      // device memory beside the arena, for data that leaves or arrives unstaged
    struct sl_verifier *verifier; // verifies what arrives there; NULL: nothing does
    _Atomic int64_t n_straight,
        n_staged; // capsules that left a prefill worker's device, or arrived in a decode worker's, through staging
    struct sl_inbound *inbound;
    struct sl_rpc_standard standard; // of the gRPC server, beside the service
    struct sl_rpc_server *server;
    struct sl_rpc_selfcheck *selfcheck; // of the server, for the admin port
    struct sl_term_guard term_guard;    // whose requests the service accepts
    struct sl_agent *agent;
    struct sl_thread_watch *watch; // checks the progress counters
    atomic_bool stands_still;
    atomic_bool stopping; // SIGTERM has come
    const char *service_name;
    const struct sl_node_service *service; // while it serves
    // a list: those of sl_node_add_progress_counter(), and the fabric's
    struct sl_progress_counter *progress_counters;
    // of workers with a model: the engine thread's. n_waiting: the jobs that it has been given
    struct sl_progress_counter engine;
    Sluice__V1__WorkerInfo info;
    uint64_t model_fingerprint; // only with a model
    struct sl_runtime runtime;  // a kvstore has no model and makes its own
    char device[32];            // info.device
    char rpc_address[128];      // info.rpc_address: outlives the server, as the agent does
    // Why the coordinator refused us, or how the device failed; "" otherwise. Written once, before the signal that ends
    // us.
    char refusal[384], failure[384];
    atomic_flag failing;
};

// Returns true when the device has its own memory: data in transit then goes through staging memory.
static inline bool sl_node_stages(const struct sl_node *node) {
    return node->staging != node->arena;
}

// Returns the arena in which an arrived body lies.
static inline struct sl_arena *sl_node_arena_of(const struct sl_node *node, const void *body) {
    return sl_direct_has(&node->direct, body) ? node->direct.arena : node->staging;
}

/*
 * Starts everything up to, but not including, the server. max_rows: of the engine; 0: without a model (a kvstore).
 * config.model, config.listen etc. must stay valid.
 */
enum sl_status sl_node_open(struct sl_node *node, const struct sl_node_config *config, Sluice__V1__WorkerRole role,
                            int max_rows, struct sl_error *err);

struct sl_node_service {
    const struct sl_rpc_implementation *rpc;
    const struct sl_rpc_implementation *second_rpc;           // NULL: there is none
    void (*load_fn)(void *arg, Sluice__V1__WorkerLoad *load); // the service's part of a load report
    void (*metrics_fn)(void *arg,
                       FILE *page); // the service's part of /metrics; on the admin port's thread. May be NULL
    void *arg;
};

/*
 * Serves: starts the server and the agent, prints "ready rpc=... fabric=..." on standard output, and waits for SIGTERM
 * or SIGINT, which sl_node_main() has blocked. Then stops agent and server. SL_ERR_PRECONDITION: the coordinator
 * refused this worker; err says why.
 */
enum sl_status sl_node_serve(struct sl_node *node, const struct sl_node_service *service, struct sl_error *err);

/*
 * Checks a status that may come from the device. If the device has failed, this worker ends with the device's error
 * text, and the status becomes SL_ERR_PEER_LOST, so that the job goes on elsewhere. Any other status is returned
 * unchanged. Any thread.
 */
enum sl_status sl_node_check_device(struct sl_node *node, enum sl_status status, struct sl_error *err);

// Adds a thread to watch. Call before sl_node_serve(). The progress counter outlives sl_node_close().
void sl_node_add_progress_counter(struct sl_node *node, struct sl_progress_counter *progress_counter);

// Returns true when a thread of this worker has work and makes no progress: the worker then stops reporting its jobs as
// alive. Any thread.
bool sl_node_stands_still(const struct sl_node *node);

// Undoes sl_node_open(): call after the service has stopped its own threads.
void sl_node_close(struct sl_node *node);

/*
 * Runs the whole main() of a worker: parses, logs, runs, and turns the status into an exit code (0, 1 failure, 2
 * usage). run_fn does open, serve and close.
 */
int sl_node_main(const struct sl_program *program, int argc, char **argv, struct sl_node_config *config,
                 enum sl_status (*run_fn)(const struct sl_node_config *config, struct sl_error *err));
