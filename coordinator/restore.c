// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: puts the jobs that --state has from an earlier process into the table, and continues those that have not ended.
 *
 * Design: an accepted job is checked as if a client had sent it with a Resumption, because a program that can write to the
 *         folder could have changed it. A job that this coordinator cannot continue fails with the reason: a job of another
 *         model, and a job whose call (Generate) ended with the process.
 *         Of several coordinators, each has its own jobs. The jobs' fibers find out which coordinator leads, as every job
 *         does (run/run.h). They continue where this one leads again, under its new term. Where another one leads, they end,
 *         so that clients submit them there. If that one has run a job meanwhile for such a client, and this one leads
 *         again, the job runs twice, one run after the other: never at once, because workers refuse the older term, and
 *         never to the same client twice, because the client knows what it has.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/coordinator_internal.h"
#include "engine/job/job_request.h"
#include "net/rpc/rpc.h"

struct sl_restored_job {
    struct sl_restored_job *next;
    struct sl_job *job;     // a reference
    enum sl_status status;  // SL_OK: it goes on
    struct sl_error reason; // why it does not
};

static int64_t at_ns(int64_t wall_ms) {
    int64_t in_ms = wall_ms - sl_wall_ms(), now_ns = sl_now_ns();
    const int64_t most_ms = INT64_C(1) << 40; // bounds a damaged time
    in_ms = in_ms > most_ms ? most_ms : in_ms < -most_ms ? -most_ms : in_ms;
    return now_ns + in_ms * SL_NS_PER_MS;
}

// Describes a job that will not run, for Get and List.
static void describe_ended(const Sluice__V1__AcceptedJob *accepted, struct sl_job_spec *spec) {
    const Sluice__V1__GenerateRequest *request = accepted->request;
    spec->n_tokens = accepted->n_prompt_tokens;
    spec->max_new_tokens = request->max_new_tokens;
    spec->sampling = sl_job_sampling(request->sampling, NULL);
    strncpy(spec->recipe, request->recipe, sizeof spec->recipe - 1);
    strncpy(spec->label, request->label, sizeof spec->label - 1);
    strncpy(spec->key, request->idempotency_key, sizeof spec->key - 1);
}

static enum sl_status check_goes_on(struct sl_coordinator *coordinator, const Sluice__V1__AcceptedJob *accepted,
                                    struct sl_job_spec *spec, struct sl_error *err) {
    struct sl_hash128 salt;
    SL_FAIL_IF(accepted->attached, err, SL_ERR_PEER_LOST,
               "the coordinator was started again, and the call that had asked ended");
    SL_FAIL_IF(accepted->model != coordinator->model_fingerprint, err, SL_ERR_PRECONDITION,
               "the coordinator was started again, with another model");
    SL_TRY(sl_tenant_salt(&coordinator->salt_secret, accepted->tenant, &salt, err));
    // The request was complete when it was accepted: a field that is absent was zero for an older coordinator.
    struct sl_sampling drawn = sl_job_sampling(accepted->request->sampling, NULL);
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&drawn);
    Sluice__V1__GenerateRequest request = *accepted->request;
    request.sampling = &sampling;
    const struct sl_request_setting setting = {.salt = salt, .call_deadline_ns = SL_NO_DEADLINE};
    return sl_request_check(&coordinator->rules, &request, &setting, spec, err);
}

static enum sl_status make_job(struct sl_coordinator *coordinator, const struct sl_past_jobs *past,
                               struct sl_restored_job *restored, struct sl_error *err) {
    const Sluice__V1__AcceptedJob *accepted = past->accepted;
    SL_FAIL_IF(accepted->request->max_new_tokens < 1 ||
                   accepted->request->max_new_tokens > coordinator->rules.model->max_positions,
               err, SL_ERR_INVALID, "its answer would have %d tokens", accepted->request->max_new_tokens);
    SL_NEW_OR_FAIL(struct sl_job_spec, spec, err, "no memory for a job");
    restored->status = past->end ? SL_OK : check_goes_on(coordinator, accepted, spec, &restored->reason);
    if (past->end || restored->status != SL_OK) {
        describe_ended(accepted, spec);
    }
    strcpy(spec->tenant, accepted->tenant);
    spec->request_hash = accepted->request_hash;
    spec->submitted_ns = at_ns(accepted->submitted_ms);
    spec->deadline_ns = at_ns(accepted->deadline_ms);
    const struct sl_job_past known = {.id = accepted->job_id,
                                      .submitted_ms = accepted->submitted_ms,
                                      .events = past->events,
                                      .n_events = past->n_events,
                                      .end = past->end,
                                      .n_vocab = coordinator->model.n_vocab};
    enum sl_status status = sl_job_restore(&known, spec, &restored->job, err);
    if (status != SL_OK) {
        sl_job_spec_cleanup(spec);
    }
    free(spec);
    SL_TRY(status);
    status = sl_tenants_take(coordinator->tenants, accepted->tenant, &restored->job->place.tenant, err);
    if (status != SL_OK) {
        sl_job_unref(&restored->job);
    }
    return status;
}

// Restores one job, for sl_state_load().
static enum sl_status restore(void *arg, const struct sl_past_jobs *past, struct sl_job **job_out,
                              struct sl_error *err) {
    struct sl_coordinator *coordinator = arg;
    SL_NEW_OR_FAIL(struct sl_restored_job, restored, err, "no memory for a job that was there before");
    SL_TRY_OR(make_job(coordinator, past, restored, err), free(restored));
    enum sl_status status = SL_OK;
    struct sl_job *first = sl_jobs_add(coordinator->jobs, restored->job);
    if (first != NULL) {
        status = sl_fail(err, SL_ERR_EXISTS, "%s was submitted with the same key", first->id);
        sl_job_unref(&first);
    }
    if (status != SL_OK || past->end) {
        if (status == SL_OK) {
            *job_out = restored->job;
        } else {
            sl_job_unref(&restored->job);
        }
        free(restored);
        return status;
    }
    *job_out = sl_job_ref(restored->job);
    restored->next = coordinator->restored;
    coordinator->restored = restored;
    return SL_OK;
}

enum sl_status sl_coordinator_restore(struct sl_coordinator *coordinator, struct sl_error *err) {
    const struct sl_state_config config = {.folder = coordinator->config.state_dir,
                                           .max_bytes = coordinator->config.state_bytes,
                                           .model = coordinator->model_fingerprint};
    SL_TRY(sl_state_open(&config, &coordinator->state, err));
    return sl_state_load(coordinator->state, restore, coordinator, err);
}

static void fail(struct sl_coordinator *coordinator, struct sl_job *job, enum sl_status status,
                 const struct sl_error *reason) {
    Sluice__V1__Statistics statistics = *sl_job_statistics_lock(job);
    sl_job_statistics_unlock(job);
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.reason = SLUICE__V1__FINISHED__REASON__ERROR;
    finished.status_code = sl_rpc_code_of_status(status);
    finished.status_text = (char *)reason->text;
    finished.statistics = &statistics;
    sl_job_figures_end(&coordinator->figures, status, &statistics);
    sl_job_finish(job, SLUICE__V1__JOB_STATE__FAILED, &finished);
}

// Tells watchers that the job starts again, as after the loss of its workers.
static void say_again(struct sl_job *job) {
    bool queued = sl_job_state(job) == SLUICE__V1__JOB_STATE__QUEUED;
    sl_job_move(job, queued ? SLUICE__V1__JOB_STATE__QUEUED : SLUICE__V1__JOB_STATE__PREFILLING,
                "the coordinator was started again");
}

void sl_coordinator_go_on(struct sl_coordinator *coordinator) {
    struct sl_restored_job *oldest = NULL; // they were put in front of each other
    while (coordinator->restored != NULL) {
        struct sl_restored_job *next = coordinator->restored->next;
        coordinator->restored->next = oldest;
        oldest = coordinator->restored;
        coordinator->restored = next;
    }
    int n_on = 0, n_failed = 0;
    while (oldest != NULL) {
        struct sl_restored_job *at = oldest;
        oldest = at->next;
        if (at->status == SL_OK) {
            say_again(at->job);
            at->status = sl_coordinator_resume(coordinator, at->job, &at->reason);
        }
        if (at->status != SL_OK) {
            fail(coordinator, at->job, at->status, &at->reason);
        }
        n_on += at->status == SL_OK;
        n_failed += at->status != SL_OK;
        sl_job_unref(&at->job);
        free(at);
    }
    if (n_on + n_failed > 0) {
        sl_log_info("coordinator", "jobs=%d of before go on, %d have failed", n_on, n_failed);
    }
}

void sl_coordinator_forget_restored(struct sl_coordinator *coordinator) {
    while (coordinator->restored != NULL) {
        struct sl_restored_job *at = coordinator->restored;
        coordinator->restored = at->next;
        sl_job_unref(&at->job);
        free(at);
    }
}
