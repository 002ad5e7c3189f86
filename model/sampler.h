// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: from logits to the next token.
 *
 * Design: the random number of step i is a function of (seed, i) alone, so a job that is resumed on another worker
 *         draws what it would have drawn. Order: repetition penalty, temperature, top-k, top-p, draw. Temperature 0 is
 *         greedy (ties: lowest id).
 */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct sl_sampling {
    float temperature;        // >= 0; 0 is greedy
    int top_k;                // >= 1, or 0 for off
    float top_p;              // (0, 1]
    float repetition_penalty; // > 0; 1 is off (CTRL: positive logits divided, negative multiplied)
    uint64_t seed;
    int n_logprobs; // 0 .. SL_MAX_LOGPROBS alternatives to report with each token
};
#define SL_MAX_LOGPROBS 20

struct sl_token {
    int32_t id;
    float logprob; // log softmax of the raw logits (before penalty and temperature) at id
    int n_alternatives;
    struct {
        int32_t id;
        float logprob;
    } alternatives[SL_MAX_LOGPROBS]; // most likely first
};

// SL_ERR_INVALID names the parameter that is out of bounds, NaN included.
enum sl_status sl_sampling_check(const struct sl_sampling *sampling, struct sl_error *err);

// Scratch for one vocabulary; one per thread.
struct sl_sampler;
enum sl_status sl_sampler_create(int32_t n_vocab, struct sl_sampler **sampler_out, struct sl_error *err);
void sl_sampler_destroy(struct sl_sampler **sampler);

/*
 * Choose token number `step` of a job. `history` are the ids that the repetition penalty looks at (prompt and output).
 * logits[n_vocab] are read only. Non-finite logits are treated as minus infinity; if none is finite: SL_ERR_INTERNAL.
 */
enum sl_status sl_sampler_next(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                               const int32_t *history, int64_t n_history, int64_t step, struct sl_token *token_out);
