// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/cluster_job.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/job/job_request.h"
#include "lab/random.h"

enum sl_status sl_rig_cluster_start(struct sl_rig_cluster *c, const char *model, const char *device,
                                    const char *transport, const char *arena, struct sl_signals *signals,
                                    struct sl_error *err) {
    struct sl_cluster_config config = {.model = model,
                                       .device = device,
                                       .weights = "stored",
                                       .host = "127.0.0.1",
                                       .transport = transport,
                                       .arena = arena,
                                       .workers_log = "warn",
                                       .n_prefill = 1,
                                       .n_decode = 1,
                                       .ready_ms = 60000};
    return sl_cluster_start(&config, signals, stderr, &c->cluster, err);
}

enum sl_status sl_rig_cluster_connect(struct sl_rig_cluster *c, const char *address, const struct sl_tls_files *tls,
                                      struct sl_signals *signals, struct sl_error *err) {
    int code;
    address = c->cluster ? sl_cluster_address(c->cluster) : address;
    tls = c->cluster ? sl_cluster_operator(c->cluster) : tls;
    SL_FAIL_IF(!sl_tool_connect("bench", address, tls, &c->client, &code), err, SL_ERR_PEER_LOST, "no connection to %s",
               address);
    enum sl_status status = c->cluster ? sl_cluster_wait_ready(c->cluster, c->client, signals, err) : SL_OK;
    return status == SL_OK && c->cluster ? sl_cluster_run_thread(c->cluster, err) : status;
}

void sl_rig_cluster_stop(struct sl_rig_cluster *c, struct sl_signals *signals) {
    if (c->client) {
        sl_tool_disconnect(&c->client);
    }
    sl_cluster_stop(&c->cluster, 5000, signals);
}

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct sl_rig_job *job = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_PREFILL && event->prefill->tokens_done > 0) {
        atomic_store(&job->reading, true);
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        const Sluice__V1__Finished *finished = event->finished;
        const Sluice__V1__Statistics *statistics = finished->statistics;
        if (finished->status_code != 0 || !statistics) {
            snprintf(job->failure, sizeof job->failure, "%s", finished->status_text);
            return;
        }
        job->failure[0] = '\0';
        job->ttft_ms = statistics->ttft_ms;
        job->prefill_ms = statistics->prefill_ms;
        job->ship_ms = statistics->ship_ms;
        job->capsule_bytes = (double)statistics->capsule_bytes;
    }
}

static bool is_stopped(void *arg) {
    const struct sl_rig_job *job = arg;
    return job->stopped != NULL && atomic_load(job->stopped);
}

enum sl_status sl_rig_job_run(struct sl_client *client, struct sl_rig_job *job, struct sl_error *err) {
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    ids.ids = job->tokens;
    ids.n_ids = (size_t)job->n_tokens;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    request.recipe = (char *)job->recipe;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = job->n_output;
    request.ignore_eos = true;
    struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&greedy); // regardless of the model's own settings
    request.sampling = &sampling;
    struct sl_watch watch = {
        .deadline_ns = sl_deadline_in_ms(job->deadline_ms), .on_event = on_event, .stopped = is_stopped, .arg = job};
    snprintf(job->failure, sizeof job->failure, "it did not say how it ended");
    enum sl_status status = sl_client_generate(client, &request, &watch, job->id, err);
    atomic_store(&job->reading, true);
    return status;
}

enum sl_status sl_rig_random_tokens(uint64_t *random, int64_t n_vocab, int64_t n, int32_t **tokens_out,
                                    struct sl_error *err) {
    int32_t *tokens = malloc(sizeof *tokens * (size_t)n);
    SL_FAIL_IF(tokens == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)((sl_random_mmix(random) >> 33) % (uint64_t)n_vocab);
    }
    *tokens_out = tokens;
    return SL_OK;
}
