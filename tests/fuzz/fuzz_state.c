// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for a job's file as a start finds it. Whatever it holds, it is refused, or it gives a job with exactly the
 *          file's events, in a state from which further events can follow.
 *
 * Input: records, one after the other: a byte of their kind, two bytes, how many follow; these. Kinds 1 to 3 get their digests; of
 *        others the low two bits are the kind and a digest is wrong. A kind of 0 ends the records: the rest follows them as it is.
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

static size_t make_file(const uint8_t *data, size_t size, uint8_t *file) {
    struct sl_record_chain chain;
    size_t n = SL_RECORDS_HEAD_BYTES;
    sl_records_begin(ID, file, &chain);
    while (size >= 3 && data[0] != 0) {
        size_t bytes = data[1] | (size_t)data[2] << 8;
        bytes = bytes < size - 3 ? bytes : size - 3;
        sl_record_head(&chain, (enum sl_record_kind)(data[0] & 3), data + 3, bytes, file + n);
        memcpy(file + n + SL_RECORD_HEAD_BYTES, data + 3, bytes);
        file[n + SL_RECORD_HEAD_BYTES - 1] ^= (uint8_t)(data[0] > 3 ? data[0] : 0);
        n += SL_RECORD_HEAD_BYTES + bytes;
        data += 3 + bytes;
        size -= 3 + bytes;
    }
    size_t rest = size > 0 ? size - 1 : 0;
    memcpy(file + n, data + (size > 0), rest);
    return n + rest;
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
    uint8_t *file = malloc(SL_RECORDS_HEAD_BYTES + SL_RECORD_HEAD_BYTES * (size / 3 + 1) + size);
    require(file != NULL);
    size_t n = make_file(data, size, file);
    struct sl_past_jobs past;
    struct sl_error err;
    enum sl_status status = sl_past_read(ID, file, n, &past, &err);
    require(status == SL_OK || status == SL_ERR_INVALID);
    if (status == SL_OK) {
        int32_t most = past.accepted->request->max_new_tokens;
        require(past.bytes <= n && past.n_events < n);
        struct sl_job_spec spec = {.max_new_tokens = most > 1000 ? 1000 : most, .submitted_ns = sl_now_ns()};
        const struct sl_job_past known = {
            past.accepted->job_id, past.accepted->submitted_ms, past.events, past.n_events, past.end, 1000};
        struct sl_job *job = NULL;
        status = sl_job_restore(&known, &spec, &job, &err);
        require(status == SL_OK || status == SL_ERR_INVALID || status == SL_ERR_EXHAUSTED);
        if (status == SL_OK) {
            require(job->log.n_events == past.n_events && job->n_output <= spec.max_new_tokens + 1000);
            struct sl_job_report report;
            sl_job_describe(job, &report);
            require(sluice__v1__job__get_packed_size(&report.message) > 0);
            go_on(job);
            sl_job_unref(&job);
        }
        sl_past_cleanup(&past);
    }
    free(file);
    return 0;
}
