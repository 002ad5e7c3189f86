// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training of retaining heads (Locret, sections 3.2 and 3.3): per layer a two-layer perceptron whose input
 *          is a token's own query, key and value before RoPE. It predicts how much answers will attend to the token.
 *
 *     score = W2 silu(W1 [q | k | v])       W1 [R][C], W2 [Hk][R], C = (H + 2 Hk) d, no biases (equation 4)
 *     label = max over answer rows and over the group's query heads of q . k / sqrt(d), after RoPE (equation 5)
 *     loss  = mean over tokens, heads, layers of smooth-L1(score, label)
 *             + smooth * sum over layers of mean over heads and tokens of (score[t] - score[t + 1])^2   (equation 6)
 *
 * Design: the model is frozen, so a prompt is read once (lab/train/example.h) and layers are independent of each
 *         other. Hidden units are rows here, tokens columns: H^T = W1 X^T passes the unchanged features as the matrix
 *         of ops' matmul and W1 as its rows. So parameters are plain arrays that AdamW changes in place, and
 *         operations on a hidden unit run along a row. Gradients are hand-written and checked against finite
 *         differences.
 *
 * Precision: parameters, moments and sums are f32. Products round as the engine's do (engine/tensor/ops.h): not at
 *            all with features in f32. With features in bf16, a tier that multiplies in bf16 rounds W1 and the
 *            gradients of H as inputs, as it will round the heads' inputs in use.
 *
 * Reproducibility: the number of threads changes no bit.
 */
#pragma once

#include "engine/tensor/device.h"
#include "engine/tensor/ops.h"

struct sl_heads_shape {
    int n_layers, n_columns; // C
    int n_hidden;            // R
    int n_kv_heads;
};

struct sl_heads; // parameters, gradients and AdamW's moments of every layer

/*
 * Creates heads with W1 and W2 normal with this standard deviation: the same bits for the same seed. `ops` and
 * `stream` must outlive them. SL_ERR_EXHAUSTED: no memory.
 */
enum sl_status sl_heads_create(const struct sl_heads_shape *shape, const struct sl_ops *ops, struct sl_stream *stream,
                               double initializer_range, uint64_t seed, struct sl_heads **heads_out,
                               struct sl_error *err);
void sl_heads_destroy(struct sl_heads **heads);

const struct sl_heads_shape *sl_heads_get_shape(const struct sl_heads *heads);

// The training state, each [n]: layer after layer W1, then W2, both padded with zeros to a multiple of 64 bytes. For
// checkpoints and tests.
struct sl_heads_state {
    float *parameters, *gradients, *means, *squares; // AdamW's two moments
    size_t n;
    int memory; // a descriptor of the file with parameters, means and squares; processes started from now on inherit it
    int64_t n_steps; // steps taken
};
struct sl_heads_state *sl_heads_get_state(struct sl_heads *heads);
// Return the offsets of W1 [R][C] and W2 [Hk][R] of a layer within parameters; gradients and moments have the same
// offsets.
size_t sl_heads_w1_offset(const struct sl_heads_shape *shape, int layer);
size_t sl_heads_w2_offset(const struct sl_heads_shape *shape, int layer);

// One layer of one prompt.
struct sl_heads_example {
    const void *features; // [n_tokens][C] of dtype
    enum sl_dtype dtype;  // SL_F32 or SL_BF16
    const float *labels;  // [Hk] rows of n_tokens, label_stride floats apart
    int64_t label_stride;
    int64_t n_tokens; // at least 2
};

struct sl_heads_loss {
    double smooth_l1;  // mean over layers
    double smoothness; // sum over layers
    double overlap;    // between the best tenth by score and by label, mean over heads and layers
};

/*
 * Adds `weight` times the gradients of the loss on this example's layer, and its share of the loss to *loss_inout.
 * Over all layers of examples whose weights sum to 1, that is the loss of the batch. SL_ERR_EXHAUSTED: no memory.
 */
enum sl_status sl_heads_backward(struct sl_heads *heads, int layer, const struct sl_heads_example *example,
                                 double smooth, double weight, struct sl_heads_loss *loss_inout, struct sl_error *err);

struct sl_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    double clip; // clips every element of the gradient to [-clip, clip]; 0: off
};
// Takes one step over all parameters, then zeroes the gradients (Loshchilov and Hutter, as in PyTorch).
void sl_heads_step(struct sl_heads *heads, const struct sl_adamw *adamw);

// Returns the learning rate of step 0, 1, ...: linear up to lr within warm_up of n_steps, then linear down to 0 after
// the last one.
double sl_heads_lr(double lr, int64_t step, int64_t warm_up, int64_t n_steps);
