// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see run.h: repeats attempts (attempt.h) until one succeeds or another one cannot help.
 * Invariants: a job enters a final state when its run holds nothing.
 */
#include "coordinator/run/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fiber/fiber.h"
#include "base/log.h"
#include "coordinator/run/attempt.h"
#include "net/trace/trace.h"

// Tells watchers that the job starts again.
static void announce(struct sl_run *run, const char *detail) {
    bool queued = sl_job_state(run->job) == SLUICE__V1__JOB_STATE__QUEUED;
    sl_job_move(run->job, queued ? SLUICE__V1__JOB_STATE__QUEUED : SLUICE__V1__JOB_STATE__PREFILLING, detail);
}

// Returns whether the failure means that a turn should do without the session that the attempt needed.
static bool falls_back(const struct sl_run *run) {
    switch (run->state) {
    case SL_RUN_LOST: // a store's copy is tried again with another decode worker
    case SL_RUN_HOPELESS:
        return run->mode == SL_TURN_KEPT;
    case SL_RUN_NO_SESSION:
    case SL_RUN_STORE_FULL:
    case SL_RUN_UNFIT:
        return run->mode != SL_TURN_WHOLE;
    default:
        return false;
    }
}

// Starts again with the next mode of the turn. That is a retry if a worker had begun to answer.
static bool fall_back(struct sl_run *run, const struct sl_error *why) {
    bool had_begun = run->step >= SL_RUN_WRITING;
    if (sl_run_move(run, SL_RUN_ON_FALL_BACK, NULL) != SL_OK) {
        return false;
    }
    run->mode = sl_turn_next_mode(run);
    if (had_begun) {
        run->retries++;
        sl_run_report_retry(&run->report, run->job);
    }
    sl_log_info("job", "job=%s continues %s: %s", run->job->id,
                run->mode == SL_TURN_STORED ? "with the session's copy in its store" : "by reading everything",
                why->text);
    announce(run, why->text);
    return true;
}

SL_APART static bool retry(struct sl_run *run, const struct sl_error *why) {
    if (sl_run_move(run, SL_RUN_ON_RETRY, NULL) != SL_OK) {
        return false;
    }
    char detail[sizeof(why->text) + 32];
    run->retries++;
    snprintf(detail, sizeof(detail), "retry %" PRId64 ": %s", run->retries, why->text);
    announce(run, detail);
    sl_run_report_retry(&run->report, run->job);
    return true;
}

/*
 * Decides what follows a failed attempt. Returns whether another attempt starts. An event that is not allowed ends the
 * job, so that no error of this coordinator makes it loop.
 */
static bool starts_again(struct sl_run *run, const struct sl_error *why) {
    if (falls_back(run)) {
        return fall_back(run, why);
    }
    bool lost = run->state == SL_RUN_LOST || run->state == SL_RUN_STORE_FULL;
    return lost && run->retries < run->context->max_retries && retry(run, why);
}

void sl_run_job(const struct sl_run_context *context, struct sl_job *job, struct sl_run *run) {
    run->context = context;
    run->job = job;
    run->state = SL_RUN_WAITING;
    run->report.figures = context->figures;
    run->from = run->turn = job->spec.turn;
    run->mode = sl_turn_first_mode(run);
    sl_log_set_job(job->id);
    struct sl_span *span = sl_spans_are_on() ? malloc(sizeof *span) : NULL; // kilobytes of this fiber's stack otherwise
    if (span != NULL) {
        sl_span_begin(span, "job", SL_SPAN_INTERNAL);
    }
    struct sl_error err;
    enum sl_status status;
    do {
        err = (struct sl_error){0};
        status = sl_run_attempt(run, &err);
    } while (status != SL_OK && starts_again(run, &err));
    if (status != SL_OK && run->report.text != NULL) { // an earlier attempt had the answer; only the session is lost
        sl_log_warn("job", "job=%s has its answer, and no session for the next turn: %s", job->id, err.text);
        sl_turn_end_without(run);
        (void)sl_run_move(run, SL_RUN_ON_KEEP_ANSWER, NULL);
        status = SL_OK;
    } else if (status != SL_OK) {
        (void)sl_run_move(run, SL_RUN_ON_GIVE_UP, NULL);
    }
    sl_admission_leave(context->admission, &job->place);
    if (sl_status_is_lost(status)) { // a client may try again, whichever of these it is
        status = SL_ERR_PEER_LOST;
    }
    run->report.another_leads = run->state == SL_RUN_ELSEWHERE;
    sl_run_report_finish(&run->report, job, status, &err);
    if (span != NULL) {
        sl_run_report_span(job, span);
        sl_span_end(span, status, err.text);
        free(span);
    }
    sl_turn_release_left(context->registry, run->mode == SL_TURN_KEPT ? &run->from : NULL, run->left,
                         sl_run_last_term(run));
    sl_turn_await_copy(run);
    free(run->remote_kvs);
}
