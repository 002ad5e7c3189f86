// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/token.h"

#include <inttypes.h>

#include "base/log.h"

// Rejects ids outside the vocabulary, which would otherwise reach clients, and the next worker as output to resume.
static enum sl_status check_ids(const struct sl_run_context *context, const char *worker,
                                const Sluice__V1__Token *token, struct sl_error *err) {
    int32_t n_vocab = context->model->n_vocab, id = token->id;
    for (size_t i = 0; id >= 0 && id < n_vocab && i < token->n_alternatives; i++) {
        id = token->alternatives[i]->id;
    }
    return id >= 0 && id < n_vocab
               ? SL_OK
               : sl_fail(err, SL_ERR_PEER_CORRUPT, "%s wrote a token %d, the vocabulary has %d", worker, id, n_vocab);
}

static ProtobufCBinaryData raw_of(const struct sl_run_context *context, int32_t id) {
    size_t n = 0;
    const char *bytes = sl_tokenizer_token_bytes(context->tokenizer, id, &n);
    return (ProtobufCBinaryData){.len = bytes ? n : 0, .data = (uint8_t *)bytes};
}

// Adds the bytes of the token and of its alternatives, if it has alternatives.
static enum sl_status tell(const struct sl_run_context *context, struct sl_job *job, const Sluice__V1__Token *heard) {
    if (heard->n_alternatives == 0) {
        return sl_job_tell_token(job, heard);
    }
    Sluice__V1__Token token = *heard;
    Sluice__V1__Alternative alternatives[SL_MAX_LOGPROBS], *pointers[SL_MAX_LOGPROBS];
    for (size_t i = 0; i < token.n_alternatives; i++) {
        alternatives[i] = *heard->alternatives[i];
        alternatives[i].raw = raw_of(context, alternatives[i].id);
        pointers[i] = &alternatives[i];
    }
    token.alternatives = pointers;
    token.raw = raw_of(context, token.id);
    return sl_job_tell_token(job, &token);
}

enum sl_status sl_run_token_hear(struct sl_run *run, const Sluice__V1__Token *token, struct sl_error *err) {
    struct sl_job *job = run->job;
    const char *worker = sl_worker_name(run->claim.decode);
    int64_t expected = job->n_output; // only this thread writes it
    if (token->index >= 0 && token->index < expected) {
        int32_t before = job->output[token->index];
        sl_log_debug("job", "job=%s token %" PRId64 " from %s again: dropped", job->id, token->index, worker);
        SL_FAIL_IF(token->id != before, err, SL_ERR_PEER_CORRUPT, "%s wrote token %" PRId64 " as %d, clients have %d",
                   worker, token->index, token->id, before);
        return SL_OK;
    }
    SL_FAIL_IF(token->index != expected || expected >= job->spec.max_new_tokens, err, SL_ERR_INTERNAL,
               "%s sent token %" PRId64 ", expected %" PRId64 " of at most %d", worker, token->index, expected,
               job->spec.max_new_tokens);
    SL_FAIL_IF(token->n_alternatives > SL_MAX_LOGPROBS, err, SL_ERR_INTERNAL, "%s sent %zu alternatives, at most %d",
               worker, token->n_alternatives, SL_MAX_LOGPROBS);
    SL_TRY(check_ids(run->context, worker, token, err));
    sl_run_report_token(&run->report, job);
    enum sl_status status = tell(run->context, job, token);
    return status == SL_OK ? SL_OK : sl_fail(err, status, "no memory for the job's events");
}
