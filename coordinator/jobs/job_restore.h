// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: restores a job of an earlier process as it was: its id, its events under their numbers, and its end if it had one. A job without
 *          an end continues after its last token, as after the loss of a worker.
 */
#pragma once

#include "coordinator/jobs/job.h"

struct sl_packed_event {
    const uint8_t *bytes;
    size_t n_bytes;
};

struct sl_job_past {
    const char *id;
    int64_t submitted_ms;                 // Unix time
    const struct sl_packed_event *events; // [n_events]
    size_t n_events;
    const Sluice__V1__Job *end; // NULL: it has not ended
    int32_t n_vocab;
};

/*
 * Creates the job, with one reference. Takes over *spec (and clears it) on success; a job that has ended needs no prompt. SL_ERR_INVALID:
 * the events are not those of such a job.
 */
enum sl_status sl_job_restore(const struct sl_job_past *past, struct sl_job_spec *spec, struct sl_job **job_out,
                              struct sl_error *err);
