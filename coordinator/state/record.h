// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what is written of one job, in one file: records, one behind the other.
 *
 * Layout:  "SLUICEJB", version;  then records: kind, bytes, check, digest, payload
 *
 *          JOB     once, first: sluice.v1.AcceptedJob
 *          EVENT   sluice.v1.Event, as watchers get it
 *          END     sluice.v1.Job, as Get answers it; behind it the last two events: the final state, and Finished
 *
 * Design: each digest goes on from the one before, and the first from the job's id: a record that is changed, left out, moved, or
 *         of another file is noticed. `check` covers kind and length, so that a damaged length is not taken for a file cut short.
 *         What a killed process, or a crash of the system, left unfinished at a file's end is no damage: it counts as never written.
 * Trust: nothing is mapped, so that a bad disk is an error and no signal. Digests find damage, not malice: whoever reads a payload
 *        believes none of its numbers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_RECORDS_VERSION    1
#define SL_RECORDS_HEAD_BYTES 16 // of a file
#define SL_RECORD_HEAD_BYTES  24 // of a record

enum sl_record_kind { SL_RECORD_JOB = 1, SL_RECORD_EVENT = 2, SL_RECORD_END = 3 };

// Where a file's records go on from. To write, and to read.
struct sl_record_chain {
    uint64_t digest;
};

// head_out[SL_RECORDS_HEAD_BYTES]: how the file of this job begins.
void sl_records_begin(const char *job_id, uint8_t *head_out, struct sl_record_chain *chain_out);
// head_out[SL_RECORD_HEAD_BYTES]: what stands in front of the payload.
void sl_record_head(struct sl_record_chain *chain, enum sl_record_kind kind, const void *payload, size_t bytes,
                    uint8_t *head_out);

struct sl_record {
    enum sl_record_kind kind;
    const uint8_t *payload; // in the file's bytes
    size_t bytes;
    size_t at; // of its head, in the file
};

struct sl_record_reader {
    const uint8_t *file;
    size_t bytes, at;
    struct sl_record_chain chain; // behind the records that have been read
};

// SL_ERR_INVALID: these are not the records of that job, or of another version.
enum sl_status sl_records_open(const char *job_id, const uint8_t *file, size_t bytes,
                               struct sl_record_reader *reader_out, struct sl_error *err);
// SL_ERR_NOT_FOUND: the end; what may follow was never finished. SL_ERR_INVALID: damage.
enum sl_status sl_records_next(struct sl_record_reader *reader, struct sl_record *record_out, struct sl_error *err);
