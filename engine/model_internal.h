// SPDX-License-Identifier: Apache-2.0
// Purpose: what model.c builds and forward.c reads. Shapes as in a Llama: E hidden, F intermediate, d head_dim.
#ifndef SL_ENGINE_MODEL_INTERNAL_H
#define SL_ENGINE_MODEL_INTERNAL_H

#include "engine/model.h"
#include "engine/safetensors.h"

struct sl_model_layer {
    float *attention_norm; // [E]
    struct sl_matrix q;    // [H d][E]
    struct sl_matrix k;    // [Hk d][E]
    struct sl_matrix v;    // [Hk d][E]
    struct sl_matrix o;    // [E][H d]
    float *mlp_norm;       // [E]
    struct sl_matrix gate; // [F][E]
    struct sl_matrix up;   // [F][E]
    struct sl_matrix down; // [E][F]
};

struct sl_model {
    struct sl_model_config config;
    const struct sl_ops *ops;
    struct sl_safetensors *tensors; // the mapping behind every source
    struct sl_rope rope;
    double *inv_freq;       // [d/2], what rope points to
    float *norms;           // one allocation behind all norm vectors
    struct sl_matrix embed; // [V][E], not packed: rows are read from the mapping
    struct sl_model_layer *layers;
    float *final_norm;     // [E]
    struct sl_matrix head; // [V][E], packed; the embedding's rows when they are tied
    size_t weight_bytes;
};

// Floats from one norm vector to the next: vectors are aligned to 64 bytes.
static inline size_t sl_norm_stride(int n) {
    return ((size_t)n + 15) / 16 * 16;
}

// inv_freq_out[i] for i < head_dim / 2: theta^(-2i/d), stretched as Llama 3.1 does where the configuration says so.
void sl_rope_inv_freq(const struct sl_model_config *config, double *inv_freq_out);

#endif
