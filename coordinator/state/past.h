// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a job as its records tell it, and as they are told of it.
 *
 *     accept record --> AcceptedJob --> request.h checks it again, as if a client had sent it --> sl_job_restore()
 *     events --------> as they are: watchers see the same numbers as before
 *
 * Design: the prompt is written as tokens and the recipe as canonical text, so that a coordinator with another default goes on with the
 *         same answer. A file whose end was begun and not finished is one without an end.
 */
#pragma once

#include "coordinator/jobs/job_restore.h"
#include "coordinator/state/record.h"
#include "proto/sluice/v1/state.pb-c.h"

struct sl_past_jobs {
    Sluice__V1__AcceptedJob *accepted; // owned
    Sluice__V1__Job *end;              // owned; NULL: it has not ended
    struct sl_packed_event *events;    // owned; they point into the file's bytes
    size_t n_events;
    struct sl_record_chain chain; // behind them
    size_t bytes;                 // of the file that count
};

// SL_ERR_INVALID: damaged, or not what a coordinator writes. SL_ERR_EXHAUSTED. The file's bytes must outlive *past_out.
enum sl_status sl_past_read(const char *job_id, const uint8_t *file, size_t bytes, struct sl_past_jobs *past_out,
                            struct sl_error *err);
void sl_past_cleanup(struct sl_past_jobs *past);

/*
 * The beginning of a job's file, malloc'd. model: fingerprint. attached: to a call. SL_ERR_EXHAUSTED.
 */
enum sl_status sl_past_begin(const struct sl_job *job, uint64_t model, bool attached, struct sl_record_chain *chain_out,
                             uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err);
