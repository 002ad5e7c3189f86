// SPDX-License-Identifier: Apache-2.0
/*
 * To add a family: add a row below; a tiny model of it in tools/golden_families.py, which writes a folder and the
 * logits that Transformers computes under tests/golden/families; a line in README.md. A feature that the forward pass
 * (engine/model/forward.c) lacks needs a new operation, not a row.
 */
#include "engine/model/families.h"

#include <stdio.h>
#include <string.h>

// Most decoders use the tensor names of the first Llama.
#define LLAMA_NAMES                                                                                                    \
    .embed = "model.embed_tokens", .layers = "model.layers", .final_norm = "model.norm", .head = "lm_head",            \
    .attention_norm = "input_layernorm", .mlp_norm = "post_attention_layernorm"

#define Q_K_V                                                                                                          \
    .parts = {{"self_attn.q_proj", SL_EXTENT_Q}, {"self_attn.k_proj", SL_EXTENT_KV}, {"self_attn.v_proj", SL_EXTENT_KV}}
#define GATE_UP .parts = {{"mlp.gate_proj", SL_EXTENT_F}, {"mlp.up_proj", SL_EXTENT_F}}
#define O       .parts = {{"self_attn.o_proj", SL_EXTENT_E}}
#define DOWN    .parts = {{"mlp.down_proj", SL_EXTENT_E}}

// The MLP of all families except Falcon, and its keys.
#define SWIGLU                                                                                                         \
    .norm = SL_NORM_RMS, .gated = true, .activation_key = "hidden_act", .activation = "silu",                          \
    .intermediate_key = "intermediate_size", .eps_key = "rms_norm_eps"

static const struct sl_family families[] = {
    // Llama 1 to 3, and models with the Llama architecture under another name: Yi, TinyLlama, SmolLM2
    {
        .architecture = "LlamaForCausalLM",
        .name = "llama",
        LLAMA_NAMES,
        SWIGLU,
        .matrices = {[SL_QKV] = {Q_K_V, .bias_key = "attention_bias"},
                     [SL_O] = {O, .bias_key = "attention_bias"},
                     [SL_UP] = {GATE_UP, .bias_key = "mlp_bias"},
                     [SL_DOWN] = {DOWN, .bias_key = "mlp_bias"}},
        .eps = 1e-6,
        .max_positions = 2048,
    },
    {
        .architecture = "MistralForCausalLM",
        .name = "mistral",
        LLAMA_NAMES,
        SWIGLU,
        .matrices = {[SL_QKV] = {Q_K_V}, [SL_O] = {O}, [SL_UP] = {GATE_UP}, [SL_DOWN] = {DOWN}},
        .eps = 1e-6,
        .max_positions = 131072,
        .windows = SL_WINDOW_ALL,
        .window = 4096,
        .required = {{"attention_bias", false}, {"mlp_bias", false}},
    },
    // Qwen2 and Qwen2.5
    {
        .architecture = "Qwen2ForCausalLM",
        .name = "qwen2",
        LLAMA_NAMES,
        SWIGLU,
        .matrices = {[SL_QKV] = {Q_K_V, .bias_default = true}, [SL_O] = {O}, [SL_UP] = {GATE_UP}, [SL_DOWN] = {DOWN}},
        .eps = 1e-6,
        .max_positions = 32768,
        .windows = SL_WINDOW_BY_LAYER,
        .window = 4096,
        .required = {{"mlp_bias", false}},
    },
    {
        .architecture = "Qwen3ForCausalLM",
        .name = "qwen3",
        LLAMA_NAMES,
        SWIGLU,
        .q_norm = "self_attn.q_norm",
        .k_norm = "self_attn.k_norm",
        .matrices = {[SL_QKV] = {Q_K_V, .bias_key = "attention_bias"},
                     [SL_O] = {O, .bias_key = "attention_bias"},
                     [SL_UP] = {GATE_UP},
                     [SL_DOWN] = {DOWN}},
        .eps = 1e-6,
        .head_dim = 128,
        .max_positions = 32768,
        .windows = SL_WINDOW_BY_LAYER,
        .window = 4096,
        .required = {{"mlp_bias", false}},
    },
    // Phi-3, 3.5 and Phi-4: the file fuses the tensors of q, k, v and of gate, up as memory does here
    {
        .architecture = "Phi3ForCausalLM",
        .name = "phi3",
        LLAMA_NAMES,
        SWIGLU,
        .matrices = {[SL_QKV] = {.parts = {{"self_attn.qkv_proj", SL_EXTENT_QKV}}},
                     [SL_O] = {O},
                     [SL_UP] = {.parts = {{"mlp.gate_up_proj", SL_EXTENT_GATE_UP}}},
                     [SL_DOWN] = {DOWN}},
        .eps = 1e-5,
        .max_positions = 4096,
        .partial_rotary = true,
        .windows = SL_WINDOW_ALL,
        .required = {{"attention_bias", false}, {"mlp_bias", false}},
    },
    // Falcon-7B. The older ones rotate nothing (alibi), the newer ones interleave the rows of q, k and v
    {
        .architecture = "FalconForCausalLM",
        .name = "falcon",
        .embed = "transformer.word_embeddings",
        .layers = "transformer.h",
        .final_norm = "transformer.ln_f",
        .head = "lm_head",
        .attention_norm = "input_layernorm",
        .matrices = {[SL_QKV] = {.parts = {{"self_attention.query_key_value", SL_EXTENT_QKV}}},
                     [SL_O] = {.parts = {{"self_attention.dense", SL_EXTENT_E}}},
                     [SL_UP] = {.parts = {{"mlp.dense_h_to_4h", SL_EXTENT_F}}},
                     [SL_DOWN] = {.parts = {{"mlp.dense_4h_to_h", SL_EXTENT_E}}}},
        .norm = SL_NORM_LAYER,
        .activation_key = "activation",
        .activation = "gelu",
        .intermediate_key = "ffn_hidden_size",
        .intermediate_ratio = 4,
        .eps_key = "layer_norm_epsilon",
        .eps = 1e-5,
        .n_kv_heads = 1,
        .max_positions = 2048,
        .tied_embeddings = true,
        .required = {{"multi_query", true},
                     {"parallel_attn", true},
                     {"new_decoder_architecture", false},
                     {"alibi", false},
                     {"bias", false},
                     {"apply_residual_connection_post_layernorm", false}},
    },
};

const struct sl_family *sl_family_find(const char *architecture) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].architecture, architecture) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const char *sl_family_list(char *text_out, size_t bytes) {
    size_t used = 0;
    text_out[0] = '\0';
    for (size_t i = 0; i < sizeof families / sizeof families[0] && used < bytes; i++) {
        used += (size_t)snprintf(text_out + used, bytes - used, "%s%s", i > 0 ? ", " : "", families[i].architecture);
    }
    return text_out;
}
