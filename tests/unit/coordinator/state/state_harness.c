// SPDX-License-Identifier: Apache-2.0
// Purpose: see state_harness.h.
#include "tests/unit/coordinator/state/state_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/slowness.h"

struct sl_job *harness_job(const char *id) {
    struct sl_job_spec spec = {.n_tokens = 3, .max_new_tokens = HARNESS_NEW_TOKENS, .submitted_ns = sl_now_ns()};
    spec.deadline_ns = sl_deadline_in_ms(60000);
    spec.tokens = calloc(3, sizeof *spec.tokens);
    spec.tokens[1] = 7;
    strcpy(spec.recipe, "full");
    strcpy(spec.label, "a label");
    struct sl_job *job = NULL;
    struct sl_error err;
    assert_int_equal(sl_job_create(id, &spec, &job, &err), SL_OK);
    return job;
}

void harness_decode(struct sl_job *job, int n_tokens) {
    if (sl_job_state(job) != SLUICE__V1__JOB_STATE__DECODING) {
        assert_int_equal(sl_job_move(job, SLUICE__V1__JOB_STATE__PREFILLING, "prefill-0 -> decode-0"), SL_OK);
        sl_job_set_workers(job, "prefill-0", "decode-0");
        Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
        progress.tokens_done = 2;
        sl_job_tell_progress(job, SLUICE__V1__EVENT__WHAT_PREFILL, &progress.base);
        assert_int_equal(sl_job_move(job, SLUICE__V1__JOB_STATE__SHIPPING, ""), SL_OK);
        assert_int_equal(sl_job_move(job, SLUICE__V1__JOB_STATE__DECODING, "decode-0"), SL_OK);
    }
    while (job->n_output < n_tokens) {
        Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
        token.index = job->n_output;
        token.id = 10 + (int32_t)job->n_output;
        token.text = "x";
        assert_int_equal(sl_job_tell_token(job, &token), SL_OK);
    }
}

void harness_finish(struct sl_job *job) {
    Sluice__V1__Statistics statistics = *sl_job_statistics_lock(job);
    sl_job_statistics_unlock(job);
    statistics.ttft_ms = 12.5;
    statistics.kept = SLUICE__V1__KEPT__KEPT_STORED;
    statistics.kept_state = SLUICE__V1__KEPT__KEPT_NOT_LATE;
    statistics.not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.statistics = &statistics;
    finished.text = "all of it";
    sl_job_finish(job, SLUICE__V1__JOB_STATE__DONE, &finished);
}

// As a coordinator does, without a model.
static enum sl_status restore(void *arg, const struct sl_past_jobs *past, struct sl_job **job_out,
                              struct sl_error *err) {
    struct harness *harness = arg;
    const Sluice__V1__GenerateRequest *request = past->accepted->request;
    struct sl_job_spec spec = {.max_new_tokens = request->max_new_tokens, .submitted_ns = sl_now_ns()};
    const struct sl_job_past known = {
        past->accepted->job_id, past->accepted->submitted_ms, past->events, past->n_events, past->end,
        HARNESS_VOCABULARY};
    spec.deadline_ns = sl_deadline_in_ms(60000);
    strncpy(spec.label, request->label, SL_MAX_LABEL);
    harness->n_prompt_tokens = request->tokens ? (int)request->tokens->n_ids : 0;
    harness->no_reuse = request->no_reuse;
    assert_true(harness->n_jobs < HARNESS_MAX_JOBS);
    enum sl_status status = sl_job_restore(&known, &spec, job_out, err);
    if (status == SL_OK) {
        harness->jobs[harness->n_jobs++] = sl_job_ref(*job_out);
    }
    return status;
}

enum sl_status harness_open(struct harness *harness, const char *folder, int64_t max_bytes, struct sl_error *err) {
    const struct sl_state_config config = {.folder = folder, .max_bytes = max_bytes, .model = 42};
    *harness = (struct harness){0};
    enum sl_status status = sl_state_open(&config, &harness->state, err);
    return status == SL_OK ? sl_state_load(harness->state, restore, harness, err) : status;
}

void harness_close(struct harness *harness) {
    sl_state_close(&harness->state);
    for (int i = 0; i < harness->n_jobs; i++) {
        sl_job_unref(&harness->jobs[i]);
    }
    harness->n_jobs = 0;
}

void harness_await_told(struct sl_job *job) {
    int64_t deadline_ns = sl_deadline_in_ms(20000 * SLOWNESS);
    while (sl_event_log_last_sequence(&job->log) < (int64_t)job->log.n_events) {
        assert_true(sl_now_ns() < deadline_ns);
        sl_sleep_ms(1);
    }
}

struct sl_state_stats harness_stats(struct harness *harness) {
    struct sl_state_stats stats;
    sl_state_get_stats(harness->state, &stats);
    return stats;
}

void harness_await(struct harness *harness, int64_t n_jobs, int64_t n_lost) {
    int64_t deadline_ns = sl_deadline_in_ms(20000 * SLOWNESS);
    for (;;) {
        struct sl_state_stats stats = harness_stats(harness);
        if (stats.n_jobs == n_jobs && stats.n_lost == n_lost) {
            return;
        }
        if (sl_now_ns() >= deadline_ns) {
            fail_msg("jobs=%d lost=%d", (int)stats.n_jobs, (int)stats.n_lost);
        }
        sl_sleep_ms(2);
    }
}

int64_t harness_assert_same_events(struct sl_job *before, struct sl_job *now) {
    assert_string_equal(before->id, now->id);
    assert_true(now->log.n_events <= before->log.n_events);
    for (size_t i = 0; i < now->log.n_events; i++) {
        size_t n_before, n_now;
        const uint8_t *was = sl_event_log_packed(&before->log, i, &n_before);
        const uint8_t *is = sl_event_log_packed(&now->log, i, &n_now);
        assert_int_equal(n_now, n_before);
        assert_memory_equal(is, was, n_now);
    }
    return (int64_t)now->log.n_events;
}
