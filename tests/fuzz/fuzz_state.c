// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for what a start finds in the database of a job. Whatever the bytes are, the job is refused, or
 *          it has exactly the events of its batches, in a state from which further events can follow.
 *
 * Input: two bytes, the length of the accepted job; two bytes, the length of the end, none if 0; the accepted job; the end;
 *        the batches.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/state/past.h"

#define ID "job-1-1"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static size_t take(const uint8_t **data, size_t *size, size_t n, const uint8_t **out) {
    n = n < *size ? n : *size;
    *out = *data;
    *data += n;
    *size -= n;
    return n;
}

static void go_on(struct sl_job *job) {
    if (job->ended_ns != 0) {
        require(sl_job_move(job, SLUICE__V1__JOB_STATE__PREFILLING, "") == SL_ERR_PRECONDITION);
        return;
    }
    bool queued = job->state == SLUICE__V1__JOB_STATE__QUEUED;
    enum sl_status status =
        sl_job_move(job, queued ? SLUICE__V1__JOB_STATE__QUEUED : SLUICE__V1__JOB_STATE__PREFILLING, "started again");
    require(status == SL_OK || status == SL_ERR_EXHAUSTED); // a log may be full
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    sl_job_finish(job, SLUICE__V1__JOB_STATE__FAILED, &finished);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)sl_log_configure("none", NULL);
    if (size < 4) {
        return 0;
    }
    size_t n_accepted = data[0] | (size_t)data[1] << 8, n_end = data[2] | (size_t)data[3] << 8;
    struct sl_database_job row = {.number = 1, .id = ID};
    data += 4;
    size -= 4;
    row.n_accepted = take(&data, &size, n_accepted, &row.accepted);
    row.n_end = take(&data, &size, n_end, &row.end);
    row.end = n_end > 0 ? row.end : NULL;
    row.n_events = take(&data, &size, size, &row.events);
    struct sl_past_jobs past;
    struct sl_error err;
    enum sl_status status = sl_past_read(&row, &past, &err);
    require(status == SL_OK || status == SL_ERR_INVALID);
    if (status == SL_OK) {
        int32_t most = past.accepted->request->max_new_tokens;
        require(past.n_events > 0 && past.n_events <= row.n_events / 4);
        struct sl_job_spec spec = {.max_new_tokens = most > 1000 ? 1000 : most, .submitted_ns = sl_now_ns()};
        const struct sl_job_past known = {
            past.accepted->job_id, past.accepted->submitted_ms, past.events, past.n_events, past.end, 1000};
        struct sl_job *job = NULL;
        status = sl_job_restore(&known, &spec, &job, &err);
        require(status == SL_OK || status == SL_ERR_INVALID || status == SL_ERR_EXHAUSTED);
        if (status == SL_OK) {
            require(job->log.n_events == past.n_events && job->n_output <= spec.max_new_tokens + 1000);
            Sluice__V1__Job *report = sl_job_describe(job);
            require(report != NULL && sluice__v1__job__get_packed_size(report) > 0);
            sluice__v1__job__free_unpacked(report, NULL);
            go_on(job);
            sl_job_unref(&job);
        }
        sl_past_cleanup(&past);
    }
    return 0;
}
