// SPDX-License-Identifier: Apache-2.0
#include "engine/job/job_request.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum sl_status sl_job_check_ids(const struct sl_model_config *model, const char *field, const Sluice__V1__TokenIds *ids,
                                struct sl_error *err) {
    for (size_t i = 0; ids != NULL && i < ids->n_ids; i++) {
        SL_FAIL_IF(ids->ids[i] < 0 || ids->ids[i] >= model->n_vocab, err, SL_ERR_INVALID,
                   "%s: ids[%zu] is %d, must be 0 to %d", field, i, ids->ids[i], model->n_vocab - 1);
    }
    return SL_OK;
}

enum sl_status sl_job_read_salt(const ProtobufCBinaryData *field, struct sl_hash128 *salt_out, struct sl_error *err) {
    struct sl_hash128 salt = {{0}};
    SL_FAIL_IF(field->len > 0 && !sl_hash128_read(field->data, field->len, &salt), err, SL_ERR_INVALID,
               "salt: has %zu bytes, must have %zu or none", field->len, sizeof salt);
    *salt_out = salt;
    return SL_OK;
}

#define SEED      SLUICE__V1__SAMPLING__SEED_PRESENT_SEED
#define SEED_BITS 53 // bits of a random seed: many JSON readers round 64-bit numbers

// The fields that a request may leave to the model.
#define FIELDS(X)                                                                                                      \
    X(temperature, TEMPERATURE)                                                                                        \
    X(top_k, TOP_K)                                                                                                    \
    X(top_p, TOP_P)                                                                                                    \
    X(repetition_penalty, REPETITION_PENALTY)                                                                          \
    X(min_p, MIN_P)
#define PRESENT(NAME) SLUICE__V1__SAMPLING__##NAME##_PRESENT_##NAME

bool sl_job_names_seed(const Sluice__V1__Sampling *message) {
    return message != NULL && message->seed_present_case == SEED;
}

enum sl_status sl_job_choose_seed(const Sluice__V1__Sampling *message, const uint64_t *known, uint64_t *seed_out,
                                  struct sl_error *err) {
    uint64_t drawn;
    if (sl_job_names_seed(message) || known != NULL) {
        *seed_out = sl_job_names_seed(message) ? message->seed : *known;
        return SL_OK;
    }
    SL_FAIL_IF(getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn, err, SL_ERR_IO,
               "no random number for a seed: %s", strerror(errno));
    *seed_out = drawn >> (64 - SEED_BITS);
    return SL_OK;
}

struct sl_sampling sl_job_sampling(const Sluice__V1__Sampling *message, const struct sl_model_config *model) {
    static const Sluice__V1__Sampling empty = SLUICE__V1__SAMPLING__INIT;
    static const struct sl_model_sampling silent;
    const struct sl_model_sampling *own = model != NULL ? &model->sampling : &silent;
    message = message != NULL ? message : &empty;
    struct sl_sampling sampling = {
        .temperature = own->has_temperature ? own->temperature : message->usual_temperature,
        .top_k = own->top_k,
        .top_p = own->top_p > 0 ? own->top_p : 1,
        .repetition_penalty = own->repetition_penalty > 0 ? own->repetition_penalty : 1,
        .min_p = own->min_p,
        .frequency_penalty = message->frequency_penalty,
        .presence_penalty = message->presence_penalty,
        .seed = sl_job_names_seed(message) ? message->seed : 0,
        .n_logprobs = message->logprobs,
    };
#define X(field, NAME) sampling.field = message->field##_present_case ? message->field : sampling.field;
    FIELDS(X)
#undef X
    return sampling;
}

Sluice__V1__Sampling sl_job_sampling_message(const struct sl_sampling *sampling) {
    Sluice__V1__Sampling message = SLUICE__V1__SAMPLING__INIT;
#define X(field, NAME)                                                                                                 \
    message.field##_present_case = PRESENT(NAME);                                                                      \
    message.field = sampling->field;
    FIELDS(X)
#undef X
    message.frequency_penalty = sampling->frequency_penalty;
    message.presence_penalty = sampling->presence_penalty;
    message.seed_present_case = SEED;
    message.seed = sampling->seed;
    message.logprobs = sampling->n_logprobs;
    return message;
}

Sluice__V1__Sampling sl_job_model_sampling(const struct sl_model_config *model) {
    const struct sl_model_sampling *own = &model->sampling;
    Sluice__V1__Sampling message = SLUICE__V1__SAMPLING__INIT;
#define X(field, NAME)                                                                                                 \
    message.field##_present_case = own->field > 0 ? PRESENT(NAME) : 0;                                                 \
    message.field = own->field;
    FIELDS(X)
#undef X
    message.temperature_present_case = own->has_temperature ? PRESENT(TEMPERATURE) : 0; // which may be 0
    return message;
}
