// SPDX-License-Identifier: Apache-2.0
// Purpose: see job_request.h.
#include "job/job_request.h"

enum sl_status sl_job_check_ids(const struct sl_model_config *model, const char *field, const Sluice__V1__TokenIds *ids,
                                struct sl_error *err) {
    for (size_t i = 0; ids != NULL && i < ids->n_ids; i++) {
        if (ids->ids[i] < 0 || ids->ids[i] >= model->n_vocab) {
            return sl_fail(err, SL_ERR_INVALID, "%s: ids[%zu] is %d, must be 0 to %d", field, i, ids->ids[i],
                           model->n_vocab - 1);
        }
    }
    return SL_OK;
}

enum sl_status sl_job_read_salt(const ProtobufCBinaryData *field, struct sl_hash128 *salt_out, struct sl_error *err) {
    struct sl_hash128 salt = {{0}};
    if (field->len > 0 && !sl_hash128_read(field->data, field->len, &salt)) {
        return sl_fail(err, SL_ERR_INVALID, "salt: has %zu bytes, must have %zu or none", field->len, sizeof salt);
    }
    *salt_out = salt;
    return SL_OK;
}

struct sl_sampling sl_job_sampling(const Sluice__V1__Sampling *message) {
    struct sl_sampling sampling = {.top_p = 1, .repetition_penalty = 1};
    if (message == NULL) {
        return sampling;
    }
    sampling.temperature = message->temperature;
    sampling.top_k = message->top_k;
    sampling.seed = message->seed;
    sampling.n_logprobs = message->logprobs;
    if (message->top_p_present_case == SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P) {
        sampling.top_p = message->top_p;
    }
    if (message->repetition_penalty_present_case ==
        SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY) {
        sampling.repetition_penalty = message->repetition_penalty;
    }
    return sampling;
}

Sluice__V1__Sampling sl_job_sampling_message(const struct sl_sampling *sampling) {
    Sluice__V1__Sampling message = SLUICE__V1__SAMPLING__INIT;
    message.temperature = sampling->temperature;
    message.top_k = sampling->top_k;
    message.seed = sampling->seed;
    message.logprobs = sampling->n_logprobs;
    message.top_p_present_case = SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P;
    message.top_p = sampling->top_p;
    message.repetition_penalty_present_case = SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY;
    message.repetition_penalty = sampling->repetition_penalty;
    return message;
}
