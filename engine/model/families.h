// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what an architecture fixes, as data: how its files name their tensors and the keys of config.json, and which
 *          norms, biases and activations its layers have. families.c is the table; model_config.c reads config.json by
 *          a row of it, model.c loads tensors by it, and the forward pass never asks whose model it runs.
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
    // Every part has a bias where this key of config.json is true, bias_default where the file does not say. No key:
    // bias_default says it, whatever the file.
    const char *bias_key;
    bool bias_default;
};

enum sl_window_rule {
    SL_WINDOW_NEVER,    // the architecture knows none; sliding_window is not read
    SL_WINDOW_ALL,      // sliding_window is that of every layer
    SL_WINDOW_BY_LAYER, // where use_sliding_window is true, of those that layer_types names; without it, from layer
                        // max_window_layers on
};

struct sl_family {
    const char *architecture; // config.json's architectures[0]
    const char *name;         // goes into fingerprints: never changes

    // Tensors, without ".weight" or ".bias". Those of layer i are named <layers>.<i>.<name>. NULL: there is none.
    const char *embed, *layers, *final_norm, *head;
    const char *attention_norm, *q_norm, *k_norm;
    const char *mlp_norm; // NULL: the MLP reads what attention read (a parallel block)
    struct sl_family_matrix matrices[SL_N_LAYER_MATRICES];
    enum sl_norm_kind norm; // of all norms; those of SL_NORM_LAYER have biases
    bool gated;             // the MLP

    // Keys of config.json that have other names elsewhere, and what holds where the file does not say.
    const char *activation_key, *activation, *intermediate_key, *eps_key;
    double eps;
    int intermediate_ratio; // F = this * E; 0: the file must say
    int n_kv_heads;         // fixed by the architecture; 0: num_key_value_heads, or as many as query heads
    int head_dim;           // 0: E / H
    int64_t max_positions;
    bool tied_embeddings;
    bool partial_rotary; // partial_rotary_factor is known; elsewhere it must be 1
    enum sl_window_rule windows;
    int64_t window; // sliding_window where the file does not say (null says: none); 0: none

    // Switches with values that would be another computation: `value` is what we do, and what a file without the key
    // means.
    struct {
        const char *key; // NULL: no more
        bool value;
    } required[8];
};

// NULL: not one of ours.
const struct sl_family *sl_family_find(const char *architecture);
// The architectures of all rows, for messages; cut to `bytes`.
const char *sl_family_list(char *text_out, size_t bytes);
