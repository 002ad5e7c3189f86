// SPDX-License-Identifier: Apache-2.0
#include "coordinator/state/past.h"

#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "engine/job/job_request.h"

// ---- reading ------------------------------------------------------------------------------------------------------------

static enum sl_status read_accepted(const struct sl_database_job *job, struct sl_past_jobs *past,
                                    struct sl_error *err) {
    Sluice__V1__AcceptedJob *accepted = sluice__v1__accepted_job__unpack(NULL, job->n_accepted, job->accepted);
    past->accepted = accepted;
    SL_FAIL_IF(accepted == NULL || strcmp(accepted->job_id, job->id) != 0 || accepted->request == NULL ||
                   accepted->request->sampling == NULL || strlen(accepted->tenant) >= SL_TENANT_BYTES,
               err, SL_ERR_INVALID, "it does not hold the job that it is named after");
    return SL_OK;
}

// Splits the batches into events: each has its length in front.
static enum sl_status read_events(const struct sl_database_job *job, struct sl_past_jobs *past, struct sl_error *err) {
    size_t cap = 0;
    for (size_t at = 0; at < job->n_events;) {
        uint32_t length;
        SL_FAIL_IF(job->n_events - at < sizeof length, err, SL_ERR_INVALID, "an event is cut short");
        memcpy(&length, job->events + at, sizeof length);
        at += sizeof length;
        SL_FAIL_IF(length > job->n_events - at, err, SL_ERR_INVALID, "an event is cut short");
        SL_FAIL_IF(!sl_array_reserve(&past->events, &cap, past->n_events + 1, sizeof *past->events), err,
                   SL_ERR_EXHAUSTED, "no memory for a job that was there before");
        past->events[past->n_events++] = (struct sl_packed_event){job->events + at, length};
        at += length;
    }
    return past->n_events > 0 ? SL_OK : sl_fail(err, SL_ERR_INVALID, "its events are missing");
}

enum sl_status sl_past_read(const struct sl_database_job *job, struct sl_past_jobs *past_out, struct sl_error *err) {
    struct sl_past_jobs past = {0};
    enum sl_status status = job->damaged ? sl_fail(err, SL_ERR_INVALID, "its digest is another") : SL_OK;
    SL_THEN(status, read_accepted(job, &past, err));
    SL_THEN(status, read_events(job, &past, err));
    if (status == SL_OK && job->end != NULL) {
        past.end = sluice__v1__job__unpack(NULL, job->n_end, job->end);
        status = past.end != NULL ? SL_OK : sl_fail(err, SL_ERR_INVALID, "its end cannot be read");
    }
    SL_TRY_OR(status, sl_past_cleanup(&past));
    *past_out = past;
    return SL_OK;
}

void sl_past_cleanup(struct sl_past_jobs *past) {
    sluice__v1__accepted_job__free_unpacked(past->accepted, NULL);
    sluice__v1__job__free_unpacked(past->end, NULL);
    free(past->events);
    *past = (struct sl_past_jobs){0};
}

// ---- writing ------------------------------------------------------------------------------------------------------------

enum sl_status sl_past_accept(const struct sl_job *job, uint64_t model, bool attached, uint8_t **bytes_out,
                              size_t *n_bytes_out, struct sl_error *err) {
    const struct sl_job_spec *spec = &job->spec;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&spec->sampling);
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT, delivered = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__AcceptedJob accepted = SLUICE__V1__ACCEPTED_JOB__INIT;
    tokens.ids = spec->tokens;
    tokens.n_ids = (size_t)spec->n_tokens;
    delivered.ids = job->output;
    delivered.n_ids = (size_t)spec->n_delivered;
    resumption.delivered = &delivered;
    resumption.recipe = (char *)spec->recipe;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &tokens;
    request.recipe = (char *)spec->recipe;
    request.sampling = &sampling;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = spec->max_new_tokens;
    request.stop = (char **)spec->stop;
    request.n_stop = (size_t)spec->n_stop;
    request.ignore_eos = spec->ignore_eos;
    request.estimate_errors = spec->estimate_errors;
    request.no_reuse = spec->no_reuse;
    request.label = (char *)spec->label;
    request.idempotency_key = (char *)spec->key;
    request.resumption = &resumption;
    accepted.job_id = (char *)job->id;
    accepted.tenant = (char *)spec->tenant;
    accepted.model = model;
    accepted.request = &request;
    accepted.request_hash = spec->request_hash;
    accepted.submitted_ms = job->submitted_ms;
    accepted.n_prompt_tokens = spec->n_tokens;
    accepted.deadline_ms = sl_wall_ms() + sl_deadline_left_ms(spec->deadline_ns);
    accepted.attached = attached;
    *bytes_out = malloc(sluice__v1__accepted_job__get_packed_size(&accepted) + 1);
    SL_FAIL_IF(*bytes_out == NULL, err, SL_ERR_EXHAUSTED, "no memory for what is written of a job");
    *n_bytes_out = sluice__v1__accepted_job__pack(&accepted, *bytes_out);
    return SL_OK;
}
