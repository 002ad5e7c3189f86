// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/figures.h"

void sl_job_figures_init(struct sl_job_figures *figures) {
    *figures = (struct sl_job_figures){.bytes = SL_PAIR_COUNTERS_INIT};
}

void sl_job_figures_end(struct sl_job_figures *figures, enum sl_status status,
                        const Sluice__V1__Statistics *statistics) {
    enum sl_outcome outcome = status == SL_OK              ? SL_OUTCOME_DONE
                              : status == SL_ERR_CANCELLED ? SL_OUTCOME_CANCELLED
                                                           : SL_OUTCOME_FAILED;
    atomic_fetch_add(&figures->n_jobs[outcome], 1);
    atomic_fetch_add(&figures->n_retries, statistics->retries);
    if (status != SL_OK) {
        return;
    }
    int64_t reused = statistics->n_reused_tokens, n = statistics->n_prompt_tokens;
    reused = reused < 0 ? 0 : reused > n ? n : reused; // not trusted: a worker reports it
    atomic_fetch_add(&figures->reused_tokens, reused);
    atomic_fetch_add(&figures->read_tokens, n - reused);
    sl_histogram_add(&figures->queue, statistics->queue_ms / 1000);
    sl_histogram_add(&figures->prefill, statistics->prefill_ms / 1000);
    sl_histogram_add(&figures->ship, statistics->ship_ms / 1000);
    sl_histogram_add(&figures->first_token, statistics->ttft_ms / 1000);
    if (statistics->n_output_tokens > 1) {
        sl_histogram_add(&figures->per_token, statistics->tpot_ms / 1000);
    }
    sl_histogram_add(&figures->job, statistics->total_ms / 1000);
}

static void write_times(const struct sl_job_figures *figures, FILE *page) {
    sl_histogram_write(
        &figures->queue, page, "sluice_queue_seconds",
        "Jobs that were answered: time until they were admitted, and on the prefill worker until the first chunk.");
    sl_histogram_write(&figures->prefill, page, "sluice_prefill_seconds",
                       "From the first chunk to the end of the last.");
    sl_histogram_write(&figures->ship, page, "sluice_ship_seconds", "Time that shipping added after the last chunk.");
    sl_histogram_write(&figures->first_token, page, "sluice_time_to_first_token_seconds",
                       "From the request to the first token.");
    sl_histogram_write(&figures->per_token, page, "sluice_time_per_output_token_seconds",
                       "The mean of each job after its first token.");
    sl_histogram_write(&figures->job, page, "sluice_job_seconds", "From the request to the end of the answer.");
}

void sl_job_figures_write(const struct sl_job_figures *figures, FILE *page) {
    static const char *const outcomes[SL_N_OUTCOMES_OF_JOBS] = {"done", "failed", "cancelled", "refused"};
    static const char *const pair[2] = {"recipe", "transport"};
    sl_metrics_declare(page, SL_COUNTER, "sluice_jobs_total", "Jobs that have ended; refused: jobs that never began.");
    for (int i = 0; i < SL_N_OUTCOMES_OF_JOBS; i++) {
        sl_metrics_sample(page, "sluice_jobs_total", (double)atomic_load(&figures->n_jobs[i]), "outcome", outcomes[i],
                          NULL);
    }
    sl_metrics_write(page, SL_COUNTER, "sluice_job_retries_total", "Attempts that were lost and repeated.",
                     (double)atomic_load(&figures->n_retries));
    sl_metrics_write(page, SL_COUNTER, "sluice_run_illegal_events_total",
                     "Events that a job run's state does not allow: each is an error of the coordinator.",
                     (double)atomic_load(&figures->n_illegal_events));
    write_times(figures, page);
    sl_metrics_declare(page, SL_COUNTER, "sluice_prompt_tokens_total",
                       "Prompt tokens of jobs that were answered: read for them, or reused.");
    sl_metrics_sample(page, "sluice_prompt_tokens_total", (double)atomic_load(&figures->read_tokens), "source", "read",
                      NULL);
    sl_metrics_sample(page, "sluice_prompt_tokens_total", (double)atomic_load(&figures->reused_tokens), "source",
                      "reused", NULL);
    sl_metrics_write(page, SL_COUNTER, "sluice_output_tokens_total", "Tokens that were sent to clients.",
                     (double)atomic_load(&figures->totals.of[SL_TOTAL_OUTPUT_TOKENS]));
    sl_metrics_declare(page, SL_COUNTER, "sluice_capsule_bytes_total", "Bytes of capsules that arrived for decoding.");
    sl_pair_counters_write(&figures->bytes, 0, page, "sluice_capsule_bytes_total", pair);
    sl_metrics_declare(page, SL_COUNTER, "sluice_full_bytes_total",
                       "Bytes that the same prompts take in f16 without compression.");
    sl_pair_counters_write(&figures->bytes, 1, page, "sluice_full_bytes_total", pair);
}
