// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: from logits to the next token.
 *
 * Design: the random number of step i is a function of (seed, i) alone, so a job that is resumed on another worker
 *         draws what it would have drawn. Order: repetition penalty, temperature, top-k, top-p, draw. Temperature 0 is
 *         greedy (ties: lowest id).
 *         Where a row of logits is in the memory of another device, the best of them come here first (ops->pick): mostly they
 *         say which token it is, and then it is the token of the whole row, with its log probability but for the last
 *         bits of the sum. Where they do not, the row comes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/tensor/ops.h"

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

// Scratch for one vocabulary; used by one thread at a time.
struct sl_sampler;
enum sl_status sl_sampler_create(int32_t n_vocab, struct sl_sampler **sampler_out, struct sl_error *err);
void sl_sampler_destroy(struct sl_sampler **sampler);

/*
 * Choose token number `step` of a job. `history` are the ids that the repetition penalty looks at (prompt and output).
 * logits[n_vocab] are read only. Non-finite logits are treated as minus infinity; if none is finite: SL_ERR_INTERNAL.
 */
enum sl_status sl_sampler_next(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                               const int32_t *history, int64_t n_history, int64_t step, struct sl_token *token_out);

// What to ask of a row from which sl_sampler_next_of() is to choose; false: only the whole row will do, because nothing cuts it,
// or a penalty below 1 raises logits, or more than SL_MAX_CANDIDATES are to be kept.
bool sl_sampler_asks(const struct sl_sampling *sampling, int64_t n_history, struct sl_pick *pick_out);

// sl_sampler_next() of the row whose best `picked` holds. SL_AGAIN: they do not say it.
enum sl_status sl_sampler_next_of(struct sl_sampler *sampler, const struct sl_sampling *sampling,
                                  const struct sl_picked *picked, const int32_t *history, int64_t n_history,
                                  int64_t step, struct sl_token *token_out);

// A token that somebody wants chosen, wherever the logits are: what sl_sampler_next() takes, and what it says.
struct sl_choice {
    struct sl_sampler *sampler;
    const struct sl_sampling *sampling;
    const int32_t *history; // [n_history]
    int64_t n_history, step;
    enum sl_status status; // of the choice, in which `token` was written
    struct sl_token token;
    bool by_candidates; // the row was not needed
};

void sl_choice_take_row(struct sl_choice *choice, const float *logits);
// false: the row is needed.
bool sl_choice_take_candidates(struct sl_choice *choice, const struct sl_picked *picked);
