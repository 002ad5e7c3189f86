// SPDX-License-Identifier: Apache-2.0
// Purpose: what model.c and retaining.c build and forward.c reads. E hidden, F intermediate, H query and Hk KV heads of d.
#pragma once

#include "engine/model/families.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"

// Retaining heads of one layer; all zero in a model that has none. R rows: config.retaining_hidden.
struct sl_retaining {
    struct sl_matrix q;     // [R][H d]    the columns of W1 that see q,
    struct sl_matrix k;     // [R][Hk d]   those that see k
    struct sl_matrix v;     // [R][Hk d]   and v
    struct sl_matrix w2;    // [Hk][R]
    unsigned char *columns; // owned: what q, k and v are computed from by a tier that does not pack
};

struct sl_model_layer {
    struct sl_norm attention_norm; // [E]
    struct sl_matrix qkv;          // [(H + 2 Hk) d][E]: all heads of q, of k, of v
    struct sl_norm q_norm, k_norm; // [d] of every head before RoPE; weight NULL: there are none
    struct sl_matrix o;            // [E][H d]
    struct sl_norm mlp_norm;       // [E]; weight NULL: the MLP reads what attention read (a parallel block)
    struct sl_matrix up;           // [2 F][E] gated, gate first, or [F][E]
    struct sl_matrix down;         // [E][F]
    int64_t window;                // sliding-window attention; 0: none
    struct sl_retaining retaining;
};

struct sl_model {
    struct sl_model_config config;
    const struct sl_ops *ops;
    struct sl_device *device;                 // of weights
    struct sl_tensors *tensors;               // the mapping behind every source
    struct sl_safetensors *retaining_tensors; // the same of the retaining heads; NULL: there are none
    struct sl_rope ropes[SL_MAX_ROPE_SETS];
    double *inv_freq;       // [SL_MAX_ROPE_SETS][rotary_dim / 2], what ropes point to
    float *vectors;         // one allocation behind all norms and biases
    struct sl_matrix embed; // [V][E]: its rows are looked up, in the mapping where that and the type allow it
    struct sl_model_layer *layers;
    struct sl_norm final_norm; // [E]
    struct sl_matrix head;     // [V][E], packed; the embedding's rows when they are tied
    size_t weight_bytes, memory_bytes, embedding_bytes;
};

// A matrix as it comes out of the files, whatever the model keeps of it.
struct sl_model_source {
    struct sl_tensor_source sources[SL_MAX_PARTS];
    int n;
    struct sl_matrix matrix;
};

// Of a layer, or of the head where layer is -1; of `format`. Close it, also after a failure, in the thread that loads and measures.
enum sl_status sl_model_matrix_open(const struct sl_model *model, int layer, int which, enum sl_weight_format format,
                                    struct sl_model_source *source_out, struct sl_error *err);
void sl_model_matrix_close(const struct sl_model *model, struct sl_model_source *source);

// inv_freq_out[i] for i < rotary_dim / 2, of one set.
void sl_rope_inv_freq(const struct sl_model_config *config, int rope_set, double *inv_freq_out);

// The file of retaining heads, its tensors checked for presence and shape but not for values; *tensors_out NULL and
// *hidden_out 0 where the folder has none. SL_ERR_INVALID, SL_ERR_UNSUPPORTED name the tensor and what was expected.
enum sl_status sl_retaining_open(const char *model_dir, const struct sl_model_config *config,
                                 struct sl_safetensors **tensors_out, int *hidden_out, struct sl_error *err);
// Check values and pack, for every layer; nothing where there are none. After a failure the model is destroyed as ever.
enum sl_status sl_retaining_load(struct sl_model *model, const char *model_dir, struct sl_stream *stream,
                                 struct sl_error *err);
void sl_retaining_unload(struct sl_model *model, int layer);
/*
 * scores_out[m][Hk] from the layer's projections before RoPE: qkv[m][(H + 2 Hk) d]. hidden: scratch [m][R]; scratch:
 * what matmul wants for the largest of these matrices.
 */
void sl_retaining_score(const struct sl_model *model, int layer, struct sl_stream *stream, const float *qkv, int64_t m,
                        float *hidden, void *scratch, float *scores_out);
