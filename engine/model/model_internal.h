// SPDX-License-Identifier: Apache-2.0
// Purpose: the data that model.c and retaining.c build and forward.c reads. E hidden, F intermediate, H query and Hk
// KV heads of d.
#pragma once

#include "engine/model/families.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"

// Retaining heads of one layer; all zero if the model has none. R rows: config.retaining_hidden.
struct sl_retaining {
    struct sl_matrix w1; // [R][(H + 2 Hk) d]
    struct sl_matrix w2; // [Hk][R]
};

struct sl_model_layer {
    struct sl_norm attention_norm; // [E]
    struct sl_matrix qkv;          // [(H + 2 Hk) d][E]: all heads of q, of k, of v
    struct sl_norm q_norm, k_norm; // [d] for every head before RoPE; weight NULL: no such norms
    struct sl_matrix o;            // [E][H d]
    struct sl_norm mlp_norm;       // [E]; weight NULL: the MLP reads attention's input (a parallel block)
    struct sl_matrix up;           // [2 F][E] gated, gate first, or [F][E]
    struct sl_matrix down;         // [E][F]
    int64_t window;                // sliding-window attention; 0: none
    struct sl_retaining retaining;
};

struct sl_model {
    struct sl_model_config config;
    const struct sl_ops *ops;
    struct sl_device *device;                 // holds the weights
    struct sl_tensors *tensors;               // the mapping of every source
    struct sl_safetensors *retaining_tensors; // the same for the retaining heads; NULL: none
    struct sl_rope ropes[SL_MAX_ROPE_SETS];
    double *inv_freq;       // [SL_MAX_ROPE_SETS][rotary_dim / 2], ropes point to it
    float *vectors;         // one allocation that holds all norms and biases
    struct sl_matrix embed; // [V][E]: its rows are looked up, in the mapping if the type allows it
    struct sl_model_layer *layers;
    struct sl_norm final_norm; // [E]
    struct sl_matrix head;     // [V][E], packed; the embedding's rows if tied
    size_t weight_bytes, memory_bytes, embedding_bytes;
    struct sl_shared_weights *shared; // holds the packed matrices; NULL: memory of this process
};

// Returns a hash of what a model's fingerprint has of its configuration, begun with `chain`.
uint64_t sl_model_config_hash(const struct sl_model_config *config, uint64_t chain);

// Opens shared weights for the model, whose tensors are open and which the stream's team packs. If that fails, the log says why, and model->shared is NULL.
void sl_model_share_begin(struct sl_model *model, const char *model_dir, enum sl_weight_format weights,
                          struct sl_stream *stream, struct sl_model_progress *progress);
// Gives the packed weights to other processes. SL_ERR_PEER_STALE: another process's are for other matrices.
// SL_ERR_INTERNAL: they are lost. If others cannot have them, the log says why.
enum sl_status sl_model_share_end(const struct sl_model *model, const char *model_dir, struct sl_error *err);

// A matrix as read from the files, independent of the format that the model keeps.
struct sl_model_source {
    struct sl_tensor_source sources[SL_MAX_PARTS];
    int n;
    struct sl_matrix matrix;
};

// Opens a matrix of a layer, or of the head if layer is -1, in `format`. Close it, also after a failure, in the
// thread that loads and measures.
enum sl_status sl_model_matrix_open(const struct sl_model *model, int layer, int which, enum sl_weight_format format,
                                    struct sl_model_source *source_out, struct sl_error *err);
void sl_model_matrix_close(const struct sl_model *model, struct sl_model_source *source);

// Writes inv_freq_out[i] for i < rotary_dim / 2, of one set.
void sl_rope_inv_freq(const struct sl_model_config *config, int rope_set, double *inv_freq_out);

// Opens the file of retaining heads and checks presence and shape of its tensors, but not values; *tensors_out is
// NULL and *hidden_out 0 if the folder has none. SL_ERR_INVALID, SL_ERR_UNSUPPORTED name the tensor and the expected
// value.
enum sl_status sl_retaining_open(const char *model_dir, const struct sl_model_config *config,
                                 struct sl_safetensors **tensors_out, int *hidden_out, struct sl_error *err);
// Checks values and packs, for every layer; does nothing if there are no heads. After a failure the caller destroys
// the model as usual.
enum sl_status sl_retaining_load(struct sl_model *model, const char *model_dir, struct sl_stream *stream,
                                 struct sl_error *err);
void sl_retaining_unload(struct sl_model *model, int layer);
