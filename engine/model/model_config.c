// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: config.json and generation_config.json, checked, and data of the files beside them (retaining heads,
 *          profile). An unsupported feature that a file requests is rejected by name, so a model either runs as its
 *          authors intended or does not run.
 *
 * Design: a row of engine/model/families.h defines which keys a family has and their defaults. A reader stores the
 *         first failure; later getters do nothing. So each field below takes one line.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/gguf/document.h"
#include "engine/model/gguf/special_tokens.h"
#include "engine/model/model_internal.h"

#define MAX_DIMENSION (1 << 20) // limit of hidden, intermediate: products of two of them fit into int64_t
#define MAX_VOCAB     (1 << 24)
// Bounds of every number that is not an integer. Sensible values are far within; beyond them norm_eps would be 0 or
// infinite in f32, and RoPE frequencies infinite.
#define MIN_NUMBER 1e-30
#define MAX_NUMBER 1e30

struct reader {
    const json_t *object;
    const char *file;
    enum sl_status status;
    struct sl_error *err;
};

// Stores a failure, unless there is one already. The text follows the file's name.
static void __attribute__((format(printf, 3, 4)))
fail(struct reader *r, enum sl_status status, const char *format, ...) {
    if (r->status == SL_OK) {
        char text[sizeof r->err->text];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        r->status = sl_fail(r->err, status, "%s: %s", r->file, text);
    }
}

static bool is_given(const json_t *value) {
    return value != NULL && !json_is_null(value);
}

// Reads an integer. `fallback` INT64_MIN: the key is required.
static int64_t get_int(struct reader *r, const char *key, int64_t fallback, int64_t min, int64_t max) {
    if (r->status != SL_OK) {
        return 0;
    }
    const json_t *value = json_object_get(r->object, key);
    if (!is_given(value)) {
        if (fallback == INT64_MIN) {
            fail(r, SL_ERR_INVALID, "%s is missing", key);
        }
        return fallback;
    }
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max) {
        fail(r, SL_ERR_INVALID, "%s must be an integer between %lld and %lld", key, (long long)min, (long long)max);
        return 0;
    }
    return json_integer_value(value);
}

static bool is_positive(double number) {
    return number >= MIN_NUMBER && number <= MAX_NUMBER;
}

static double get_positive(struct reader *r, const json_t *object, const char *key, double fallback) {
    if (r->status != SL_OK) {
        return 0.0;
    }
    const json_t *value = json_object_get(object, key);
    double number = is_given(value) ? json_number_value(value) : fallback;
    if ((is_given(value) && !json_is_number(value)) || !is_positive(number)) {
        fail(r, SL_ERR_INVALID, "%s must be a positive number, %g to %g", key, MIN_NUMBER, MAX_NUMBER);
    }
    return number;
}

static bool get_bool(struct reader *r, const char *key, bool fallback) {
    const json_t *value = json_object_get(r->object, key);
    if (r->status != SL_OK || !is_given(value)) {
        return fallback;
    }
    if (!json_is_boolean(value)) {
        fail(r, SL_ERR_INVALID, "%s must be true or false", key);
    }
    return json_is_true(value);
}

static const char *get_string(struct reader *r, const json_t *object, const char *key, const char *fallback) {
    const json_t *value = json_object_get(object, key);
    if (r->status != SL_OK || !is_given(value)) {
        return fallback;
    }
    if (!json_is_string(value)) {
        fail(r, SL_ERR_INVALID, "%s must be a string", key);
        return fallback;
    }
    return json_string_value(value);
}

static void refuse(struct reader *r, const char *key, const char *found, const char *supported) {
    fail(r, SL_ERR_UNSUPPORTED, "%s is %.64s; only %s is supported", key, found, supported);
}

static void read_architecture(struct reader *r, struct sl_model_config *c) {
    const json_t *first = json_array_get(json_object_get(r->object, "architectures"), 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "(not given)";
    c->family = sl_family_find(name);
    if (c->family == NULL) {
        char list[256];
        refuse(r, "architectures", name, sl_family_list(list, sizeof list));
        return;
    }
    for (size_t i = 0; c->family->required[i].key != NULL; i++) {
        bool value = c->family->required[i].value;
        if (get_bool(r, c->family->required[i].key, value) != value) {
            refuse(r, c->family->required[i].key, value ? "false" : "true", value ? "true" : "false");
        }
    }
    if (is_given(json_object_get(r->object, "quantization_config"))) {
        refuse(r, "quantization_config", "given", "an unquantized checkpoint");
    }
}

// Reads the MLP's activation, and which matrices have biases.
static void read_layer(struct reader *r, struct sl_model_config *c) {
    static const struct {
        const char *name; // the name in Transformers
        enum sl_activation activation;
    } activations[] = {
        {"silu", SL_ACT_SILU},          {"swish", SL_ACT_SILU},          {"gelu", SL_ACT_GELU},
        {"gelu_new", SL_ACT_GELU_TANH}, {"gelu_fast", SL_ACT_GELU_TANH}, {"gelu_pytorch_tanh", SL_ACT_GELU_TANH},
    };
    if (r->status != SL_OK) {
        return;
    }
    const char *name = get_string(r, r->object, c->family->activation_key, c->family->activation);
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(name, activations[i].name) == 0) {
            c->activation = activations[i].activation;
        }
    }
    if (c->activation == SL_ACT_NONE) {
        refuse(r, c->family->activation_key, name, "silu, gelu or gelu_pytorch_tanh");
    }
    _Static_assert(sizeof c->has_bias / sizeof c->has_bias[0] == SL_N_LAYER_MATRICES, "one a matrix");
    for (int i = 0; i < SL_N_LAYER_MATRICES; i++) {
        const struct sl_family_matrix *matrix = &c->family->matrices[i];
        c->has_bias[i] =
            matrix->bias_key != NULL ? get_bool(r, matrix->bias_key, matrix->bias_default) : matrix->bias_default;
    }
}

static void check_heads(struct reader *r, const struct sl_model_config *c, bool divide) {
    if (r->status != SL_OK) {
        return;
    }
    if (divide && c->hidden % c->n_heads != 0) {
        fail(r, SL_ERR_INVALID, "hidden_size %d is not a multiple of num_attention_heads %d", c->hidden, c->n_heads);
    } else if (c->head_dim % 8 != 0 || c->head_dim > SL_MAX_HEAD_DIM) {
        fail(r, SL_ERR_UNSUPPORTED, "head_dim is %d; multiples of 8 up to %d are supported", c->head_dim,
             SL_MAX_HEAD_DIM);
    } else if (c->n_heads % c->n_kv_heads != 0) {
        fail(r, SL_ERR_INVALID, "num_attention_heads %d is not a multiple of num_key_value_heads %d", c->n_heads,
             c->n_kv_heads);
    }
}

static void read_dimensions(struct reader *r, struct sl_model_config *c) {
    if (r->status != SL_OK) {
        return;
    }
    const struct sl_family *family = c->family;
    c->n_layers = (int)get_int(r, "num_hidden_layers", INT64_MIN, 1, SL_MAX_LAYERS);
    c->n_heads = (int)get_int(r, "num_attention_heads", INT64_MIN, 1, SL_MAX_HEADS);
    c->n_kv_heads = family->n_kv_heads;
    if (c->n_kv_heads == 0) {
        c->n_kv_heads = (int)get_int(r, "num_key_value_heads", c->n_heads, 1, SL_MAX_HEADS);
    }
    c->hidden = (int)get_int(r, "hidden_size", INT64_MIN, 1, MAX_DIMENSION);
    int64_t intermediate = family->intermediate_ratio > 0 ? (int64_t)family->intermediate_ratio * c->hidden : INT64_MIN;
    c->intermediate = (int)get_int(r, family->intermediate_key, intermediate, 1, 4 * MAX_DIMENSION);
    c->n_vocab = (int32_t)get_int(r, "vocab_size", INT64_MIN, 1, MAX_VOCAB);
    c->max_positions = get_int(r, "max_position_embeddings", family->max_positions, 1, INT32_MAX);
    c->norm_eps = (float)get_positive(r, r->object, family->eps_key, family->eps);
    c->tied_embeddings = get_bool(r, "tie_word_embeddings", family->tied_embeddings);
    c->is_hollow = get_bool(r, "sluice_hollow", false);
    if (r->status != SL_OK) {
        return;
    }
    bool divide = family->head_dim == 0 && !is_given(json_object_get(r->object, "head_dim"));
    c->head_dim = divide ? c->hidden / c->n_heads : (int)get_int(r, "head_dim", family->head_dim, 1, MAX_DIMENSION);
    check_heads(r, c, divide);
}

static void read_dtype(struct reader *r, struct sl_model_config *c) {
    const char *name = get_string(r, r->object, "torch_dtype", get_string(r, r->object, "dtype", "float32"));
    if (strcmp(name, "float32") == 0) {
        c->dtype = SL_F32;
    } else if (strcmp(name, "float16") == 0) {
        c->dtype = SL_F16;
    } else if (strcmp(name, "bfloat16") == 0) {
        c->dtype = SL_BF16;
    } else {
        refuse(r, "torch_dtype", name, "float32, float16 or bfloat16");
    }
}

// --- windows -------------------------------------------------------------------------------------------------------

static void set_window_layers(struct sl_model_config *c, int begin) {
    for (int l = begin; l < c->n_layers; l++) {
        c->window_layers[l / 64] |= 1ull << (l % 64);
    }
}

// Reads "layer_types": ["full_attention" or "sliding_attention", ...], one per layer.
static void read_layer_types(struct reader *r, struct sl_model_config *c, const json_t *types) {
    if (json_array_size(types) != (size_t)c->n_layers) {
        fail(r, SL_ERR_INVALID, "layer_types must be %d names, one a layer", c->n_layers);
        return;
    }
    for (int l = 0; l < c->n_layers; l++) {
        const json_t *type = json_array_get(types, (size_t)l);
        const char *name = json_is_string(type) ? json_string_value(type) : "(no text)";
        if (strcmp(name, "sliding_attention") == 0) {
            c->window_layers[l / 64] |= 1ull << (l % 64);
        } else if (strcmp(name, "full_attention") != 0) {
            refuse(r, "layer_types", name, "full_attention or sliding_attention");
            return;
        }
    }
}

// Reads sliding_window and which layers have it. A null key means no window; a missing key means the family's
// default.
static void read_window(struct reader *r, struct sl_model_config *c) {
    if (r->status != SL_OK || c->family->windows == SL_WINDOW_NEVER) {
        return;
    }
    bool by_layer = c->family->windows == SL_WINDOW_BY_LAYER;
    if (by_layer && !get_bool(r, "use_sliding_window", false)) {
        return;
    }
    bool is_null = json_is_null(json_object_get(r->object, "sliding_window"));
    c->window =
        is_null ? 0 : get_int(r, "sliding_window", c->family->window, c->family->window == 0 ? 0 : 1, INT32_MAX);
    if (c->window == 0 || r->status != SL_OK) {
        return;
    }
    const json_t *types = json_object_get(r->object, "layer_types");
    if (by_layer && is_given(types)) {
        read_layer_types(r, c, types);
    } else {
        set_window_layers(c, by_layer ? (int)get_int(r, "max_window_layers", INT64_MIN, 0, INT32_MAX) : 0);
    }
}

// --- RoPE ----------------------------------------------------------------------------------------------------------

static void read_linear(struct reader *r, const json_t *scaling, struct sl_model_config *c) {
    c->rope.factor = get_positive(r, scaling, "factor", 0.0);
}

static void read_llama3(struct reader *r, const json_t *scaling, struct sl_model_config *c) {
    c->rope.factor = get_positive(r, scaling, "factor", 0.0);
    c->rope.low_turns = get_positive(r, scaling, "low_freq_factor", 0.0);
    c->rope.high_turns = get_positive(r, scaling, "high_freq_factor", 0.0);
    if (c->rope.high_turns <= c->rope.low_turns) {
        fail(r, SL_ERR_INVALID, "rope_scaling needs high_freq_factor greater than low_freq_factor");
    }
}

static double yarn_scale(double factor, double weight) {
    return factor <= 1.0 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

// Reads yarn. The model supports factor times its original context, regardless of max_position_embeddings: the
// published advice is to add the scaling and nothing else.
static void read_yarn(struct reader *r, const json_t *scaling, struct sl_model_config *c) {
    double factor = c->rope.factor = get_positive(r, scaling, "factor", 0.0);
    c->rope.low_turns = get_positive(r, scaling, "beta_slow", 1.0);
    c->rope.high_turns = get_positive(r, scaling, "beta_fast", 32.0);
    const json_t *truncate = json_object_get(scaling, "truncate");
    c->rope.truncate = !is_given(truncate) || json_is_true(truncate);
    double scale = yarn_scale(factor, 1.0);
    if (is_given(json_object_get(scaling, "mscale")) && is_given(json_object_get(scaling, "mscale_all_dim"))) {
        scale = yarn_scale(factor, get_positive(r, scaling, "mscale", 0.0)) /
                yarn_scale(factor, get_positive(r, scaling, "mscale_all_dim", 0.0));
    }
    c->rope.scale = get_positive(r, scaling, "attention_factor", scale);
    if (c->rope.high_turns <= c->rope.low_turns) {
        fail(r, SL_ERR_INVALID, "rope_scaling needs beta_fast greater than beta_slow");
    }
    double reach = factor * (double)c->rope.original_max_positions;
    if (r->status == SL_OK && reach > (double)c->max_positions) {
        c->max_positions = reach < (double)INT32_MAX ? (int64_t)reach : INT32_MAX;
    }
}

static void read_stretches(struct reader *r, const json_t *scaling, const char *key, int n, double *stretches_out) {
    const json_t *list = json_object_get(scaling, key);
    bool is_valid = json_array_size(list) == (size_t)n; // 0 if it is not an array; n is not 0
    for (int i = 0; i < n && is_valid; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        stretches_out[i] = json_number_value(value);
        is_valid = json_is_number(value) && is_positive(stretches_out[i]);
    }
    if (!is_valid) {
        fail(r, SL_ERR_INVALID, "rope_scaling.%s must be %d positive numbers, one for every two channels that rotate",
             key, n);
    }
}

static void read_longrope(struct reader *r, const json_t *scaling, struct sl_model_config *c) {
    static const char *const unknown[] = {"short_mscale", "long_mscale"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        if (is_given(json_object_get(scaling, unknown[i]))) {
            refuse(r, unknown[i], "given", "attention_factor");
        }
    }
    read_stretches(r, scaling, "short_factor", c->rotary_dim / 2, c->rope.stretch[0]);
    read_stretches(r, scaling, "long_factor", c->rotary_dim / 2, c->rope.stretch[1]);
    double original = (double)c->rope.original_max_positions;
    double factor = get_positive(r, scaling, "factor", (double)c->max_positions / original);
    double scale = factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log(original));
    c->rope.scale = get_positive(r, scaling, "attention_factor", scale);
}

static const struct {
    const char *name; // rope_type; in older files type
    enum sl_rope_kind kind;
    void (*read)(struct reader *, const json_t *, struct sl_model_config *);
} rope_kinds[] = {
    {"default", SL_ROPE_DEFAULT, NULL},
    {"linear", SL_ROPE_LINEAR, read_linear},
    {"llama3", SL_ROPE_LLAMA3, read_llama3},
    {"yarn", SL_ROPE_YARN, read_yarn},
    {"longrope", SL_ROPE_LONGROPE, read_longrope},
    {"su", SL_ROPE_LONGROPE, read_longrope},
};

// Returns the original context. It is inside the scaling, or beside it, or else it is the file's context.
static int64_t original_positions(struct reader *r, const json_t *scaling, const struct sl_model_config *c) {
    int64_t beside = get_int(r, "original_max_position_embeddings", c->max_positions, 2, INT32_MAX);
    double original = get_positive(r, scaling, "original_max_position_embeddings", (double)beside);
    if (original < 2.0 || original > (double)INT32_MAX) {
        fail(r, SL_ERR_INVALID, "rope_scaling.original_max_position_embeddings must be between 2 and %d", INT32_MAX);
    }
    return r->status == SL_OK ? (int64_t)original : 0;
}

static void read_rotary_dim(struct reader *r, const json_t *parameters, struct sl_model_config *c) {
    double within = get_positive(r, parameters, "partial_rotary_factor", 1.0);
    double share = get_positive(r, r->object, "partial_rotary_factor", within);
    c->rotary_dim = (int)(c->head_dim * fmin(share, 1.0));
    if (share != 1.0 && !c->family->partial_rotary) {
        refuse(r, "partial_rotary_factor", "given", "1");
    } else if (share > 1.0 || c->rotary_dim < 8 || c->rotary_dim % 8 != 0) {
        fail(r, SL_ERR_UNSUPPORTED,
             "partial_rotary_factor %g of head_dim %d is %d channels; multiples of 8 are supported", share, c->head_dim,
             c->rotary_dim);
    }
}

// Reads RoPE. The scaling is under "rope_scaling"; newer files have it under "rope_parameters" together with the
// base.
static void read_rope(struct reader *r, struct sl_model_config *c) {
    const json_t *parameters = json_object_get(r->object, "rope_parameters");
    const json_t *scaling = json_object_get(r->object, "rope_scaling");
    scaling = is_given(scaling) ? scaling : parameters;
    c->rope.scale = 1.0;
    double theta = get_positive(r, parameters, "rope_theta", 10000.0);
    c->rope_theta = get_positive(r, r->object, "rope_theta", theta);
    if (r->status != SL_OK) {
        return;
    }
    read_rotary_dim(r, parameters, c);
    if (!is_given(scaling) || r->status != SL_OK) {
        return;
    }
    if (!json_is_object(scaling)) {
        fail(r, SL_ERR_INVALID, "rope_scaling must be an object or null");
        return;
    }
    const char *type = get_string(r, scaling, "rope_type", get_string(r, scaling, "type", "default"));
    for (size_t i = 0; i < sizeof rope_kinds / sizeof rope_kinds[0]; i++) {
        if (strcmp(type, rope_kinds[i].name) != 0) {
            continue;
        }
        c->rope.kind = rope_kinds[i].kind;
        if (rope_kinds[i].read != NULL) {
            c->rope.original_max_positions = original_positions(r, scaling, c);
            rope_kinds[i].read(r, scaling, c);
        }
        return;
    }
    refuse(r, "rope_scaling.rope_type", type, "default, linear, llama3, yarn or longrope");
}

// --- the rest ------------------------------------------------------------------------------------------------------

// Reads bos_token_id and eos_token_id, an integer or a list. Its ids come before those that c has from another file.
// Keys that the file lacks leave *c as it was.
static void read_special_ids(struct reader *r, struct sl_model_config *c) {
    c->bos_id = (int32_t)get_int(r, "bos_token_id", c->bos_id, 0, c->n_vocab - 1);
    const json_t *eos = json_object_get(r->object, "eos_token_id");
    if (r->status != SL_OK || !is_given(eos)) {
        return;
    }
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (n > SL_MAX_LISTED_EOS) {
        fail(r, SL_ERR_UNSUPPORTED, "%zu eos_token_ids, at most %d are supported", n, SL_MAX_LISTED_EOS);
        return;
    }
    struct sl_model_ends ends = {.n = 0};
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->n_vocab) {
            fail(r, SL_ERR_INVALID, "eos_token_id must be ids below vocab_size %d", c->n_vocab);
            return;
        }
        sl_model_ends_add(&ends, json_integer_value(id));
    }
    c->n_listed_ends = ends.n;
    for (int i = 0; i < c->ends.n; i++) {
        sl_model_ends_add(&ends, c->ends.ids[i]);
    }
    c->ends = ends;
}

static void read_generation(struct reader *r, struct sl_model_config *c) {
    read_special_ids(r, c);
    if (r->status == SL_OK) {
        r->status = sl_model_sampling_read(r->object, r->file, &c->sampling, r->err);
    }
}

// Reads {"version": 1, "dense_preference": [one number per layer], "threshold": number, "dense_layers": [layers]}.
static void read_profile(struct reader *r, struct sl_model_config *c) {
    int64_t version = get_int(r, "version", INT64_MIN, 0, INT32_MAX);
    if (version != 1) {
        refuse(r, "version", "another", "1");
    }
    const json_t *threshold = json_object_get(r->object, "threshold");
    if (!json_is_number(threshold) || json_number_value(threshold) < 0.0) {
        fail(r, SL_ERR_INVALID, "threshold must be a number, 0 or above");
    }
    const json_t *preference = json_object_get(r->object, "dense_preference");
    const json_t *dense = json_object_get(r->object, "dense_layers");
    // One entry per layer; another number means that the profile was made for another model.
    bool is_whole = json_array_size(preference) == (size_t)c->n_layers;
    for (int l = 0; l < c->n_layers && is_whole; l++) {
        is_whole = json_is_number(json_array_get(preference, (size_t)l));
    }
    if (!is_whole) {
        fail(r, SL_ERR_INVALID, "dense_preference must be %d numbers, one a layer", c->n_layers);
    }
    bool is_valid = json_is_array(dense);
    for (size_t i = 0; i < json_array_size(dense) && is_valid; i++) {
        const json_t *layer = json_array_get(dense, i);
        int64_t l = json_is_integer(layer) ? json_integer_value(layer) : -1;
        is_valid = l >= 0 && l < c->n_layers;
        if (is_valid) {
            c->dense_layers[l / 64] |= 1ull << (l % 64);
        }
    }
    if (!is_valid) {
        fail(r, SL_ERR_INVALID, "dense_layers must be a list of layers between 0 and %d", c->n_layers - 1);
    }
    c->has_profile = true;
}

// Adds the model to an error in one of its documents. A GGUF file has keys instead of documents.
static void locate(const char *model_dir, struct sl_error *err) {
    struct sl_gguf *gguf;
    if (err && sl_model_gguf_open(model_dir, &gguf, NULL) == SL_OK && gguf) {
        sl_gguf_name_keys(gguf, err);
        sl_gguf_close(&gguf);
    }
    sl_error_prefix(err, model_dir);
}

// Reads an optional file of a model: `read` fills *c from it.
static enum sl_status read_optional(const char *model_dir, const char *file,
                                    void (*read)(struct reader *, struct sl_model_config *), struct sl_model_config *c,
                                    struct sl_error *err) {
    json_t *root = NULL;
    enum sl_status status = sl_model_document_load(model_dir, file, &root, err);
    if (status != SL_OK) {
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    }
    struct reader r = {root, file, SL_OK, err};
    read(&r, c);
    json_decref(root);
    SL_TRY_OR(r.status, locate(model_dir, err));
    return SL_OK;
}

// Adds the ends of answers that the tokenizer names.
static enum sl_status complete_ends(const char *model_dir, struct sl_model_config *c, struct sl_error *err) {
    json_t *specials = NULL;
    int64_t eos_id = -1;
    SL_TRY(sl_model_special_tokens(model_dir, &specials, &eos_id, err));
    sl_model_ends_complete(&c->ends, eos_id, specials, c->n_vocab);
    json_decref(specials);
    return SL_OK;
}

// Reads a model's documents into *config, which is undefined after a failure. Releases root, config.json.
static enum sl_status read_config(const char *model_dir, json_t *root, struct sl_model_config *config,
                                  struct sl_error *err) {
    struct reader r = {root, "config.json", SL_OK, err};
    read_architecture(&r, config);
    read_dimensions(&r, config);
    read_layer(&r, config);
    read_dtype(&r, config);
    read_window(&r, config);
    read_rope(&r, config);
    read_special_ids(&r, config);
    json_decref(root);
    if (r.status != SL_OK) {
        locate(model_dir, err);
        return r.status;
    }
    enum sl_status status = read_optional(model_dir, "generation_config.json", read_generation, config, err);
    SL_THEN(status, read_optional(model_dir, "sluice_profile.json", read_profile, config, err));
    SL_THEN(status, complete_ends(model_dir, config, err));
    struct sl_safetensors *heads = NULL;
    SL_THEN(status, sl_retaining_open(model_dir, config, &heads, &config->retaining_hidden, err));
    sl_safetensors_close(&heads);
    return status;
}

enum sl_status sl_model_config_load(const char *model_dir, struct sl_model_config *config_out, struct sl_error *err) {
    json_t *root = NULL;
    struct sl_error why;
    enum sl_status status = sl_model_document_load(model_dir, "config.json", &root, &why);
    SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, SL_ERR_INVALID, "--model %.100s: no model is there: %.250s", model_dir,
               why.text);
    SL_FAIL_IF(status != SL_OK, err, status, "%s", why.text);
    struct sl_model_config *config = calloc(1, sizeof *config);
    if (config == NULL) {
        json_decref(root);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    config->bos_id = -1;
    status = read_config(model_dir, root, config, err);
    if (status == SL_OK) {
        *config_out = *config;
    }
    free(config);
    return status;
}
