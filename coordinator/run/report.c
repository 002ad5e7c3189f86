// SPDX-License-Identifier: Apache-2.0
// Purpose: see report.h. proto/sluice/v1/inference.proto defines the statistics.
#include "coordinator/run/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/rpc/rpc.h"
#include "net/trace/trace.h"

#define PROGRESS_EVERY_NS (250 * SL_NS_PER_MS)

static double ms_between(int64_t from_ns, int64_t to_ns) {
    return (double)(to_ns - from_ns) / (double)SL_NS_PER_MS;
}

// Locks the statistics, without those of an earlier attempt: the caller says how this one began, and unlocks.
static Sluice__V1__Statistics *begin_statistics(const struct sl_run_report *report, struct sl_job *job) {
    static const Sluice__V1__Statistics nothing = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__Statistics *statistics = sl_job_statistics_lock(job);
    statistics->queue_ms = ms_between(job->spec.submitted_ns, report->admitted_ns);
    statistics->prefill_ms = statistics->ship_ms = statistics->restore_ms = statistics->slots_per_head = 0;
    statistics->n_reused_tokens = statistics->capsule_bytes = statistics->slots_evicted = statistics->slots_merged = 0;
    statistics->kept = statistics->kept_state = SLUICE__V1__KEPT__KEPT_NOT_SAID;
    statistics->not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID;
    statistics->not_joined = job->spec.not_joined;
    sl_job_set_transport(job, nothing.transport);
    sl_job_set_errors(job, &nothing);
    sl_job_set_offloaded(job, &nothing);
    return statistics;
}

static void note_peak(struct sl_run_report *report, Sluice__V1__Statistics *statistics, int64_t bytes) {
    report->peak_bytes = bytes > report->peak_bytes ? bytes : report->peak_bytes;
    statistics->prefill_peak_bytes = report->peak_bytes;
}

// Returns whether progress of this kind may be reported now; the last report of a kind is always due.
static bool is_due(int64_t *last_ns, bool complete) {
    int64_t now_ns = sl_now_ns();
    if (!complete && *last_ns != 0 && now_ns - *last_ns < PROGRESS_EVERY_NS) {
        return false;
    }
    *last_ns = now_ns;
    return true;
}

// Adds to the totals of all jobs, and of the job's tenant.
static void count(struct sl_run_report *report, struct sl_job *job, enum sl_total total, int64_t n) {
    atomic_fetch_add(&report->figures->totals.of[total], n);
    if (job->place.tenant != NULL) {
        atomic_fetch_add(&job->place.tenant->totals.of[total], n);
    }
}

// Counts a capsule that has arrived at its decode worker.
static void count_capsule(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Statistics *known) {
    int64_t bytes = known->capsule_bytes > 0 ? known->capsule_bytes : 0;
    count(report, job, SL_TOTAL_CAPSULE_BYTES, bytes);
    count(report, job, SL_TOTAL_FULL_BYTES, job->spec.full_bytes);
    sl_pair_counters_add(&report->figures->bytes, job->spec.recipe, known->transport, bytes, job->spec.full_bytes);
}

void sl_run_report_admitted(struct sl_run_report *report, struct sl_job *job) {
    if (report->admitted_ns == 0) {
        report->admitted_ns = sl_now_ns();
        sl_span_record("queue", job->spec.submitted_ns, report->admitted_ns);
        sl_job_statistics_lock(job)->queue_ms = ms_between(job->spec.submitted_ns, report->admitted_ns);
        sl_job_statistics_unlock(job);
    }
}

void sl_run_report_start(struct sl_run_report *report) {
    report->prefill_start_ns = sl_now_ns();
    report->last_prefill_ns = report->last_ship_ns = 0; // the first report of every attempt is due
    report->n_read = report->peak_bytes = 0;
}

// Bounds a number of prompt tokens that a worker reports.
static int64_t bounded(int64_t n_tokens, const struct sl_job *job) {
    return n_tokens < 0 ? 0 : n_tokens > job->statistics.n_prompt_tokens ? job->statistics.n_prompt_tokens : n_tokens;
}

enum sl_prompt_state sl_run_report_prompt_state(const Sluice__V1__PrefillEvent *event) {
    const Sluice__V1__PrefillProgress *progress =
        event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL ? event->prefill : NULL;
    const bool ships = event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_SHIP && event->ship->bytes_total > 0;
    const bool was_read = progress && progress->tokens_total > 0 && progress->tokens_done >= progress->tokens_total;
    return was_read || ships || event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_DONE ? SL_PROMPT_READ
           : progress && progress->restoring                                             ? SL_PROMPT_RESTORING
                                                                                         : SL_PROMPT_READING;
}

void sl_run_report_prefill(struct sl_run_report *report, struct sl_job *job,
                           const Sluice__V1__PrefillProgress *progress) {
    int64_t n_reused = bounded(progress->tokens_reused, job), n_read = bounded(progress->tokens_done, job);
    int64_t n_before = report->n_read > n_reused ? report->n_read : n_reused;
    count(report, job, SL_TOTAL_READ_TOKENS, n_read > n_before ? n_read - n_before : 0);
    report->n_read = n_read;
    Sluice__V1__Statistics *statistics = sl_job_statistics_lock(job);
    job->n_read = n_read;
    statistics->n_reused_tokens = progress->tokens_reused;
    note_peak(report, statistics, progress->resident_bytes);
    sl_job_statistics_unlock(job);
    if (is_due(&report->last_prefill_ns, progress->tokens_done >= progress->tokens_total)) {
        sl_job_tell_progress(job, SLUICE__V1__EVENT__WHAT_PREFILL, &progress->base);
    }
}

void sl_run_report_ship(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__ShipProgress *progress) {
    bool complete = progress->bytes_total > 0 && progress->bytes_sent >= progress->bytes_total;
    if (is_due(&report->last_ship_ns, complete)) {
        sl_job_tell_progress(job, SLUICE__V1__EVENT__WHAT_SHIP, &progress->base);
    }
}

// Prefill's clock splits the time of the call into reading and shipping; without it, all of the time counts as reading.
void sl_run_report_prefill_done(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Statistics *known,
                                bool travels) {
    int64_t now_ns = sl_now_ns();
    double call_ms = ms_between(report->prefill_start_ns, now_ns);
    if (known != NULL && known->ship_ms > 0 && known->ship_ms <= call_ms) { // not trusted: a worker reports it
        sl_span_record("ship", now_ns - (int64_t)(known->ship_ms * SL_NS_PER_MS), now_ns);
    }
    Sluice__V1__Statistics *statistics = begin_statistics(report, job);
    statistics->prefill_ms = call_ms;
    if (job->spec.n_joins > 0) {
        statistics->not_joined = SLUICE__V1__NOT_JOINED__NOT_JOINED_UNAVAILABLE;
    }
    if (known != NULL) {
        statistics->n_reused_tokens = known->n_reused_tokens;
        statistics->queue_ms += known->queue_ms; // on the prefill worker
        statistics->prefill_ms = known->prefill_ms;
        statistics->ship_ms = known->ship_ms;
        statistics->capsule_bytes = known->capsule_bytes;
        statistics->slots_per_head = known->slots_per_head;
        statistics->slots_evicted = known->slots_evicted;
        statistics->slots_merged = known->slots_merged;
        statistics->kept = known->kept;
        statistics->kept_state = known->kept_state;
        statistics->not_cached = known->not_cached;
        statistics->restore_ms = known->restore_ms;
        note_peak(report, statistics, known->prefill_peak_bytes);
        if (travels) {
            count_capsule(report, job, known);
        }
        sl_job_set_transport(job, known->transport);
        sl_job_set_errors(job, known);
        sl_job_set_offloaded(job, known);
    }
    sl_job_statistics_unlock(job);
}

void sl_run_report_reused(struct sl_run_report *report, struct sl_job *job, int64_t n_tokens, int64_t shipped_bytes) {
    count(report, job, SL_TOTAL_READ_TOKENS, job->spec.n_tokens - n_tokens);
    Sluice__V1__Statistics *statistics = begin_statistics(report, job);
    statistics->n_reused_tokens = n_tokens;
    statistics->capsule_bytes = shipped_bytes;
    sl_job_statistics_unlock(job);
}

// Decode's clock splits the time before the first token into fetching and reading.
void sl_run_report_prefix(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Statistics *known) {
    int64_t n_reused = bounded(known->n_reused_tokens, job);
    count(report, job, SL_TOTAL_READ_TOKENS, job->spec.n_tokens - n_reused);
    count_capsule(report, job, known);
    Sluice__V1__Statistics *statistics = begin_statistics(report, job);
    statistics->n_reused_tokens = n_reused;
    statistics->prefill_ms = known->prefill_ms;
    statistics->ship_ms = known->ship_ms;
    statistics->capsule_bytes = known->capsule_bytes;
    statistics->slots_per_head = known->slots_per_head;
    sl_job_set_transport(job, known->transport);
    sl_job_statistics_unlock(job);
}

void sl_run_report_token(struct sl_run_report *report, struct sl_job *job) {
    count(report, job, SL_TOTAL_OUTPUT_TOKENS, 1);
    if (report->first_token_ns == 0) {
        report->first_token_ns = sl_now_ns();
        sl_span_record("first token", report->decode_start_ns, report->first_token_ns);
        double ttft_ms = ms_between(job->spec.submitted_ns, report->first_token_ns);
        count(report, job, SL_TOTAL_FIRST_TOKENS, 1);
        count(report, job, SL_TOTAL_FIRST_US, (int64_t)(1000 * ttft_ms));
        sl_job_statistics_lock(job)->ttft_ms = ttft_ms;
        sl_job_statistics_unlock(job);
    }
}

void sl_run_report_notice(struct sl_run_report *report, struct sl_job *job, const Sluice__V1__Notice *notice) {
    int64_t sum;
    if (notice->fallbacks > 0 && !__builtin_add_overflow(report->fallbacks_told, notice->fallbacks, &sum)) {
        report->fallbacks_told = sum;
    }
    sl_job_tell_progress(job, SLUICE__V1__EVENT__WHAT_NOTICE, &notice->base);
}

enum sl_status sl_run_report_decode_done(struct sl_run_report *report, struct sl_job *job,
                                         const Sluice__V1__DecodeDone *done, struct sl_error *err) {
    SL_FAIL_IF(done->reason != SLUICE__V1__FINISHED__REASON__STOP_TOKEN &&
                   done->reason != SLUICE__V1__FINISHED__REASON__STOP_STRING &&
                   done->reason != SLUICE__V1__FINISHED__REASON__LENGTH,
               err, SL_ERR_INTERNAL, "%s ended with the reason %d", job->decode_worker, (int)done->reason);
    char *text = strdup(done->text);
    SL_FAIL_IF(text == NULL, err, SL_ERR_EXHAUSTED, "no memory for the answer");
    free(report->text); // of an attempt whose worker was lost after its answer
    report->text = text;
    report->reason = done->reason;
    report->decode_end_ns = sl_now_ns();
    Sluice__V1__Statistics *statistics = sl_job_statistics_lock(job);
    if (done->statistics != NULL) {
        statistics->decode_resident_bytes = done->statistics->decode_resident_bytes;
        statistics->slots_evicted += done->statistics->slots_evicted; // in addition to prefill's
        statistics->slots_merged += done->statistics->slots_merged;
        statistics->slots_fetched = done->statistics->slots_fetched;
        sl_job_set_slots(job, done->statistics);
        sl_job_add_errors(job, done->statistics);
        sl_job_set_served(job, done->statistics);
        if (__builtin_add_overflow(job->retrieval.fallbacks, report->fallbacks_lost, &job->retrieval.fallbacks)) {
            job->retrieval.fallbacks = INT64_MAX; // not trusted: a worker reports it
        }
    }
    int64_t n_written = job->n_output - job->spec.n_delivered; // by this coordinator
    if (n_written > 1) {
        statistics->tpot_ms = ms_between(report->first_token_ns, report->decode_end_ns) / (double)(n_written - 1);
    }
    sl_job_statistics_unlock(job);
    return SL_OK;
}

void sl_run_report_retry(struct sl_run_report *report, struct sl_job *job) {
    int64_t sum;
    if (!__builtin_add_overflow(report->fallbacks_lost, report->fallbacks_told, &sum)) {
        report->fallbacks_lost = sum;
    }
    report->fallbacks_told = 0;
    sl_job_statistics_lock(job)->retries++;
    sl_job_statistics_unlock(job);
}

void sl_run_report_finish(struct sl_run_report *report, struct sl_job *job, enum sl_status status,
                          const struct sl_error *err) {
    Sluice__V1__Statistics *statistics = sl_job_statistics_lock(job);
    int64_t end_ns = report->decode_end_ns != 0 ? report->decode_end_ns : sl_now_ns();
    statistics->total_ms = ms_between(job->spec.submitted_ns, end_ns);
    Sluice__V1__Statistics final = *statistics; // transport keeps pointing into the job
    sl_job_statistics_unlock(job);

    sl_job_figures_end(report->figures, status, &final);
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.statistics = &final;
    finished.status_code = sl_rpc_code_of_status(status);
    Sluice__V1__JobState state;
    if (status == SL_OK) {
        state = SLUICE__V1__JOB_STATE__DONE;
        finished.reason = report->reason;
        finished.text = report->text;
    } else {
        bool cancelled = status == SL_ERR_CANCELLED;
        state = cancelled ? SLUICE__V1__JOB_STATE__CANCELLED : SLUICE__V1__JOB_STATE__FAILED;
        finished.reason =
            cancelled ? SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT : SLUICE__V1__FINISHED__REASON__ERROR;
        finished.status_text = (char *)err->text;
        finished.another_leads = report->another_leads;
    }
    sl_job_finish(job, state, &finished);
    free(report->text);
    report->text = NULL;
}

void sl_run_report_span(struct sl_job *job, struct sl_span *span) {
    const Sluice__V1__Statistics *statistics = sl_job_statistics_lock(job);
    sl_span_set_text(span, "sluice.job", job->id);
    sl_span_set_text(span, "sluice.recipe", job->spec.recipe);
    sl_span_set_int(span, "gen_ai.usage.input_tokens", job->spec.n_tokens);
    sl_span_set_int(span, "gen_ai.usage.output_tokens", job->n_output);
    sl_span_set_int(span, "sluice.reused_tokens", statistics->n_reused_tokens);
    sl_span_set_int(span, "sluice.capsule_bytes", statistics->capsule_bytes);
    sl_span_set_int(span, "sluice.full_bytes", job->spec.full_bytes);
    sl_span_set_int(span, "sluice.retries", statistics->retries);
    sl_span_set_real(span, "sluice.time_to_first_token_ms", statistics->ttft_ms);
    sl_job_statistics_unlock(job);
}
