// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training data of retaining heads: a prompt with its answer, read once by the frozen model (the teacher).
 *
 *     features[layer][t] = [q | k | v] of prompt token t before RoPE          the input of engine/model/retaining.c
 *     labels[layer][h][t] = max over rows r and over the group's query heads g of q[r][g] . k[t][h] / sqrt(d), after
 *     RoPE
 *
 *         over the rows from which the answer is written: the prompt's last token and the answer's tokens. The paper
 *         uses the answer's tokens alone; with short answers, the row that begins them matters.
 *
 * Design: features come from the forward pass (sl_features_fn), at the point where the heads themselves would score,
 *         so they include biases and norms of heads. Keys of the labels are read from the session's pages, which are
 *         f32 here: features are before RoPE, whereas the cache has rotated keys. Labels grow row by row, so no
 *         matrix of logits is ever made. Features are kept in bf16, in which published heads compute, labels in f32.
 *
 * Windows: tokens of a sliding-window layer outside the window of every answer row have no label: they are not
 *          trained on. The labels of a layer begin at first[layer].
 */
#pragma once

#include "lab/train/heads.h"
#include "engine/model/forward.h"

struct sl_example {
    int n_layers, n_columns, n_kv_heads;
    int64_t n_tokens;   // tokens of the prompt
    uint16_t *features; // bf16 [n_layers][n_tokens][n_columns]
    float *labels;      // [n_layers][n_kv_heads][n_tokens]
    int64_t *first;     // [n_layers]
};

struct sl_teacher {
    struct sl_engine *engine;
    const struct sl_model *model;
    struct sl_arena *arena; // room for the longest prompt and its answer, in f32
    int chunk;              // tokens per call, at most the engine's rows
};

// Returns the shape of the heads that fit a model.
struct sl_heads_shape sl_heads_shape_of(const struct sl_model_config *config, int n_hidden);

/*
 * Reads tokens[n_tokens], of which the first n_prompt (at least 2) are the prompt and the others the answer.
 * SL_ERR_INVALID: fewer than 2; SL_ERR_RANGE: beyond the model's positions; SL_ERR_EXHAUSTED: no memory.
 */
enum sl_status sl_example_read(const struct sl_teacher *teacher, const int32_t *tokens, int64_t n_tokens,
                               int64_t n_prompt, struct sl_example *example_out, struct sl_error *err);
void sl_example_cleanup(struct sl_example *example);

// Returns one layer in the form that sl_heads_backward() takes; it points into the example.
struct sl_heads_example sl_example_layer(const struct sl_example *example, int layer);
