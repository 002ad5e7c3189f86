// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the coordinator: it admits, routes and follows jobs, and owns their state. It never touches a capsule.
 *
 * Design, in reading order:
 *     route.h       who does it: pure functions          affinity.h   who has read a prompt like this
 *     registry.h    who is there                          admit.h      is there room
 *     event_log.h   what happened                         job.h        one request and its state machine
 *     jobs.h        all of them                           request.h    what a client may ask for
 *     state.h       those that outlive this process        restore.c    and come back
 *     lead.h        whether this coordinator leads         election/election.h  and who else
 *     run/run.h     one job from its beginning to its end  submit.c     from a request to a job with a thread
 *     inference_service.c, cluster_service.c              what clients and workers call
 * Threads: gRPC's handlers, one thread a job, and one that sweeps: it gives up silent workers and forgets old jobs.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/tls_files.h"

struct sl_coordinator;

struct sl_coordinator_config {
    const char *listen;        // "HOST:PORT"; port 0 picks a free one
    const char *admin_listen;  // likewise, or "none" (net/admin/admin.h)
    const char *metrics_alias; // "vllm": its names, too, for what pickers read; or "none"
    struct sl_tls_files tls;   // none: callers are not asked who they are
    bool insecure;             // and then, listen also where other hosts can connect
    const char *salt_file; // what tenants' salts are made of, made where it is not there; NULL: net/trust/tenant_salt.h
    const char *state_dir; // where jobs are written that outlive the process (state/state.h); "": nowhere
    int64_t state_bytes;   // that they may take there
    const char *model_dir; // tokenizer, config.json and fingerprint; the weights are not loaded
    const char *model_name; // as clients know it; NULL: the folder's
    const char *
        generation_config; // auto, or none: what a model says of sampling is not taken (engine/model/generation/generation.h)
    const char *weights;     // the format of the workers' weights (engine/tensor/ops.h): part of the fingerprint
    const char *etcd;        // "HOST:PORT,...": one of several, of which one leads (election/election.h); "": alone
    const char *etcd_prefix; // of the cluster's keys there
    struct sl_tls_files etcd_tls;
    const char *advertise;      // "HOST:PORT", as clients reach us; "": as listen
    const char *default_recipe; // of requests without one; NULL: sl_job_default_recipe() of the model
    int64_t max_jobs;           // admitted at once
    int64_t max_queued;         // accepted and waiting
    int64_t max_watchers;       // Generate, Watch, Cancel and SubmitInParts calls at once
    int64_t heartbeat_ms;       // two missed, and a worker is lost
    int64_t stall_ms;           // a worker that has work and makes no progress for so long is stalled
    int64_t reader_ms;          // a client that does not read what it is sent for so long is taken for gone
    int64_t silence_ms;         // a leg that says nothing for so long is lost
    int64_t worker_wait_ms;     // how long a job waits for a role of which no worker is ready
    int64_t max_retries;        // legs of a job that may be lost
    int64_t deadline_ms;        // of jobs that ask for none
    int64_t retention_ms;       // how long an ended job can be watched
    int64_t max_kept_jobs;      // ended ones
    int64_t max_kept_bytes;     // of ended ones' events
    int64_t max_prefixes;       // entries of the affinity index
    int64_t max_prompt_bytes;   // of a request that comes in parts
    int64_t request_bytes;      // memory of all requests that are being handled
    int64_t tenant_share;       // percent of max_queued, max_watchers and what is kept that one tenant may have
};

// What sluice-coordinator does without options; listen and model_dir are to be set.
void sl_coordinator_config_init(struct sl_coordinator_config *config);

// Load, listen and serve. sl_rpc_init() comes first. The config's strings are copied.
enum sl_status sl_coordinator_create(const struct sl_coordinator_config *config,
                                     struct sl_coordinator **coordinator_out, struct sl_error *err);

const char *sl_coordinator_address(const struct sl_coordinator *coordinator);       // "HOST:PORT" with the real port
const char *sl_coordinator_admin_address(const struct sl_coordinator *coordinator); // likewise; "": none

// Block until sl_coordinator_stop(), then refuse new jobs, let running ones finish during the grace period, cancel the
// rest, and return when none is left and the server has stopped.
void sl_coordinator_run(struct sl_coordinator *coordinator);

// From any thread. A second call can only shorten the grace period.
void sl_coordinator_stop(struct sl_coordinator *coordinator, int64_t grace_ms);

// After sl_coordinator_run() has returned, or instead of it (then without grace). Accepts NULL, nulls *coordinator.
void sl_coordinator_destroy(struct sl_coordinator **coordinator);
