// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see run.h: attempt after attempt (attempt.h) until one succeeds or none can help.
 * Invariants: a final state is entered when nothing is held.
 */
#include "coordinator/run/run.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/term.h"
#include "coordinator/run/attempt.h"
#include "net/trace/trace.h"

// A worker has refused our term. Whoever leads meanwhile under a newer one tries again; else the job is another's.
static void hear_refusal(struct sl_run *run, const struct sl_error *err) {
    struct sl_election *election = run->context->election;
    if (election == NULL) {
        run->hopeless = true;
        return;
    }
    sl_election_resign(election, run->term, err->text);
    run->report.another_leads = run->hopeless = sl_election_term(election) == 0;
}

static void announce_retry(struct sl_run *run, const struct sl_error *err) {
    char detail[sizeof(err->text) + 32];
    snprintf(detail, sizeof(detail), "retry %" PRId64 ": %s", run->retries, err->text);
    bool queued = sl_job_state(run->job) == SLUICE__V1__JOB_STATE__QUEUED;
    sl_job_move(run->job, queued ? SLUICE__V1__JOB_STATE__QUEUED : SLUICE__V1__JOB_STATE__PREFILLING, detail);
    sl_run_report_retry(&run->report, run->job);
}

/*
 * Of a turn that could not go on with its session: the next way, if there is one. That is a retry where it had gone on already. A store's copy
 * is tried again elsewhere when a worker was lost with it.
 */
static bool fall_back(struct sl_run *run, enum sl_status status, struct sl_error *err) {
    bool other = sl_status_is_lost(status) || status == SL_ERR_EXHAUSTED || status == SL_ERR_PRECONDITION;
    bool gone = run->way == SL_TURN_KEPT || run->blameless || !sl_status_is_lost(status);
    bool falls = run->way != SL_TURN_WHOLE && other && gone && !run->report.another_leads;
    run->blameless = false;
    if (!falls) {
        return false;
    }
    run->way = sl_turn_next_way(run->context, run->job, run->way, &run->from);
    run->hopeless = false;
    if (run->accepted) {
        run->retries++;
        sl_run_report_retry(&run->report, run->job);
    }
    bool queued = sl_job_state(run->job) == SLUICE__V1__JOB_STATE__QUEUED;
    sl_log_info("job", "job=%s goes on %s: %s", run->job->id,
                run->way == SL_TURN_STORED ? "with the session's copy in its store" : "by reading everything",
                err->text);
    sl_job_move(run->job, queued ? SLUICE__V1__JOB_STATE__QUEUED : SLUICE__V1__JOB_STATE__PREFILLING, err->text);
    return true;
}

void sl_run_job(const struct sl_run_context *context, struct sl_job *job) {
    struct sl_run run = {.context = context,
                         .job = job,
                         .report.figures = context->figures,
                         .from = job->spec.turn,
                         .turn = job->spec.turn};
    run.way = sl_turn_first_way(context, job, &run.from);
    sl_log_set_job(job->id);
    struct sl_span span;
    sl_span_begin(&span, "job", SL_SPAN_INTERNAL);
    struct sl_error err;
    enum sl_status status;
    for (;;) {
        err = (struct sl_error){0};
        status = sl_run_attempt(&run, &err);
        if (sl_term_is_refusal(status, &err)) {
            hear_refusal(&run, &err);
        }
        if (fall_back(&run, status, &err)) {
            continue;
        }
        bool again = sl_status_is_lost(status) || run.elsewhere;
        if (!again || run.hopeless || run.retries >= context->max_retries) {
            break;
        }
        run.retries++;
        announce_retry(&run, &err);
    }
    if (status != SL_OK && run.answered) { // what could not be made again is the session alone
        sl_log_warn("job", "job=%s has its answer, and no session for the next turn: %s", job->id, err.text);
        sl_turn_end_without(context, job, run.report.reason, run.report.text, &run.turn, &run.left);
        status = SL_OK;
    }
    sl_admission_leave(context->admission, &job->place);
    if (sl_status_is_lost(status)) { // how, is between us and workers: a client may try again
        status = SL_ERR_PEER_LOST;
    }
    sl_run_report_finish(&run.report, job, status, &err);
    sl_run_report_span(job, &span);
    sl_span_end(&span, status, err.text);
    sl_turn_release_left(context->registry, run.way == SL_TURN_KEPT ? &run.from : NULL, &run.left,
                         sl_run_last_term(&run));
    sl_turn_await_copy(context, job, &run.copying);
}
