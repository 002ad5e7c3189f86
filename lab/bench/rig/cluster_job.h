// SPDX-License-Identifier: Apache-2.0
// Purpose: random prompts for a cluster, for benches of the time to first token: the cluster of two workers, and a
// job.
#pragma once

#include <stdatomic.h>

#include "client/cli/cluster.h"

// Zeroed before it is started or connected. Stop it after failures, too.
struct sl_rig_cluster {
    struct sl_cluster *cluster; // NULL: an existing cluster
    struct sl_client *client;
};

// Starts one prefill and one decode worker on this machine, and no kvstore, so that nothing is reused. Forks: call it
// before this process has threads. arena may be NULL.
enum sl_status sl_rig_cluster_start(struct sl_rig_cluster *c, const char *model, const char *device,
                                    const char *transport, const char *arena, struct sl_signals *signals,
                                    struct sl_error *err);
// Connects to the started cluster and waits until it is ready, or to the cluster at `address` with the certificates
// of `tls`.
enum sl_status sl_rig_cluster_connect(struct sl_rig_cluster *c, const char *address, const struct sl_tls_files *tls,
                                      struct sl_signals *signals, struct sl_error *err);
void sl_rig_cluster_stop(struct sl_rig_cluster *c, struct sl_signals *signals);

struct sl_rig_job {
    const char *recipe;
    int32_t *tokens; // [n_tokens]
    int64_t n_tokens, deadline_ms;
    int32_t n_output;
    const atomic_bool *stopped; // true: sl_rig_job_run() returns SL_ERR_CANCELLED; NULL: never
    atomic_bool reading;        // part of the prompt has been read, or the job has failed
    // valid after the job has ended:
    char id[SL_JOB_ID_BYTES], failure[256]; // "": it is finished
    double ttft_ms, prefill_ms, ship_ms, capsule_bytes;
};

// Runs a job and waits for its end.
enum sl_status sl_rig_job_run(struct sl_client *client, struct sl_rig_job *job, struct sl_error *err);

// Writes n random tokens to *tokens_out, malloc'd. Advances *random.
enum sl_status sl_rig_random_tokens(uint64_t *random, int64_t n_vocab, int64_t n, int32_t **tokens_out,
                                    struct sl_error *err);
