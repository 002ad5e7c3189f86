// SPDX-License-Identifier: Apache-2.0
// Purpose: see past.h.
#include "coordinator/state/past.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/job/job_request.h"

// ---- reading ------------------------------------------------------------------------------------------------------------

static enum sl_status no_memory(struct sl_error *err) {
    return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job that was there before");
}

static enum sl_status read_accepted(const char *job_id, const struct sl_record *record, struct sl_past_jobs *past,
                                    struct sl_error *err) {
    Sluice__V1__AcceptedJob *accepted = sluice__v1__accepted_job__unpack(NULL, record->bytes, record->payload);
    past->accepted = accepted;
    if (!accepted || strcmp(accepted->job_id, job_id) != 0 || !accepted->request || !accepted->request->sampling ||
        strlen(accepted->tenant) >= SL_TENANT_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "it does not begin with the job that it is named after");
    }
    return SL_OK;
}

static enum sl_status add_event(struct sl_past_jobs *past, const struct sl_record *record, size_t *cap,
                                struct sl_error *err) {
    if (past->n_events == *cap) {
        size_t grown = *cap > 0 ? 2 * *cap : 64;
        struct sl_packed_event *events = realloc(past->events, grown * sizeof *events);
        if (!events) {
            return no_memory(err);
        }
        past->events = events;
        *cap = grown;
    }
    past->events[past->n_events++] = (struct sl_packed_event){record->payload, record->bytes};
    return SL_OK;
}

// Where a file ends whose end was not finished.
struct before_end {
    bool begun;
    size_t at, n_events;
    struct sl_record_chain chain;
};

static enum sl_status read_records(const char *job_id, struct sl_record_reader *reader, struct sl_past_jobs *past,
                                   struct before_end *before, struct sl_error *err) {
    size_t cap = 0;
    for (;;) {
        struct sl_record record;
        struct sl_record_chain chain = reader->chain;
        enum sl_status status = sl_records_next(reader, &record, err);
        if (status == SL_ERR_NOT_FOUND) {
            return past->accepted ? SL_OK : sl_fail(err, SL_ERR_INVALID, "it was never finished");
        }
        if (status != SL_OK) {
            return status;
        }
        if (!past->accepted) {
            status = record.kind == SL_RECORD_JOB ? read_accepted(job_id, &record, past, err)
                                                  : sl_fail(err, SL_ERR_INVALID, "it does not begin with a job");
        } else if (record.kind == SL_RECORD_EVENT) {
            status = add_event(past, &record, &cap, err);
        } else if (record.kind == SL_RECORD_END && !before->begun) {
            *before = (struct before_end){true, record.at, past->n_events, chain};
            past->end = sluice__v1__job__unpack(NULL, record.bytes, record.payload);
            status = past->end ? SL_OK : sl_fail(err, SL_ERR_INVALID, "its end cannot be read");
        } else {
            status = sl_fail(err, SL_ERR_INVALID, "a record of kind %d at byte %zu", (int)record.kind, record.at);
        }
        if (status != SL_OK) {
            return status;
        }
    }
}

enum sl_status sl_past_read(const char *job_id, const uint8_t *file, size_t bytes, struct sl_past_jobs *past_out,
                            struct sl_error *err) {
    struct sl_past_jobs past = {0};
    struct sl_record_reader reader;
    struct before_end before = {0};
    enum sl_status status = sl_records_open(job_id, file, bytes, &reader, err);
    if (status == SL_OK) {
        status = read_records(job_id, &reader, &past, &before, err);
    }
    if (status != SL_OK) {
        sl_past_cleanup(&past);
        return status;
    }
    past.bytes = reader.at;
    past.chain = reader.chain;
    if (before.begun && past.n_events < before.n_events + 2) {
        sluice__v1__job__free_unpacked(past.end, NULL);
        past.end = NULL;
        past.bytes = before.at;
        past.n_events = before.n_events;
        past.chain = before.chain;
    }
    *past_out = past;
    return SL_OK;
}

void sl_past_cleanup(struct sl_past_jobs *past) {
    if (past->accepted) {
        sluice__v1__accepted_job__free_unpacked(past->accepted, NULL);
    }
    if (past->end) {
        sluice__v1__job__free_unpacked(past->end, NULL);
    }
    free(past->events);
    *past = (struct sl_past_jobs){0};
}

// ---- writing ------------------------------------------------------------------------------------------------------------

static enum sl_status pack(const Sluice__V1__AcceptedJob *accepted, struct sl_record_chain *chain_out,
                           uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err) {
    size_t n = sluice__v1__accepted_job__get_packed_size(accepted);
    uint8_t *bytes = malloc(SL_RECORDS_HEAD_BYTES + SL_RECORD_HEAD_BYTES + n);
    if (!bytes || n > UINT32_MAX) {
        free(bytes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for what is written of a job");
    }
    uint8_t *payload = bytes + SL_RECORDS_HEAD_BYTES + SL_RECORD_HEAD_BYTES;
    sluice__v1__accepted_job__pack(accepted, payload);
    sl_records_begin(accepted->job_id, bytes, chain_out);
    sl_record_head(chain_out, SL_RECORD_JOB, payload, n, bytes + SL_RECORDS_HEAD_BYTES);
    *bytes_out = bytes;
    *n_bytes_out = SL_RECORDS_HEAD_BYTES + SL_RECORD_HEAD_BYTES + n;
    return SL_OK;
}

enum sl_status sl_past_begin(const struct sl_job *job, uint64_t model, bool attached, struct sl_record_chain *chain_out,
                             uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err) {
    const struct sl_job_spec *spec = &job->spec;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&spec->sampling);
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT, delivered = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__AcceptedJob accepted = SLUICE__V1__ACCEPTED_JOB__INIT;
    tokens.ids = spec->tokens;
    tokens.n_ids = (size_t)spec->n_tokens;
    delivered.ids = job->output;
    delivered.n_ids = (size_t)spec->n_delivered;
    resumption.delivered = &delivered;
    resumption.recipe = (char *)spec->recipe;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &tokens;
    request.recipe = (char *)spec->recipe;
    request.sampling = &sampling;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = spec->max_new_tokens;
    request.stop = (char **)spec->stop;
    request.n_stop = (size_t)spec->n_stop;
    request.ignore_eos = spec->ignore_eos;
    request.estimate_errors = spec->estimate_errors;
    request.label = (char *)spec->label;
    request.idempotency_key = (char *)spec->key;
    request.resumption = &resumption;
    accepted.job_id = (char *)job->id;
    accepted.tenant = (char *)spec->tenant;
    accepted.model = model;
    accepted.request = &request;
    accepted.request_hash = spec->request_hash;
    accepted.submitted_ms = job->submitted_ms;
    accepted.n_prompt_tokens = spec->n_tokens;
    accepted.deadline_ms = sl_wall_ms() + sl_deadline_left_ms(spec->deadline_ns);
    accepted.attached = attached;
    return pack(&accepted, chain_out, bytes_out, n_bytes_out, err);
}
