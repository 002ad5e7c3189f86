// SPDX-License-Identifier: Apache-2.0
// Purpose: see run_token.h.
#include "coordinator/run_token.h"

// An id of no token would go to clients, and to the next worker as what was written before.
enum sl_status sl_run_token_check(const struct sl_run_context *context, const char *worker,
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

// With its bytes, and those of its alternatives, if there are any.
enum sl_status sl_run_token_tell(const struct sl_run_context *context, struct sl_job *job,
                                 const Sluice__V1__Token *heard) {
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
