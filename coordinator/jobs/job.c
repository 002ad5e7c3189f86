// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "engine/job/job_request.h"
#include "proto/copy.h"

// Events in addition to one a token: states of all attempts and the end; and progress, which is dropped beyond its limit.
#define MAX_STATE_EVENTS    512
#define MAX_PROGRESS_EVENTS 4096

#define QUEUED     SLUICE__V1__JOB_STATE__QUEUED
#define PREFILLING SLUICE__V1__JOB_STATE__PREFILLING
#define SHIPPING   SLUICE__V1__JOB_STATE__SHIPPING
#define DECODING   SLUICE__V1__JOB_STATE__DECODING
#define DONE       SLUICE__V1__JOB_STATE__DONE
#define FAILED     SLUICE__V1__JOB_STATE__FAILED
#define CANCELLED  SLUICE__V1__JOB_STATE__CANCELLED

#define TO(state) (1U << (state))

// The diagram of job.h, edge by edge.
static const unsigned edges[] = {
    [QUEUED] = TO(QUEUED) | TO(PREFILLING) | TO(FAILED) | TO(CANCELLED),
    [PREFILLING] = TO(PREFILLING) | TO(SHIPPING) | TO(DECODING) | TO(FAILED) | TO(CANCELLED),
    [SHIPPING] = TO(PREFILLING) | TO(DECODING) | TO(FAILED) | TO(CANCELLED),
    [DECODING] = TO(PREFILLING) | TO(DONE) | TO(FAILED) | TO(CANCELLED),
    [DONE] = 0,
    [FAILED] = 0,
    [CANCELLED] = 0,
};

bool sl_job_is_edge(Sluice__V1__JobState from, Sluice__V1__JobState to) {
    return to >= QUEUED && to <= CANCELLED && (edges[from] & TO(to)) != 0;
}

// ---- life -------------------------------------------------------------------------------------------------------

void sl_job_joins_free(struct sl_job_join *joins, int n_joins) {
    for (int i = 0; i < n_joins; i++) {
        free(joins[i].tokens);
        free(joins[i].stores);
    }
    free(joins);
}

void sl_job_spec_cleanup(struct sl_job_spec *spec) {
    sl_job_joins_free(spec->joins, spec->n_joins);
    free(spec->tokens);
    free(spec->keys);
    free(spec->stores);
    free(spec->delivered);
    for (int i = 0; i < spec->n_stop; i++) {
        free(spec->stop[i]);
    }
    spec->tokens = NULL;
    spec->keys = NULL;
    spec->stores = NULL;
    spec->n_stores = 0;
    spec->joins = NULL;
    spec->n_joins = 0;
    spec->delivered = NULL;
    spec->n_stop = 0;
}

enum sl_status sl_job_make(const char *id, struct sl_job_spec *spec, struct sl_job **job_out, struct sl_error *err) {
    struct sl_job *job = calloc(1, sizeof(*job));
    int32_t *output = calloc((size_t)spec->max_new_tokens, sizeof(*output));
    if (job == NULL || output == NULL) {
        free(job);
        free(output);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job");
    }
    assert(strlen(id) < sizeof(job->id));
    strcpy(job->id, id);
    job->output = output;
    job->spec = *spec;
    if (spec->n_delivered > 0) {
        memcpy(output, spec->delivered, (size_t)spec->n_delivered * sizeof(*output));
        job->n_output = spec->n_delivered;
        free(job->spec.delivered);
        job->spec.delivered = NULL;
    }
    memset(spec, 0, sizeof(*spec));
    job->submitted_ms = sl_wall_ms();
    atomic_init(&job->refs, 1);
    atomic_init(&job->cancel, false);
    atomic_init(&job->forgotten, false);
    pthread_mutex_init(&job->mutex, NULL);
    sluice__v1__statistics__init(&job->statistics);
    job->statistics.transport = job->transport;
    job->statistics.recipe = job->spec.recipe;
    job->sampling = sl_job_sampling_message(&job->spec.sampling);
    job->statistics.sampling = &job->sampling;
    job->statistics.n_prompt_tokens = job->spec.n_tokens;
    job->statistics.full_bytes = job->spec.full_bytes;
    job->statistics.n_output_tokens = job->n_output;
    size_t max_events = (size_t)job->spec.max_new_tokens + MAX_STATE_EVENTS + MAX_PROGRESS_EVENTS;
    sl_event_log_init(&job->log, max_events, MAX_PROGRESS_EVENTS);
    job->state = QUEUED;
    *job_out = job;
    return SL_OK;
}

struct sl_job *sl_job_ref(struct sl_job *job) {
    atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
    return job;
}

void sl_job_unref(struct sl_job **job_in) {
    struct sl_job *job = *job_in;
    *job_in = NULL;
    if (job == NULL || atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    sl_event_log_cleanup(&job->log);
    sl_job_spec_cleanup(&job->spec);
    sl_tenant_give(&job->place.tenant);
    pthread_mutex_destroy(&job->mutex);
    free(job->slots);
    free(job->errors);
    free(job->output);
    free(job);
}

// ---- being told to stop -----------------------------------------------------------------------------------------

void sl_job_cancel(struct sl_job *job) {
    atomic_store(&job->cancel, true);
}

enum sl_status sl_job_interrupted(struct sl_job *job, struct sl_error *err) {
    // The deadline first: a client whose call ran out of time also cancels it, and the cause is the time.
    SL_FAIL_IF(sl_now_ns() >= job->spec.deadline_ns, err, SL_ERR_DEADLINE, "the job's deadline has passed");
    SL_FAIL_IF(atomic_load(&job->cancel), err, SL_ERR_CANCELLED,
               "a client cancelled it, or its coordinator was stopped");
    return SL_OK;
}

// ---- what happens to it -----------------------------------------------------------------------------------------

static enum sl_status tell(struct sl_job *job, enum sl_event_kind kind, Sluice__V1__Event *event) {
    event->job_id = job->id;
    enum sl_status status = sl_event_log_append(&job->log, kind, event);
    if (status < 0) {
        sl_log_error("job", "job=%s event=%d lost: %s", job->id, (int)event->what_case, sl_status_text(status));
    }
    return status;
}

void sl_job_accepted(const struct sl_job *job, Sluice__V1__Accepted *accepted_out) {
    sluice__v1__accepted__init(accepted_out);
    accepted_out->recipe = (char *)job->spec.recipe;
    accepted_out->sampling = (Sluice__V1__Sampling *)&job->sampling;
    accepted_out->max_new_tokens = job->spec.max_new_tokens;
    accepted_out->n_prompt_tokens = job->spec.n_tokens;
}

// Does sl_job_move(). accepted: for the first event, else NULL.
static enum sl_status move(struct sl_job *job, Sluice__V1__JobState state, const char *detail,
                           Sluice__V1__Accepted *accepted) {
    pthread_mutex_lock(&job->mutex);
    Sluice__V1__JobState from = job->state;
    bool legal = sl_job_is_edge(from, state);
    if (legal) {
        job->state = state;
    }
    pthread_mutex_unlock(&job->mutex);
    if (!legal) {
        return SL_ERR_PRECONDITION;
    }
    Sluice__V1__StateChange change = SLUICE__V1__STATE_CHANGE__INIT;
    change.state = state;
    change.detail = (char *)detail;
    change.accepted = accepted;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_STATE;
    event.state = &change;
    sl_log_info("job", "job=%s state=%s %s", job->id, sluice__v1__job_state__descriptor.values[state].name, detail);
    return tell(job, SL_EVENT_FACT, &event);
}

enum sl_status sl_job_move(struct sl_job *job, Sluice__V1__JobState state, const char *detail) {
    return move(job, state, detail, NULL);
}

enum sl_status sl_job_create(const char *id, struct sl_job_spec *spec, struct sl_job **job_out, struct sl_error *err) {
    struct sl_job *job;
    SL_TRY(sl_job_make(id, spec, &job, err));
    Sluice__V1__Accepted accepted;
    sl_job_accepted(job, &accepted);
    if (move(job, QUEUED, "", &accepted) != SL_OK) {
        *spec = job->spec; // the caller's again
        memset(&job->spec, 0, sizeof job->spec);
        sl_job_unref(&job);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job's events");
    }
    *job_out = job;
    return SL_OK;
}

void sl_job_finish(struct sl_job *job, Sluice__V1__JobState state, const Sluice__V1__Finished *finished) {
    assert(edges[state] == 0 && "a job ends in a final state");
    pthread_mutex_lock(&job->mutex);
    job->status_code = finished->status_code;
    job->another_leads = finished->another_leads;
    strncpy(job->status_text, finished->status_text, sizeof(job->status_text) - 1);
    pthread_mutex_unlock(&job->mutex);

    sl_event_log_begin_end(&job->log);
    enum sl_status status = sl_job_move(job, state, finished->status_text);
    assert(status != SL_ERR_PRECONDITION && "a runner finished its job twice, or without decoding");
    (void)status;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    event.finished = (Sluice__V1__Finished *)finished;
    tell(job, SL_EVENT_FACT, &event);

    sl_job_spec_cleanup(&job->spec);
    SL_WITH_LOCK(&job->mutex, job->ended_ns = sl_now_ns());
    sl_event_log_close(&job->log);
}

enum sl_status sl_job_tell_token(struct sl_job *job, const Sluice__V1__Token *token) {
    assert(job->n_output < job->spec.max_new_tokens);
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = (Sluice__V1__Token *)token;
    SL_TRY(tell(job, SL_EVENT_FACT, &event));
    SL_LOCKED(&job->mutex);
    job->output[job->n_output++] = token->id;
    job->statistics.n_output_tokens = job->n_output;
    return SL_OK;
}

void sl_job_tell_progress(struct sl_job *job, Sluice__V1__Event__WhatCase kind, const ProtobufCMessage *what) {
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = kind;
    event.notice = (Sluice__V1__Notice *)what; // any member of the union: a message that is only read
    tell(job, SL_EVENT_PROGRESS, &event);
}

void sl_job_set_workers(struct sl_job *job, const char *prefill, const char *decode) {
    SL_LOCKED(&job->mutex);
    strncpy(job->prefill_worker, prefill != NULL ? prefill : "", sizeof(job->prefill_worker) - 1);
    strncpy(job->decode_worker, decode != NULL ? decode : "", sizeof(job->decode_worker) - 1);
}

Sluice__V1__Statistics *sl_job_statistics_lock(struct sl_job *job) {
    pthread_mutex_lock(&job->mutex);
    return &job->statistics;
}

void sl_job_statistics_unlock(struct sl_job *job) {
    pthread_mutex_unlock(&job->mutex);
}

void sl_job_set_transport(struct sl_job *job, const char *transport) {
    strncpy(job->transport, transport, sizeof(job->transport) - 1);
}

void sl_job_set_slots(struct sl_job *job, const Sluice__V1__Statistics *known) {
    static struct sl_slot_statistics nothing; // where there is no memory: statistics are displayed, never acted upon
    free(job->slots);
    job->slots = malloc(sizeof(*job->slots));
    if (job->slots != NULL) {
        sl_slot_statistics_copy(known, job->slots);
        // An ended job is retained with it, and few models have as many heads as there may be.
        struct sl_slot_statistics *fitting = realloc(job->slots, sl_slot_statistics_bytes(job->slots));
        job->slots = fitting != NULL ? fitting : job->slots;
    }
    sl_slot_statistics_attach(job->slots != NULL ? job->slots : &nothing, &job->statistics);
}

// Plain numbers, but for what protobuf-c keeps of a message.
static void copy_retrieval(const Sluice__V1__Retrieval *from, Sluice__V1__Retrieval *to) {
    *to = *from;
    to->base.n_unknown_fields = 0;
    to->base.unknown_fields = NULL;
}

void sl_job_set_offloaded(struct sl_job *job, const Sluice__V1__Statistics *prefill) {
    job->statistics.retrieval = NULL;
    if (prefill->retrieval != NULL) {
        copy_retrieval(prefill->retrieval, &job->retrieval);
        job->statistics.retrieval = &job->retrieval;
    }
}

void sl_job_set_served(struct sl_job *job, const Sluice__V1__Statistics *decode) {
    if (decode->retrieval == NULL) {
        return;
    }
    bool known = job->statistics.retrieval != NULL;
    int64_t offloaded = known ? job->retrieval.offloaded_bytes : 0, reused = known ? job->retrieval.reused_tokens : 0;
    copy_retrieval(decode->retrieval, &job->retrieval);
    job->retrieval.offloaded_bytes = offloaded;
    job->retrieval.reused_tokens = reused;
    job->statistics.retrieval = &job->retrieval;
}

void sl_job_set_errors(struct sl_job *job, const Sluice__V1__Statistics *prefill) {
    free(job->errors);
    job->statistics.errors = NULL;
    job->errors = prefill->errors != NULL ? malloc(sizeof *job->errors) : NULL; // few ask for them
    if (job->errors != NULL) {
        sl_error_statistics_copy(prefill, job->errors);
        sl_error_statistics_attach(job->errors, &job->statistics);
    }
}

void sl_job_add_errors(struct sl_job *job, const Sluice__V1__Statistics *decode) {
    struct sl_error_statistics *steps;
    if (job->spec.demand.n_prefill_tokens == 0) { // decode has read everything
        sl_job_set_errors(job, decode);
    } else if (job->errors != NULL && (steps = malloc(sizeof *steps)) != NULL) {
        sl_error_statistics_copy(decode, steps);
        sl_error_statistics_add_steps(job->errors, steps);
        free(steps);
    }
}

// ---- what others see --------------------------------------------------------------------------------------------

Sluice__V1__Job *sl_job_describe(struct sl_job *job) {
    Sluice__V1__Job message = SLUICE__V1__JOB__INIT;
    message.last_sequence = sl_event_log_last_sequence(&job->log);
    message.job_id = job->id;
    message.label = job->spec.label;
    message.tenant = job->spec.tenant;
    message.recipe = job->spec.recipe;
    message.submitted_ms = job->submitted_ms;
    message.n_prompt_tokens = job->spec.n_tokens;
    message.max_new_tokens = job->spec.max_new_tokens;
    SL_LOCKED(&job->mutex);
    message.state = job->state;
    message.n_output_tokens = job->n_output;
    message.n_read_tokens = job->n_read;
    message.statistics = &job->statistics;
    message.prefill_worker = job->prefill_worker;
    message.decode_worker = job->decode_worker;
    message.status_code = job->status_code;
    message.status_text = job->status_text;
    return (Sluice__V1__Job *)sl_message_copy(&message.base);
}

Sluice__V1__JobState sl_job_state(struct sl_job *job) {
    SL_LOCKED(&job->mutex);
    return job->state;
}

int sl_job_failure(struct sl_job *job, char text_out[SL_STATUS_TEXT_BYTES]) {
    SL_LOCKED(&job->mutex);
    int code = job->status_code;
    memcpy(text_out, job->status_text, SL_STATUS_TEXT_BYTES);
    return code;
}

bool sl_job_is_void(struct sl_job *job) {
    SL_LOCKED(&job->mutex);
    return job->state == CANCELLED || job->another_leads;
}

int64_t sl_job_ended_ns(struct sl_job *job) {
    SL_LOCKED(&job->mutex);
    return job->ended_ns;
}

size_t sl_job_bytes(struct sl_job *job) {
    pthread_mutex_lock(&job->mutex);
    size_t slot_bytes = job->slots != NULL ? sl_slot_statistics_bytes(job->slots) : 0;
    size_t error_bytes = job->errors != NULL ? sizeof *job->errors : 0;
    pthread_mutex_unlock(&job->mutex);
    return sizeof(*job) + slot_bytes + error_bytes + (size_t)job->spec.max_new_tokens * sizeof(*job->output) +
           sl_event_log_bytes(&job->log);
}
