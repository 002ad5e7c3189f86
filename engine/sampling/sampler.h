// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses the next token from logits.
 *
 * Design: the random number of step i is a function of (seed, i) alone, so a job that is resumed on another worker
 *         draws the same tokens. Order: penalties, temperature, top-k, top-p, min-p, draw. Temperature 0 is greedy
 *         (ties: lowest id). If a row of logits is in another device's memory, its best logits are copied first
 *         (ops->pick). Mostly they determine the token, which is then the token of the whole row, with the same log
 *         probability except for the last bits of the sum. Otherwise the whole row is copied.
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
    // OpenAI's: for a token of the output, subtracted once for each time it occurs, and once if it occurs. 0 is off.
    float frequency_penalty, presence_penalty; // -2 .. 2
    float min_p; // 0 .. 1: tokens below this share of the most likely token's probability are not drawn; 0 is off
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

// Checks the parameters. SL_ERR_INVALID names the parameter that is out of bounds, NaN included.
enum sl_status sl_sampling_check(const struct sl_sampling *sampling, struct sl_error *err);

// Scratch for one vocabulary; used by one thread at a time.
struct sl_sampler;
enum sl_status sl_sampler_create(int32_t n_vocab, struct sl_sampler **sampler_out, struct sl_error *err);
void sl_sampler_destroy(struct sl_sampler **sampler);

/*
 * Chooses token number `step` of a job. `history` are the ids that the penalties use: prompt and output, whose `step` tokens are the
 * last. logits[n_vocab] are read only. Non-finite logits are treated as minus infinity; if none is finite: SL_ERR_INTERNAL.
 */
enum sl_status sl_sampler_next(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                               const int32_t *history, int64_t n_history, int64_t step, struct sl_token *token_out);

// Writes which candidates of a row sl_sampler_next_of() needs. Returns false if only the whole row will do: because
// nothing cuts it, or a penalty raises logits, or more than SL_MAX_CANDIDATES would be needed.
bool sl_sampler_asks(const struct sl_sampling *sampling, int64_t n_history, struct sl_pick *pick_out);

// Does what sl_sampler_next() does, from the best logits of the row in `picked`. SL_AGAIN: they do not determine the
// token.
enum sl_status sl_sampler_next_of(struct sl_sampler *sampler, const struct sl_sampling *sampling,
                                  const struct sl_picked *picked, const int32_t *history, int64_t n_history,
                                  int64_t step, struct sl_token *token_out);

// A token to be chosen, wherever the logits are: inputs and results of sl_sampler_next().
struct sl_choice {
    struct sl_sampler *sampler;
    const struct sl_sampling *sampling;
    const int32_t *history; // [n_history]
    int64_t n_history, step;
    enum sl_status status; // status of the choice; `token` is written on SL_OK
    struct sl_token token;
    bool by_candidates; // the row was not needed
};

void sl_choice_take_row(struct sl_choice *choice, const float *logits);
// Chooses from candidates. Returns false if the row is needed.
bool sl_choice_take_candidates(struct sl_choice *choice, const struct sl_picked *picked);
