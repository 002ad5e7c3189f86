// SPDX-License-Identifier: Apache-2.0
// Purpose: tests of a job's statistics: after several attempts they are those of the one that answered.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "base/clock.h"
#include "coordinator/run/report.h"

enum { N_PROMPT = 1000 };

static struct sl_job *make_job(void) {
    struct sl_job_spec spec = {.n_tokens = N_PROMPT, .max_new_tokens = 4, .submitted_ns = sl_now_ns()};
    struct sl_job *job;
    spec.deadline_ns = sl_deadline_in_ms(60000);
    spec.tokens = calloc(N_PROMPT, sizeof *spec.tokens);
    assert_int_equal(sl_job_create("job-1", &spec, &job, NULL), SL_OK);
    return job;
}

// An attempt whose prompt a prefill worker has read, after it has waited in its line and for a store's disk.
static void read_prompt(struct sl_run_report *report, struct sl_job *job, bool is_told) {
    Sluice__V1__Statistics told = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
    Sluice__V1__Retrieval retrieval = SLUICE__V1__RETRIEVAL__INIT;
    Sluice__V1__ErrorEstimates errors = SLUICE__V1__ERROR_ESTIMATES__INIT; // of one layer
    float share = 0.5f;
    int64_t n_rows = 1;
    told.transport = (char *)"put/shm";
    told.retrieval = &retrieval;
    told.errors = &errors;
    errors.n_evicted_attention = errors.n_evicting_rows = errors.n_key_error = errors.n_value_error = 1;
    errors.evicted_attention = errors.key_error = errors.value_error = &share;
    errors.evicting_rows = &n_rows;
    told.queue_ms = 1e6;
    told.restore_ms = 2e6;
    told.n_reused_tokens = 64;
    told.capsule_bytes = 5000;
    told.slots_per_head = 10;
    told.slots_evicted = told.slots_merged = 7;
    told.prefill_peak_bytes = 6000;
    told.kept = told.kept_state = SLUICE__V1__KEPT__KEPT_STORED;
    told.not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF;
    progress.tokens_total = N_PROMPT;
    progress.resident_bytes = 300;
    sl_run_report_admitted(report, job);
    sl_run_report_start(report);
    sl_run_report_prefill(report, job, &progress);
    sl_run_report_prefill_done(report, job, is_told ? &told : NULL, true);
}

static void assert_nothing_of_prefill(const Sluice__V1__Statistics *statistics) {
    assert_true(statistics->queue_ms < 1e6 && statistics->restore_ms == 0);
    assert_true(statistics->slots_per_head == 0 && statistics->slots_evicted == 0 && statistics->slots_merged == 0);
    assert_true(statistics->kept == 0 && statistics->kept_state == 0 && statistics->not_cached == 0);
    assert_true(statistics->retrieval == NULL && statistics->errors == NULL);
    assert_string_equal(statistics->transport, "");
}

static void test_statistics_are_those_of_the_last_attempt(void **state) {
    (void)state;
    struct sl_job_figures *figures = calloc(1, sizeof *figures);
    struct sl_job *job = make_job();
    struct sl_run_report report = {.figures = figures};
    const Sluice__V1__Statistics *statistics = &job->statistics;
    for (int i = 0; i < 2; i++) {
        read_prompt(&report, job, true);
        assert_true(statistics->queue_ms >= 1e6 && statistics->queue_ms < 2e6);
        assert_true(statistics->restore_ms == 2e6 && statistics->capsule_bytes == 5000);
        assert_int_equal(statistics->prefill_peak_bytes, 6000);
        assert_true(statistics->retrieval != NULL && statistics->errors != NULL);
        assert_string_equal(statistics->transport, "put/shm");
        sl_run_report_retry(&report, job);
    }
    read_prompt(&report, job, false); // its worker tells nothing
    assert_nothing_of_prefill(statistics);
    assert_true(statistics->n_reused_tokens == 0 && statistics->capsule_bytes == 0);
    assert_int_equal(statistics->prefill_peak_bytes, 300);

    read_prompt(&report, job, true);
    sl_run_report_reused(&report, job, 500, 0);
    assert_nothing_of_prefill(statistics);
    assert_true(statistics->n_reused_tokens == 500 && statistics->capsule_bytes == 0 && statistics->ship_ms == 0);

    Sluice__V1__Statistics prefix = SLUICE__V1__STATISTICS__INIT;
    prefix.n_reused_tokens = 700;
    prefix.capsule_bytes = 900;
    read_prompt(&report, job, true);
    sl_run_report_prefix(&report, job, &prefix);
    assert_nothing_of_prefill(statistics);
    assert_true(statistics->n_reused_tokens == 700 && statistics->capsule_bytes == 900);
    assert_int_equal(statistics->retries, 2);
    sl_job_unref(&job);
    free(figures);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_statistics_are_those_of_the_last_attempt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
