// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a job as the database tells it, and as the database is told of it.
 *
 *     accepted --> AcceptedJob --> request.h checks it again, as if a client had sent it --> sl_job_restore()
 *     events ----> as they are: watchers see the same numbers as before
 *
 * Design: the prompt is written as tokens and the recipe as canonical text, so that a coordinator with another default
 *         continues the same answer.
 * Trust: digests find damage, not malice: the reader believes no number of a message.
 */
#pragma once

#include "coordinator/jobs/job_restore.h"
#include "coordinator/state/database.h"
#include "proto/sluice/v1/state.pb-c.h"

struct sl_past_jobs {
    Sluice__V1__AcceptedJob *accepted; // owned
    Sluice__V1__Job *end;              // owned; NULL: it has not ended
    struct sl_packed_event *events;    // owned; they point into the bytes of the database's row
    size_t n_events;
};

// Reads what the database has of a job, whose bytes must outlive *past_out. SL_ERR_INVALID: damaged, or not what a
// coordinator writes. SL_ERR_EXHAUSTED.
enum sl_status sl_past_read(const struct sl_database_job *job, struct sl_past_jobs *past_out, struct sl_error *err);
void sl_past_cleanup(struct sl_past_jobs *past);

// Packs an AcceptedJob for a job, malloc'd. model: fingerprint. attached: the job belongs to a call. SL_ERR_EXHAUSTED.
enum sl_status sl_past_accept(const struct sl_job *job, uint64_t model, bool attached, uint8_t **bytes_out,
                              size_t *n_bytes_out, struct sl_error *err);
