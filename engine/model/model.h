// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a Hugging Face model folder as it is: config.json, generation_config.json, model.safetensors (one file or
 *          sharded by index), or a GGUF file in its place (engine/model/gguf/document.h). Memory-mapped, without a
 *          conversion step. engine/model/forward.h runs the forward pass over it.
 *
 * Threads: a model is immutable after loading.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "engine/kvcache/session.h"
#include "engine/model/generation/ends.h"
#include "engine/model/generation/generation.h"
#include "engine/tensor/ops.h"

// How RoPE's frequencies are stretched for contexts longer than those of the original training (engine/model/rope.c).
enum sl_rope_kind { SL_ROPE_DEFAULT, SL_ROPE_LINEAR, SL_ROPE_LLAMA3, SL_ROPE_YARN, SL_ROPE_LONGROPE };

#define SL_MAX_STRETCHES 256 // rotary_dim / 2 for the largest head

struct sl_rope_config {
    enum sl_rope_kind kind;
    double factor;                  // linear, llama3, yarn
    double low_turns, high_turns;   // llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast
    bool truncate;                  // yarn: the ramp begins and ends at whole channels
    int64_t original_max_positions; // llama3, yarn, longrope
    double scale;                   // of cos and sin, 1 by default: yarn's and longrope's attention_factor
    double stretch[SL_MAX_ROPE_SETS][SL_MAX_STRETCHES]; // longrope: short_factor, long_factor
};

struct sl_family;

struct sl_model_config {
    const struct sl_family *family; // a row of engine/model/families.c: properties of the architecture
    int n_layers, n_heads, n_kv_heads, head_dim, hidden, intermediate;
    int rotary_dim; // channels of a head that RoPE rotates
    int32_t n_vocab;
    int64_t max_positions;
    double rope_theta;
    struct sl_rope_config rope;
    float norm_eps;
    bool tied_embeddings;
    bool is_hollow;                // "sluice_hollow": the file of weights is empty, for measurements without a model
    bool has_bias[4];              // for every layer's matrices, by enum sl_layer_matrix
    enum sl_activation activation; // of the MLP
    int64_t window;                // sliding-window attention of window_layers; 0: none
    uint64_t window_layers[SL_MAX_LAYERS / 64]; // bit l % 64 of word l / 64
    enum sl_dtype dtype;
    int32_t bos_id;                    // -1: none
    struct sl_model_ends ends;         // tokens that end an answer: engine/model/generation/ends.h
    int n_listed_ends;                 // the first of them, which generation_config.json lists, or else config.json
    struct sl_model_sampling sampling; // defaults for requests; not part of the fingerprint
    // retaining_heads.safetensors beside the model (Locret): rows of W1; 0: no such file
    int retaining_hidden;
    // sluice_profile.json beside the model (`sluice profile`): the layers whose attention is dense (TailorKV)
    bool has_profile;
    uint64_t dense_layers[SL_MAX_LAYERS / 64]; // as window_layers
};

// Reads the documents alone, no weights, as a coordinator does. SL_ERR_UNSUPPORTED names the unsupported feature.
enum sl_status sl_model_config_load(const char *model_dir, struct sl_model_config *config_out, struct sl_error *err);

// Computes a number that is the same on all machines, from configuration, tokenizer, tensor directory (names, shapes,
// types, sizes, sampled bytes) and the format of the weights. Workers of one cluster must have the same one, and
// every cache key contains it.
enum sl_status sl_model_fingerprint(const char *model_dir, enum sl_weight_format weights, uint64_t *fingerprint_out,
                                    struct sl_error *err);

static inline struct sl_kv_geometry sl_model_geometry(const struct sl_model_config *config) {
    return (struct sl_kv_geometry){config->n_layers, config->n_kv_heads, config->head_dim};
}

/*
 * Returns the set of RoPE frequencies for a job that may reach `n_positions` tokens, prompt and answer together. It
 * is 0, or 1 if that exceeds the original context of a model with a separate set for long contexts (longrope). The
 * reach of a job is known before its first token, so neither chunks nor retries nor the worker change a bit.
 */
int sl_model_rope_set(const struct sl_model_config *config, int64_t n_positions);

// Returns the model's number in names of capsules: capsules whose keys were rotated by different sets must not be
// confused. For set 0 it is the fingerprint itself.
uint64_t sl_model_set_fingerprint(uint64_t fingerprint, int rope_set);

struct sl_model;

// Counts how much of a model's weights is loaded, in bytes of the file. Another thread may read it meanwhile.
struct sl_model_progress {
    _Atomic size_t done_bytes, total_bytes; // total 0: the file is not open yet
    _Atomic bool stops;                     // set by the other thread: the loading ends with SL_ERR_CANCELLED
};

/*
 * Maps and checks every tensor, then packs the matrices for `ops`. `weights`: the format to which those of the layers
 * and the head are quantized, if any (engine/tensor/ops.h). A missing or truncated file, a missing tensor or one of a
 * wrong shape or type is rejected with its name and the expected value. The device of `stream` holds the weights, and
 * must outlive the model. `progress` may be NULL; it is zeros when the call begins.
 */
enum sl_status sl_model_load(const char *model_dir, const struct sl_ops *ops, enum sl_weight_format weights,
                             struct sl_stream *stream, struct sl_model_progress *progress, struct sl_model **model_out,
                             struct sl_error *err);
// Does the same, in memory that this user's other processes share where they load the same files for the same
// operations (engine/tensor/shared_weights.h). The log says why where nothing can be shared. `ops` must pack as the
// tier of its name does, and the device must not consist of ranks.
enum sl_status sl_model_load_shared(const char *model_dir, const struct sl_ops *ops, enum sl_weight_format weights,
                                    struct sl_stream *stream, struct sl_model_progress *progress,
                                    struct sl_model **model_out, struct sl_error *err);
void sl_model_destroy(struct sl_model **model);

const struct sl_model_config *sl_model_get_config(const struct sl_model *model);
const struct sl_rope *sl_model_get_rope(const struct sl_model *model, int rope_set);
size_t sl_model_weight_bytes(const struct sl_model *model); // as stored in the folder

// Returns true if `model` is a GGUF file with matrices of more bits than bf16: f16 or f32. Returns false, too, if it
// cannot be read: loading reports why.
bool sl_model_exceeds_bf16(const char *model);

// Returns the bytes that a forward pass reads: packed matrices (or stored ones, with a tier that does not pack),
// norms, biases and the embedding.
size_t sl_model_memory_bytes(const struct sl_model *model);
// Returns the bytes of the embedding among them; a pass reads one row per token. 0: its rows come from the mapped
// file, or are also the head's.
size_t sl_model_embedding_bytes(const struct sl_model *model);
// Returns the multiply-adds of one token in the layers' matrices.
int64_t sl_model_layer_weights(const struct sl_model *model);
// Computes sum (x - x^)^2 / sum x^2 over the weights that `format` would quantize, from the mapped folder,
// independently of the format in which the model was loaded. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_model_weight_error(const struct sl_model *model, enum sl_weight_format format, struct sl_team *team,
                                     double *relative_out, struct sl_error *err);
