// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how closely a compressed cache matches the full one: the effect of a recipe on attention and predictions,
 *          in numbers, for one text.
 *
 *     text        | prompt: n_read tokens | continuation: n_new tokens | 1 token that is only predicted |
 *
 *     attention error   of layer l: || o_recipe - o_full || / || o_full ||, Frobenius norms over all rows of the
 *                       continuation. Both attend with the same queries: those of the run over the full cache. The
 *                       recipe's cache gets the same keys and values of the continuation, so the difference is what
 *                       compression did to the prompt, and nothing has been carried from layer to layer.
 *     overlap           Jaccard index of the prompt slots that a head kept with the equally many that the
 *                       continuation's queries attend to most over the full cache (sums over rows, mean over the
 *                       group); mean over heads.
 *     recall            share of the slots that an offloaded layer's search should find, and finds
 *     nll               mean negative log likelihood of the continuation's tokens, each predicted from those before it
 *                       (teacher forcing), reading over the recipe's cache; a recipe's steps of decode take place.
 *
 * Design: the workers' own reader reads the prompt. The recipe's session is then copied as a capsule, as if it had
 *         been shipped: one copy shadows the run over the full cache, the other reads the continuation by itself.
 * Threads: one at a time. Not supported: memory that this process cannot read (activations are used as host memory).
 */
#pragma once

#include "engine/compress/recipe/recipe.h"
#include "lab/eval_model.h"

struct sl_fidelity; // a text over the full cache

struct sl_fidelity_config {
    const struct sl_eval_model *model; // must outlive it, as must tokens
    const int32_t *tokens;             // [n_read + n_new + 1]
    int64_t n_read, n_new;
    // Reports tokens done so far of one create or measure call; may be NULL. A status other than SL_OK ends the work.
    enum sl_status (*progress_fn)(void *arg, int64_t done, int64_t total);
    void *arg;
};

// Reads the text over the full cache.
enum sl_status sl_fidelity_create(const struct sl_fidelity_config *config, struct sl_fidelity **fidelity_out,
                                  struct sl_error *err);
void sl_fidelity_destroy(struct sl_fidelity **fidelity);
double sl_fidelity_full_nll(const struct sl_fidelity *fidelity);

struct sl_fidelity_result {
    char recipe[SL_RECIPE_TEXT_BYTES]; // canonical
    double bytes_per_token;            // of the prompt, in the capsule
    double share;                      // share of the same prompt in f16, uncompressed
    double slots;                      // mean over layers and heads
    double error[SL_MAX_LAYERS], error_mean;
    double overlap[SL_MAX_LAYERS], overlap_mean;
    double recall[SL_MAX_LAYERS],
        recall_mean; // of offloaded layers (lab/measure/fidelity_recall.h); -1: nothing is searched
    double nll;
};

// Measures a recipe as sl_job_recipe() made it. SL_ERR_INVALID, SL_ERR_PRECONDITION: it does not fit the model or the
// prompt.
enum sl_status sl_fidelity_measure(struct sl_fidelity *fidelity, const struct sl_recipe *recipe,
                                   struct sl_fidelity_result *result_out, struct sl_error *err);

// Returns || a - b || / || b ||, from sums of squares; 0 if nothing differs.
double sl_relative_error(double difference_squared, double reference_squared);
// Returns |A and B| / |A or B| of two ascending lists without repetitions; 1 for two empty ones.
double sl_jaccard(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);
// Returns -log softmax(logits)[token].
double sl_negative_log_likelihood(const float *logits, int64_t n, int32_t token);
// Returns sum_i p_i log(p_i / q_i), p and q the softmax of two rows of logits [n]; in nats.
double sl_kl_divergence(const float *p_logits, const float *q_logits, int64_t n);
// Returns the first index of the largest.
int64_t sl_arg_max(const float *logits, int64_t n);
