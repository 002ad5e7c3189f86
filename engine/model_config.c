// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: config.json and generation_config.json of a Llama, checked, and what the files beside them tell of the model
 *          (retaining heads, profile). What a file asks for and we do not compute is refused by name, so that a model
 *          either runs as its authors meant it or does not run.
 *
 * Design: a reader carries the first failure; getters after it do nothing. That keeps one line a field below.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/tier.h"
#include "engine/json_file.h"
#include "engine/model_internal.h"

#define MAX_DIMENSION (1 << 20) // of hidden, intermediate: keeps every product of two of them inside int64_t
#define MAX_VOCAB     (1 << 24)

struct reader {
    const json_t *object;
    const char *file;
    enum sl_status status;
    struct sl_error *err;
};

static bool is_given(const json_t *value) {
    return value != NULL && !json_is_null(value);
}

// `fallback` INT64_MIN: the key is required.
static int64_t get_int(struct reader *r, const char *key, int64_t fallback, int64_t min, int64_t max) {
    if (r->status != SL_OK) {
        return 0;
    }
    const json_t *value = json_object_get(r->object, key);
    if (!is_given(value)) {
        if (fallback == INT64_MIN) {
            r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: %s is missing", r->file, key);
        }
        return fallback;
    }
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: %s must be an integer between %lld and %lld", r->file, key,
                            (long long)min, (long long)max);
        return 0;
    }
    return json_integer_value(value);
}

static double get_positive(struct reader *r, const json_t *object, const char *key, double fallback) {
    if (r->status != SL_OK) {
        return 0.0;
    }
    const json_t *value = json_object_get(object, key);
    double number = is_given(value) ? json_number_value(value) : fallback;
    if ((is_given(value) && !json_is_number(value)) || !isfinite(number) || number <= 0.0) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: %s must be a positive number", r->file, key);
    }
    return number;
}

static bool get_bool(struct reader *r, const char *key, bool fallback) {
    const json_t *value = json_object_get(r->object, key);
    if (r->status != SL_OK || !is_given(value)) {
        return fallback;
    }
    if (!json_is_boolean(value)) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: %s must be true or false", r->file, key);
    }
    return json_is_true(value);
}

static const char *get_string(struct reader *r, const json_t *object, const char *key, const char *fallback) {
    const json_t *value = json_object_get(object, key);
    if (r->status != SL_OK || !is_given(value)) {
        return fallback;
    }
    if (!json_is_string(value)) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: %s must be a string", r->file, key);
        return fallback;
    }
    return json_string_value(value);
}

static void refuse(struct reader *r, const char *key, const char *found, const char *supported) {
    if (r->status == SL_OK) {
        r->status = sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: %s is %.64s; only %s is supported", r->file, key, found,
                            supported);
    }
}

static void read_architecture(struct reader *r, struct sl_model_config *c) {
    const json_t *first = json_array_get(json_object_get(r->object, "architectures"), 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "(not given)";
    if (strcmp(name, "LlamaForCausalLM") != 0) {
        refuse(r, "architectures", name, "LlamaForCausalLM");
    }
    snprintf(c->architecture, sizeof c->architecture, "llama");

    const char *act = get_string(r, r->object, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0) {
        refuse(r, "hidden_act", act, "silu");
    }
    if (get_bool(r, "attention_bias", false)) {
        refuse(r, "attention_bias", "true", "false");
    }
    if (get_bool(r, "mlp_bias", false)) {
        refuse(r, "mlp_bias", "true", "false");
    }
    if (is_given(json_object_get(r->object, "quantization_config"))) {
        refuse(r, "quantization_config", "given", "an unquantized checkpoint");
    }
}

static void read_dimensions(struct reader *r, struct sl_model_config *c) {
    c->n_layers = (int)get_int(r, "num_hidden_layers", INT64_MIN, 1, SL_MAX_LAYERS);
    c->n_heads = (int)get_int(r, "num_attention_heads", INT64_MIN, 1, SL_MAX_HEADS);
    c->n_kv_heads = (int)get_int(r, "num_key_value_heads", c->n_heads, 1, SL_MAX_HEADS);
    c->hidden = (int)get_int(r, "hidden_size", INT64_MIN, 1, MAX_DIMENSION);
    c->intermediate = (int)get_int(r, "intermediate_size", INT64_MIN, 1, MAX_DIMENSION);
    c->n_vocab = (int32_t)get_int(r, "vocab_size", INT64_MIN, 1, MAX_VOCAB);
    c->max_positions = get_int(r, "max_position_embeddings", 2048, 1, INT32_MAX);
    c->norm_eps = (float)get_positive(r, r->object, "rms_norm_eps", 1e-6);
    c->tied_embeddings = get_bool(r, "tie_word_embeddings", false);
    if (r->status != SL_OK) {
        return;
    }
    c->head_dim = (int)get_int(r, "head_dim", c->hidden / c->n_heads, 1, MAX_DIMENSION);
    if (!is_given(json_object_get(r->object, "head_dim")) && c->hidden % c->n_heads != 0) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: hidden_size %d is not a multiple of num_attention_heads %d",
                            r->file, c->hidden, c->n_heads);
    } else if (r->status == SL_OK && (c->head_dim % 8 != 0 || c->head_dim > SL_MAX_HEAD_DIM)) {
        r->status = sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: head_dim is %d; multiples of 8 up to %d are supported",
                            r->file, c->head_dim, SL_MAX_HEAD_DIM);
    } else if (c->n_heads % c->n_kv_heads != 0) {
        r->status =
            sl_fail(r->err, SL_ERR_INVALID, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                    r->file, c->n_heads, c->n_kv_heads);
    }
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

// The scaling is under "rope_scaling", or under "rope_parameters" together with the base in newer files.
static void read_rope(struct reader *r, struct sl_model_config *c) {
    const json_t *parameters = json_object_get(r->object, "rope_parameters");
    const json_t *scaling = json_object_get(r->object, "rope_scaling");
    scaling = is_given(scaling) ? scaling : parameters;
    double theta = get_positive(r, parameters, "rope_theta", 10000.0);
    c->rope_theta = get_positive(r, r->object, "rope_theta", theta);
    if (!is_given(scaling) || r->status != SL_OK) {
        return;
    }
    if (!json_is_object(scaling)) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: rope_scaling must be an object or null", r->file);
        return;
    }
    const char *type = get_string(r, scaling, "rope_type", get_string(r, scaling, "type", "default"));
    if (strcmp(type, "default") == 0) {
        return;
    }
    if (strcmp(type, "llama3") != 0) {
        refuse(r, "rope_scaling.rope_type", type, "llama3");
        return;
    }
    c->rope_llama3.enabled = true;
    c->rope_llama3.factor = get_positive(r, scaling, "factor", 0.0);
    c->rope_llama3.low_freq_factor = get_positive(r, scaling, "low_freq_factor", 0.0);
    c->rope_llama3.high_freq_factor = get_positive(r, scaling, "high_freq_factor", 0.0);
    double original = get_positive(r, scaling, "original_max_position_embeddings", 0.0);
    c->rope_llama3.original_max_positions = original <= (double)INT32_MAX ? (int64_t)original : 0;
    if (r->status == SL_OK && (c->rope_llama3.original_max_positions < 1 ||
                               c->rope_llama3.high_freq_factor <= c->rope_llama3.low_freq_factor)) {
        r->status = sl_fail(r->err, SL_ERR_INVALID,
                            "%s: rope_scaling needs high_freq_factor > low_freq_factor and a whole "
                            "original_max_position_embeddings",
                            r->file);
    }
}

// bos_token_id and eos_token_id; the latter an integer or a list. Keys that the file lacks leave *c as it was.
static void read_special_ids(struct reader *r, struct sl_model_config *c) {
    c->bos_id = (int32_t)get_int(r, "bos_token_id", c->bos_id, 0, c->n_vocab - 1);
    const json_t *eos = json_object_get(r->object, "eos_token_id");
    if (r->status != SL_OK || !is_given(eos)) {
        return;
    }
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (n > SL_MAX_EOS) {
        r->status = sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: %zu eos_token_ids, at most %d are supported", r->file, n,
                            SL_MAX_EOS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->n_vocab) {
            r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: eos_token_id must be ids below vocab_size %d", r->file,
                                c->n_vocab);
            return;
        }
        c->eos_ids[i] = (int32_t)json_integer_value(id);
    }
    c->n_eos = (int)n;
}

// {"version": 1, "dense_preference": [one number a layer], "threshold": number, "dense_layers": [layers]}
static void read_profile(struct reader *r, struct sl_model_config *c) {
    int64_t version = get_int(r, "version", INT64_MIN, 0, INT32_MAX);
    if (r->status == SL_OK && version != 1) {
        refuse(r, "version", "another", "1");
    }
    const json_t *threshold = json_object_get(r->object, "threshold");
    if (r->status == SL_OK && (!json_is_number(threshold) || json_number_value(threshold) < 0.0)) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: threshold must be a number, 0 or above", r->file);
    }
    const json_t *preference = json_object_get(r->object, "dense_preference");
    const json_t *dense = json_object_get(r->object, "dense_layers");
    if (r->status != SL_OK) {
        return;
    }
    // One entry a layer: how a profile that was made for another model is recognized.
    bool is_whole = json_array_size(preference) == (size_t)c->n_layers;
    for (int l = 0; l < c->n_layers && is_whole; l++) {
        is_whole = json_is_number(json_array_get(preference, (size_t)l));
    }
    if (!is_whole) {
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: dense_preference must be %d numbers, one a layer", r->file,
                            c->n_layers);
        return;
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
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s: dense_layers must be a list of layers between 0 and %d",
                            r->file, c->n_layers - 1);
        return;
    }
    c->has_profile = true;
}

// A file that a model may have or not: `read` fills *c from it.
static enum sl_status read_optional(const char *model_dir, const char *file,
                                    void (*read)(struct reader *, struct sl_model_config *), struct sl_model_config *c,
                                    struct sl_error *err) {
    json_t *root = NULL;
    enum sl_status status = sl_json_file_load(model_dir, file, &root, err);
    if (status != SL_OK) {
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    }
    struct reader r = {root, file, SL_OK, err};
    read(&r, c);
    json_decref(root);
    return r.status;
}

enum sl_status sl_model_config_load(const char *model_dir, struct sl_model_config *config_out, struct sl_error *err) {
    json_t *root = NULL;
    enum sl_status status = sl_json_file_load(model_dir, "config.json", &root, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_model_config config = {.bos_id = -1};
    struct reader r = {root, "config.json", SL_OK, err};
    read_architecture(&r, &config);
    read_dimensions(&r, &config);
    read_dtype(&r, &config);
    read_rope(&r, &config);
    read_special_ids(&r, &config);
    json_decref(root);
    if (r.status != SL_OK) {
        return r.status;
    }
    // What generation stops at is said here when this file exists: chat models have more than one end.
    status = read_optional(model_dir, "generation_config.json", read_special_ids, &config, err);
    if (status == SL_OK) {
        status = read_optional(model_dir, "sluice_profile.json", read_profile, &config, err);
    }
    struct sl_safetensors *heads = NULL;
    if (status == SL_OK) {
        status = sl_retaining_open(model_dir, &config, &heads, &config.retaining_hidden, err);
    }
    sl_safetensors_close(&heads);
    if (status == SL_OK) {
        *config_out = config;
    }
    return status;
}
