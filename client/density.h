// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how dense the attention of every layer is: TailorKV's offline score (section 3, equation 8, as a mean), and
 *          the profile beside the model that says which layers are dense.
 *
 *     P_l = mean over the last 32 queries of a prompt of n tokens, and over the layer's query heads, of
 *           1 - (sum of the k largest probabilities of the row), k = int(0.05 n)
 *
 *         0: every head puts all of its attention on few slots; near 1: it spreads over all. Rows see what is before
 *         them (the causal mask also holds among the 32), in f32; the scores of several prompts are averaged. The paper
 *         prints the sum over queries; its threshold of 0.2 fits the mean, which is also what its code computes.
 */
#ifndef SL_CLIENT_DENSITY_H
#define SL_CLIENT_DENSITY_H

#include "client/eval_model.h"
#include "compress/recipe.h"

#define SL_DENSITY_QUERIES    32
#define SL_DENSITY_MIN_TOKENS 64 // of a prompt: fewer have no 5% to speak of

// Share of a row's probability outside of its k largest entries. keep_scratch: [k].
double sl_density_of_row(const struct sl_ops *ops, const float *probabilities, uint32_t n, uint32_t k,
                         uint32_t *keep_scratch);

struct sl_density_progress {
    enum sl_status (*fn)(void *arg, int64_t done, int64_t total); // may be NULL; anything but SL_OK ends the work
    void *arg;
};

// scores_out: [n_layers]. SL_ERR_INVALID: n_tokens < SL_DENSITY_MIN_TOKENS, or beyond the model's positions.
enum sl_status sl_density_measure(const struct sl_eval_model *m, const int32_t *tokens, int64_t n_tokens,
                                  const struct sl_density_progress *progress, double *scores_out, struct sl_error *err);

// Layers whose score is above the threshold; and layer 0, whatever its score: no layer before it predicts its query, so
// it cannot be searched.
void sl_density_choose(const double *scores, int n_layers, double threshold, struct sl_layers *dense_out);

/*
 * Write sluice_profile.json into the model's folder, whole or not at all:
 *     {"version": 1, "dense_preference": [one number a layer], "threshold": number, "dense_layers": [layers]}
 * path_out: where it is. SL_ERR_IO.
 */
enum sl_status sl_density_write(const char *model_dir, const double *scores, int n_layers, double threshold,
                                const struct sl_layers *dense, char *path_out, size_t path_bytes, struct sl_error *err);

#endif
