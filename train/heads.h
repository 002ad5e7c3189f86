// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training of retaining heads (Locret, sections 3.2 and 3.3): per layer a two-layer perceptron that sees a token's own
 *          query, key and value before RoPE, and predicts how much answers will attend to it.
 *
 *     score = W2 silu(W1 [q | k | v])       W1 [R][(H + 2 Hk) d], W2 [Hk][R], no biases (equation 4)
 *     label = max over answer rows and over the group's query heads of q . k / sqrt(d), after RoPE (equation 5)
 *     loss  = mean over tokens, heads, layers of smooth-L1(score, label)
 *             + smooth * sum over layers of the mean over heads and tokens of (score[k] - score[k + 1])^2   (equation 6)
 *
 * Design: the model is frozen, so a prompt is read once (train/examples.h) and layers are independent of each other.
 *         Products are the ops table's matmul in f32; gradients are written by hand and checked against differences.
 */
#ifndef SL_TRAIN_HEADS_H
#define SL_TRAIN_HEADS_H

#include "base/team.h"
#include "engine/model.h"
#include "engine/ops.h"

struct sl_heads_shape {
    int n_layers, n_columns; // (H + 2 Hk) d
    int n_hidden;            // R
    int n_kv_heads;
};

struct sl_heads; // parameters, gradients and AdamW's moments of every layer

enum sl_status sl_heads_create(const struct sl_heads_shape *shape, const struct sl_ops *ops, struct sl_team *team,
                               float initializer_range, uint64_t seed, struct sl_heads **heads_out,
                               struct sl_error *err);
void sl_heads_destroy(struct sl_heads **heads);

struct sl_heads_loss {
    double smooth_l1, smoothness, overlap; // overlap: of the best tenth by score with the best tenth by label
};

/*
 * Add the gradients of one prompt's layer. features: [n_tokens][n_columns] f32; labels: [n_kv_heads][n_tokens].
 * loss_out: of this layer, added to.
 */
enum sl_status sl_heads_backward(struct sl_heads *heads, int layer, const float *features, const float *labels,
                                 int64_t n_tokens, double smooth, struct sl_heads_loss *loss_out, struct sl_error *err);

struct sl_adamw {
    double lr, beta1, beta2, eps, weight_decay, clip; // clip: of every gradient, by value; 0: not
};
// One step over all parameters, whose gradients are zero afterwards.
void sl_heads_step(struct sl_heads *heads, const struct sl_adamw *adamw);

// Linear to lr over warm_up of n_steps, then linear to 0.
double sl_heads_lr(double lr, int64_t step, int64_t warm_up, int64_t n_steps);

#endif
