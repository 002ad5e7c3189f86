// SPDX-License-Identifier: Apache-2.0
// Purpose: see job_restore.h. The file is not trusted: every event must be one that this job could have appended.
#include "coordinator/jobs/job_restore.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static bool is_final(Sluice__V1__JobState state) {
    return state == SLUICE__V1__JOB_STATE__DONE || state == SLUICE__V1__JOB_STATE__FAILED ||
           state == SLUICE__V1__JOB_STATE__CANCELLED;
}

static enum sl_status take_token(struct sl_job *job, const Sluice__V1__Token *token, int32_t n_vocab) {
    if (token->index != job->n_output || job->n_output >= job->spec.max_new_tokens || token->id < 0 ||
        token->id >= n_vocab) {
        return SL_ERR_INVALID;
    }
    job->output[job->n_output++] = token->id;
    return SL_OK;
}

// Copies the numbers, and what the setters of job.h keep a copy of.
static void take_statistics(struct sl_job *job, const Sluice__V1__Statistics *told) {
    job->statistics = *told;
    job->statistics.base.n_unknown_fields = 0;
    job->statistics.base.unknown_fields = NULL;
    snprintf(job->transport, sizeof job->transport, "%s", told->transport);
    job->statistics.transport = job->transport;
    job->statistics.recipe = job->spec.recipe;
    job->statistics.sampling = &job->sampling;
    sl_job_set_slots(job, told);
    sl_job_set_errors(job, told);
    sl_job_set_offloaded(job, told);
}

static enum sl_status take_end(struct sl_job *job, const Sluice__V1__Finished *finished) {
    if (!is_final(job->state)) {
        return SL_ERR_INVALID;
    }
    job->status_code = finished->status_code;
    job->another_leads = finished->another_leads;
    snprintf(job->status_text, sizeof job->status_text, "%s", finished->status_text);
    if (finished->statistics) {
        take_statistics(job, finished->statistics);
    }
    return SL_OK;
}

// Applies one event to the job. *is_progress_out: it is progress, of which a log keeps a limited number.
static enum sl_status take_event(struct sl_job *job, const struct sl_job_past *past, const Sluice__V1__Event *event,
                                 bool *is_progress_out) {
    *is_progress_out = false;
    switch (event->what_case) {
    case SLUICE__V1__EVENT__WHAT_STATE:
        if (!sl_job_is_edge(job->state, event->state->state) || (is_final(event->state->state) && !past->end)) {
            return SL_ERR_INVALID;
        }
        job->state = event->state->state;
        return SL_OK;
    case SLUICE__V1__EVENT__WHAT_TOKEN:
        return is_final(job->state) ? SL_ERR_INVALID : take_token(job, event->token, past->n_vocab);
    case SLUICE__V1__EVENT__WHAT_FINISHED:
        return take_end(job, event->finished);
    case SLUICE__V1__EVENT__WHAT_PREFILL:
    case SLUICE__V1__EVENT__WHAT_SHIP:
    case SLUICE__V1__EVENT__WHAT_NOTICE:
        *is_progress_out = true;
        return is_final(job->state) ? SL_ERR_INVALID : SL_OK;
    default:
        return SL_ERR_INVALID;
    }
}

static enum sl_status restore_event(struct sl_job *job, const struct sl_job_past *past, size_t i,
                                    struct sl_error *err) {
    const struct sl_packed_event *packed = &past->events[i];
    Sluice__V1__Event *event = sluice__v1__event__unpack(NULL, packed->n_bytes, packed->bytes);
    bool is_last = past->end && i + 1 == past->n_events, is_progress = false;
    enum sl_status status = SL_ERR_INVALID;
    if (event && event->sequence == (int64_t)i + 1 && strcmp(event->job_id, job->id) == 0 &&
        (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) == is_last) {
        status = take_event(job, past, event, &is_progress);
    }
    if (is_last && status == SL_OK) {
        int64_t ago_ms = sl_wall_ms() - event->time_ms;
        job->ended_ns = sl_now_ns() - (ago_ms > 0 && ago_ms < sl_now_ns() / SL_NS_PER_MS ? ago_ms : 0) * SL_NS_PER_MS;
        job->ended_ns -= job->ended_ns == 0;
    }
    if (event) {
        sluice__v1__event__free_unpacked(event, NULL);
    }
    SL_THEN(status, sl_event_log_restore(&job->log, is_progress ? SL_EVENT_PROGRESS : SL_EVENT_FACT, packed->bytes,
                                         packed->n_bytes));
    return status == SL_OK ? SL_OK
                           : sl_fail(err, status == SL_ERR_EXHAUSTED ? status : SL_ERR_INVALID,
                                     "its event %zu is not one of such a job", i + 1);
}

static enum sl_status restore_events(struct sl_job *job, const struct sl_job_past *past, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < past->n_events && status == SL_OK; i++) {
        status = restore_event(job, past, i, err);
    }
    SL_THEN_IF(status, past->end && !is_final(job->state),
               sl_fail(err, SL_ERR_INVALID, "it has an end, and its state is not final"));
    return status;
}

enum sl_status sl_job_restore(const struct sl_job_past *past, struct sl_job_spec *spec, struct sl_job **job_out,
                              struct sl_error *err) {
    SL_FAIL_IF(strlen(past->id) >= SL_JOB_ID_BYTES || spec->max_new_tokens < 1 ||
                   spec->n_delivered > spec->max_new_tokens,
               err, SL_ERR_INVALID, "its id or its length is not valid");
    struct sl_job *job;
    SL_TRY(sl_job_make(past->id, spec, &job, err));
    job->submitted_ms = past->submitted_ms;
    enum sl_status status = restore_events(job, past, err);
    if (status != SL_OK) {
        *spec = job->spec; // the caller's again
        memset(&job->spec, 0, sizeof job->spec);
        sl_job_unref(&job);
        return status;
    }
    job->statistics.n_output_tokens = job->n_output;
    if (past->end) {
        sl_job_set_workers(job, past->end->prefill_worker, past->end->decode_worker);
        sl_event_log_close(&job->log);
    } else {
        job->spec.n_delivered = job->n_output; // what is measured is what is written from now on
    }
    *job_out = job;
    return SL_OK;
}
