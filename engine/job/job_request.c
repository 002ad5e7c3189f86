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

#define TEMPERATURE SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE
#define TOP_K       SLUICE__V1__SAMPLING__TOP_K_PRESENT_TOP_K
#define TOP_P       SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P
#define SEED        SLUICE__V1__SAMPLING__SEED_PRESENT_SEED
#define SEED_BITS   53 // bits of a random seed: many JSON readers round 64-bit numbers
#define PENALTY     SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY
#define MIN_P       SLUICE__V1__SAMPLING__MIN_P_PRESENT_MIN_P

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
    if (message->temperature_present_case == TEMPERATURE) {
        sampling.temperature = message->temperature;
    }
    if (message->top_k_present_case == TOP_K) {
        sampling.top_k = message->top_k;
    }
    if (message->top_p_present_case == TOP_P) {
        sampling.top_p = message->top_p;
    }
    if (message->repetition_penalty_present_case == PENALTY) {
        sampling.repetition_penalty = message->repetition_penalty;
    }
    if (message->min_p_present_case == MIN_P) {
        sampling.min_p = message->min_p;
    }
    return sampling;
}

Sluice__V1__Sampling sl_job_sampling_message(const struct sl_sampling *sampling) {
    Sluice__V1__Sampling message = SLUICE__V1__SAMPLING__INIT;
    message.temperature_present_case = TEMPERATURE;
    message.temperature = sampling->temperature;
    message.top_k_present_case = TOP_K;
    message.top_k = sampling->top_k;
    message.top_p_present_case = TOP_P;
    message.top_p = sampling->top_p;
    message.repetition_penalty_present_case = PENALTY;
    message.repetition_penalty = sampling->repetition_penalty;
    message.min_p_present_case = MIN_P;
    message.min_p = sampling->min_p;
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
    message.temperature_present_case = own->has_temperature ? TEMPERATURE : 0;
    message.temperature = own->temperature;
    message.top_k_present_case = own->top_k > 0 ? TOP_K : 0;
    message.top_k = own->top_k;
    message.top_p_present_case = own->top_p > 0 ? TOP_P : 0;
    message.top_p = own->top_p;
    message.repetition_penalty_present_case = own->repetition_penalty > 0 ? PENALTY : 0;
    message.repetition_penalty = own->repetition_penalty;
    message.min_p_present_case = own->min_p > 0 ? MIN_P : 0;
    message.min_p = own->min_p;
    return message;
}
