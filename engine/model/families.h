// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the properties of architectures, as data: the names of tensors and of keys in config.json, and which
 *          norms, biases and activations layers have. families.c is the table. model_config.c reads config.json by a
 *          row of it, and model.c loads tensors by it. The forward pass never depends on the family.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/ops.h"

// Rows of a tensor, in terms of the configuration: E hidden, F intermediate, H query and Hk KV heads of d.
enum sl_extent {
    SL_EXTENT_NONE,
    SL_EXTENT_Q,       // H d
    SL_EXTENT_KV,      // Hk d
    SL_EXTENT_QKV,     // (H + 2 Hk) d: one tensor of the file holds all three, in this order
    SL_EXTENT_E,       // E
    SL_EXTENT_F,       // F
    SL_EXTENT_GATE_UP, // 2 F: one tensor of the file holds both, in this order
    SL_EXTENT_V,       // the vocabulary
};

// The matrices of a layer (struct sl_model_layer).
enum sl_layer_matrix { SL_QKV, SL_O, SL_UP, SL_DOWN, SL_N_LAYER_MATRICES };

struct sl_family_matrix {
    struct {
        const char *name; // in the layer, without ".weight" or ".bias"; NULL: no more parts
        enum sl_extent rows;
    } parts[SL_MAX_PARTS];
    // Every part has a bias if this key of config.json is true; bias_default if the file does not have the key.
    // Without a key bias_default always applies.
    const char *bias_key;
    bool bias_default;
};

enum sl_window_rule {
    SL_WINDOW_NEVER,    // the architecture has no windows; sliding_window is not read
    SL_WINDOW_ALL,      // sliding_window applies to every layer
    SL_WINDOW_BY_LAYER, // if use_sliding_window is true, for the layers that layer_types names; without it, from
                        // layer max_window_layers on
};

struct sl_family {
    const char *architecture; // config.json's architectures[0]
    const char *name;         // part of fingerprints: must never change

    // Tensors, without ".weight" or ".bias". Those of layer i are named <layers>.<i>.<name>. NULL: no such tensor.
    const char *embed, *layers, *final_norm, *head;
    const char *attention_norm, *q_norm, *k_norm;
    const char *mlp_norm; // NULL: the MLP reads what attention read (a parallel block)
    struct sl_family_matrix matrices[SL_N_LAYER_MATRICES];
    enum sl_norm_kind norm; // of all norms; those of SL_NORM_LAYER have biases
    bool gated;             // the MLP

    // Keys of config.json with family-specific names, and defaults for missing keys.
    const char *activation_key, *activation, *intermediate_key, *eps_key;
    double eps;
    int intermediate_ratio; // F = this * E; 0: the file must say
    int n_kv_heads;         // fixed by the architecture; 0: num_key_value_heads, or as many as query heads
    int head_dim;           // 0: E / H
    int64_t max_positions;
    bool tied_embeddings;
    bool partial_rotary; // partial_rotary_factor is supported; otherwise it must be 1
    enum sl_window_rule windows;
    int64_t window; // default of sliding_window if the file lacks it (null: no window); 0: none

    // Switches whose other values would need another computation: `value` is the supported one, and the default of a
    // file without the key.
    struct {
        const char *key; // NULL: no more
        bool value;
    } required[8];
};

// Returns NULL for an unsupported architecture.
const struct sl_family *sl_family_find(const char *architecture);
// Writes the architectures of all rows, for messages; truncated to `bytes`.
const char *sl_family_list(char *text_out, size_t bytes);
