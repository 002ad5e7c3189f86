// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how well a model predicts a text that streams through a bounded cache: the log likelihood of every token,
 *          given the slots that its recipe has kept.
 *
 *     text      | chunk | chunk | chunk | ...        teacher forcing
 *                       ^ the recipe evicts down to its budget, layer by layer, after the chunk's attention
 *
 *         A token is predicted from the slots that its recipe has kept of earlier chunks, and from the earlier tokens
 *         of its own chunk: from at most budget + chunk slots. With chunks of one token this is StreamingLLM's
 *         measurement (section 4.1); larger ones are chunked prefill, and faster. The first tokens of the text count,
 *         too.
 *
 *         Recipes that evict at chunks work as in prefill, those that evict at steps as in decode. A stream has no
 *         end: actions at a prompt's end do not happen (scope=tail), and a recipe without other actions is rejected.
 * Threads: one thread at a time uses the model's engine.
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "lab/eval_model.h"

struct sl_perplexity_config {
    const struct sl_eval_model *model; // its engine takes `chunk` rows
    const int32_t *tokens;             // [n_tokens + 1]
    int64_t n_tokens;                  // to predict: tokens 1 to n_tokens
    int chunk;
    // Reports tokens done so far; may be NULL. A status other than SL_OK ends the work.
    enum sl_status (*progress_fn)(void *arg, int64_t done, int64_t total);
    void *arg;
};

struct sl_perplexity_result {
    double slots;       // mean over layers and KV heads at the end
    int64_t most_slots; // the most that any head held, including the current chunk
};

// Measures a recipe as sl_job_recipe() made it; a ratio budget is relative to n_tokens. nll_out: [n_tokens] negative
// log likelihoods, in nats. SL_ERR_INVALID: the recipe does not stream (it offloads, quantizes, or evicts at a
// prompt's end), or does not fit the model.
enum sl_status sl_perplexity_measure(const struct sl_perplexity_config *config, const struct sl_recipe *recipe,
                                     double *nll_out, struct sl_perplexity_result *result_out, struct sl_error *err);
