// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the coordinator: it admits, routes and follows jobs, and owns their state. It never touches a capsule.
 *
 * Design, in reading order:
 *     workers/route.h      chooses workers: pure functions       workers/affinity.h   which worker has read a similar prompt
 *     workers/registry.h   the workers of the cluster            workers/admit.h      the line of jobs, and memory for them
 *     jobs/event_log.h     the events of a job                   jobs/job.h           one request and its state machine
 *     jobs/jobs.h          the table of jobs                     jobs/request.h       checks a client's request
 *     documents/documents.h  texts that stores keep                documents/keeper.h    tells the stores of them
 *     state/state.h        jobs on a disk                        restore.c            jobs of the process before this one
 *     lead.h               whether this coordinator leads        election/election.h  elects the leader
 *     run/states.h         the states of a job run               run/run.h            runs one job from its beginning to its end
 *     submit.c             makes a job and its fiber from a request
 *     inference_service.c, documents_service.c, cluster_service.c  the services for clients and for workers
 * Threads: gRPC's handlers, one fiber per job, and a sweeper, which declares silent workers lost and forgets old jobs.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

struct sl_coordinator;

struct sl_coordinator_config {
    const char *listen;        // "HOST:PORT"; port 0 picks a free one
    const char *admin_listen;  // likewise, or "none" (net/admin/admin.h)
    const char *metrics_alias; // "vllm": also under its names, for endpoint pickers; or "none"
    struct sl_tls_files tls;   // none: callers are not authenticated
    bool insecure;             // without certificates, listen where other hosts can connect
    const char
        *salt_file; // the secret of tenants' salts, created if it does not exist; NULL: see net/trust/tenant_salt.h
    const char *state_dir;  // folder of the jobs that outlive the process (state/state.h); "": none
    int64_t state_bytes;    // the most bytes that they may take there
    const char *model_dir;  // tokenizer, config.json and fingerprint; the weights are not loaded
    const char *model_name; // the name for clients; NULL: the folder's name
    const char *
        generation_config; // auto, or none: ignore the model's sampling settings (engine/model/generation/generation.h)
    const char *weights;   // the format of the workers' weights (engine/tensor/ops.h): part of the fingerprint
    const char
        *etcd; // "HOST:PORT,...": several coordinators elect a leader (election/election.h); "": this one is alone
    const char *etcd_prefix; // prefix of the cluster's keys in etcd
    struct sl_tls_files etcd_tls;
    const char *advertise;      // "HOST:PORT" for clients; "": as listen
    const char *default_recipe; // for requests without a recipe; NULL: sl_job_default_recipe() of the model
    const char *routing;        // the policy that chooses workers (workers/route.h)
    int64_t rebalance_ms;       // least time between two changes of workers' roles; 0: they keep them
    int64_t max_jobs;           // admitted at once
    int64_t max_queued;         // accepted and waiting
    int64_t max_watchers;       // Generate, Watch, Cancel and SubmitInParts calls at once
    int64_t heartbeat_ms;       // a worker is lost after two missed heartbeats
    int64_t stall_ms;           // a worker that has work and makes no progress for this long is stalled
    int64_t reader_ms;          // a client that does not read for this long is disconnected
    int64_t silence_ms;         // a worker call that is silent for this long is lost
    int64_t worker_wait_ms;     // how long a job without a deadline of its own waits for a role without a ready worker
    int64_t max_retries;        // attempts of a job that may be lost
    int64_t deadline_ms;        // for jobs that set none
    int64_t retention_ms;       // how long an ended job can be watched
    int64_t max_kept_jobs;      // the most ended jobs that are retained
    int64_t max_kept_bytes;     // the most bytes of their events
    int64_t max_prefixes;       // entries of the affinity index
    int64_t max_prompt_bytes;   // of a request that arrives in parts
    int64_t request_bytes;      // memory for all requests that are being handled
    int64_t parts_ms;           // time for all parts of a request to arrive
    int64_t max_documents;      // of one tenant
    int64_t document_bytes;     // the most that the capsules of one tenant's documents may take
    int64_t
        tenant_share; // percent of max_queued, max_watchers, calls that are handled, memory for requests and retained jobs that one tenant may use
};

// Checks what does not need the model's files.
enum sl_status sl_coordinator_config_check(const struct sl_coordinator_config *config, struct sl_error *err);

// Loads the model's files, listens and serves. Call sl_rpc_init() before. Copies the strings of the config.
enum sl_status sl_coordinator_create(const struct sl_coordinator_config *config,
                                     struct sl_coordinator **coordinator_out, struct sl_error *err);

const char *sl_coordinator_address(const struct sl_coordinator *coordinator);       // "HOST:PORT" with the real port
const char *sl_coordinator_admin_address(const struct sl_coordinator *coordinator); // likewise; "": none

// Blocks until sl_coordinator_stop(). Then refuses new jobs, lets running jobs finish during the grace period, cancels the
// others, and returns when no job is left and the server has stopped.
void sl_coordinator_run(struct sl_coordinator *coordinator);

// Stops sl_coordinator_run(); from any thread. A second call can only shorten the grace period.
void sl_coordinator_stop(struct sl_coordinator *coordinator, int64_t grace_ms);

// Call it after sl_coordinator_run() has returned, or instead of it (then without grace). Accepts NULL, nulls *coordinator.
void sl_coordinator_destroy(struct sl_coordinator **coordinator);
