// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: makes config.json and generation_config.json from a GGUF file's metadata.
 *
 * Design: passes on the file's values unchanged, under the names of a folder's config.json;
 *         engine/model/model_config.c checks them. Some facts come from the list of tensors alone: whether the
 *         embedding is also the head, whether there are biases, and RoPE frequencies that are stretched one by one.
 *
 * To add an architecture: a line in architectures[], one in names[] of engine/model/tensors.c for tensors with other
 * names.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/gguf/document.h"
#include "engine/model/gguf/gguf_json.h"

#define MAX_KEY       128
#define MAX_STRETCHES 16384

struct making {
    const struct sl_gguf *gguf;
    const char *architecture; // prefix of keys
    json_t *root;
    bool ok;
};

static const struct {
    const char *name, *family; // general.architecture, and its name in config.json
} architectures[] = {
    {"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"},   {"qwen3", "Qwen3ForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},   {"falcon", "FalconForCausalLM"},
};

struct name {
    const char *key, *json; // of the file; of the document that is made
};

// After the architecture's name.
static const struct name fields[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"feed_forward_length", "ffn_hidden_size"}, // Falcon's name
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.sliding_window", "sliding_window"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
    {"context_length", "max_position_embeddings"},
    {"rope.freq_base", "rope_theta"},
};

// Returns true if a list has one number for all layers. Some converters write every per-layer key as a list.
static bool is_uniform(const struct sl_gguf_value *value) {
    if (!value->is_array || value->kind == SL_GGUF_STRING || value->n == 0) {
        return false;
    }
    uint64_t i = 1;
    while (i < value->n && sl_gguf_element(value, i) == sl_gguf_element(value, 0)) {
        i++;
    }
    return i == value->n;
}

// Returns a value as JSON, that of a uniform list as one number. NULL: a number that is not finite, or no memory.
static json_t *json_of(const struct sl_gguf_value *value) {
    int64_t integer;
    const unsigned char *at = value->data;
    if (value->is_array && !is_uniform(value)) {
        return json_array();
    }
    if (value->kind == SL_GGUF_STRING) {
        return sl_gguf_json_text(sl_gguf_next_text(&at));
    }
    if (value->kind == SL_GGUF_BOOL) {
        return json_boolean(value->data[0] != 0);
    }
    return sl_gguf_as_integer(value, 0, &integer) ? json_integer(integer) : json_real(sl_gguf_element(value, 0));
}

static const struct sl_gguf_value *value_of(const struct making *m, const char *key) {
    char full[MAX_KEY];
    snprintf(full, sizeof full, "%s.%s", m->architecture, key);
    return sl_gguf_value(m->gguf, full);
}

// Sets object[name] from the key, if the file has it.
static void copy_to(struct making *m, json_t *object, const char *name, const char *key) {
    const struct sl_gguf_value *value = value_of(m, key);
    if (value != NULL) {
        sl_json_put(object, name, json_of(value), &m->ok);
    }
}

static int64_t integer_of(const struct making *m, const char *key, int64_t fallback) {
    char full[MAX_KEY];
    const struct sl_gguf_value *value = value_of(m, key);
    int64_t integer;
    if (value != NULL && is_uniform(value)) {
        return sl_gguf_as_integer(value, 0, &integer) ? integer : fallback;
    }
    snprintf(full, sizeof full, "%s.%s", m->architecture, key);
    return sl_gguf_integer(m->gguf, full, fallback);
}

static bool has_tensor(const struct making *m, const char *name) {
    return sl_gguf_tensor(m->gguf, name) != NULL;
}

// Returns the default number of channels of a head.
static int64_t even_share(const struct making *m) {
    int64_t heads = integer_of(m, "attention.head_count", 0);
    return heads > 0 ? integer_of(m, "embedding_length", 0) / heads : 0;
}

// --- what we do not compute ------------------------------------------------------------------------------------------

// Keys that change results and that neither fields[] nor put_rope() pass on. To add one: add a row.
static const struct {
    const char *key;
    double neutral[2]; // values without effect; true is 1
    const char *asked; // meaning of all other values
} refused[] = {
    {"expert_count", {0, 0}, "mixtures of experts"},
    {"attention.causal", {1, 1}, "attention that sees what follows"},
    {"attention.clamp_kqv", {0, 0}, "clamping of q, k and v"},
    {"attention.max_alibi_bias", {0, 0}, "ALiBi"},
    {"attention.scale", {0, 0}, "a scale of attention"},
    {"attn_logit_softcapping", {0, 0}, "capping of scores"},
    {"final_logit_softcapping", {0, 0}, "capping of logits"},
    {"logit_scale", {0, 1}, "a scale of logits"},
    {"residual_scale", {0, 1}, "a scale of residuals"},
    {"embedding_scale", {0, 1}, "a scale of embeddings"},
    {"rope.scaling.yarn_ext_factor", {1, 1}, "a share of yarn"},
    {"rope.scaling.yarn_attn_factor", {1, 1}, "a scale of cosines of its own"},
    {"rope.scaling.yarn_log_multiplier", {0, 0}, "a scale of cosines of its own"},
};

// Returns a value as a number; NaN: not a number.
static double number_of(const struct sl_gguf_value *value) {
    if (value->is_array || value->kind == SL_GGUF_STRING) {
        return NAN;
    }
    return value->kind == SL_GGUF_BOOL ? value->data[0] != 0 : sl_gguf_element(value, 0);
}

// Returns SL_OK if the key is missing, or is one of two numbers.
static enum sl_status refuse_unless(const struct making *m, const char *key, double a, double b, const char *asked,
                                    struct sl_error *err) {
    const struct sl_gguf_value *value = value_of(m, key);
    double number = value != NULL ? number_of(value) : a;
    if (number == a || number == b) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s.%s is %g, which asks for %s: not supported", m->architecture, key,
                   number, asked);
}

static enum sl_status check_known(const struct making *m, struct sl_error *err) {
    static const char *const integers[] = {"attention.key_length", "attention.value_length", "rope.dimension_count"};
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && status == SL_OK; i++) {
        const struct sl_gguf_value *field = value_of(m, fields[i].key);
        if (field != NULL && field->is_array && !is_uniform(field)) {
            status =
                sl_fail(err, SL_ERR_UNSUPPORTED, "%s.%s is a list of different values: one for all layers is supported",
                        m->architecture, fields[i].key);
        }
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0] && status == SL_OK; i++) {
        status = refuse_unless(m, refused[i].key, refused[i].neutral[0], refused[i].neutral[1], refused[i].asked, err);
    }
    for (size_t i = 0; i < sizeof integers / sizeof integers[0] && status == SL_OK; i++) {
        if (value_of(m, integers[i]) != NULL && integer_of(m, integers[i], -1) < 0) {
            status = sl_fail(err, SL_ERR_INVALID, "%s.%s is not an integer from 0 on", m->architecture, integers[i]);
        }
    }
    int64_t key = integer_of(m, "attention.key_length", even_share(m));
    int64_t value = integer_of(m, "attention.value_length", even_share(m));
    if (status == SL_OK && key != value) {
        status = sl_fail(err, SL_ERR_UNSUPPORTED,
                         "%s.attention: keys of %lld channels and values of %lld: only equal ones are supported",
                         m->architecture, (long long)key, (long long)value);
    }
    return status;
}

// --- RoPE ------------------------------------------------------------------------------------------------------------

// Returns the type of scaling; a file without a type whose factor is set means linear.
static struct sl_gguf_text scaling_type(const struct making *m) {
    const struct sl_gguf_value *type = value_of(m, "rope.scaling.type");
    const unsigned char *at = type != NULL ? type->data : NULL;
    return at != NULL ? sl_gguf_next_text(&at) : (struct sl_gguf_text){"linear", strlen("linear")};
}

// Returns the key of the factor: older files have another name.
static const char *factor_key(const struct making *m) {
    return value_of(m, "rope.scaling.factor") == NULL ? "rope.scale_linear" : "rope.scaling.factor";
}

// Writes the numbers of a one-dimensional tensor as a list under `name`.
static enum sl_status put_stretches(struct making *m, json_t *scaling, const char *name, const char *tensor_name,
                                    struct sl_error *err) {
    const struct sl_gguf_tensor *tensor = sl_gguf_tensor(m->gguf, tensor_name);
    SL_FAIL_IF(tensor == NULL, err, SL_ERR_UNSUPPORTED, "tensor %s is missing, and its other half is there",
               tensor_name);
    SL_FAIL_IF(tensor->n_dims != 1 || tensor->type->n_weights != 1 || tensor->shape[0] > MAX_STRETCHES, err,
               SL_ERR_UNSUPPORTED,
               "tensor %s has %d dimensions, the first of %lld, and type %s; one of up to %d, of F32, F16 or "
               "BF16, is supported",
               tensor_name, tensor->n_dims, (long long)tensor->shape[0], tensor->type->name, MAX_STRETCHES);
    json_t *list = json_array();
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        float stretch;
        sl_block_widen(tensor->type, tensor->data + (size_t)i * tensor->type->bytes, &stretch);
        if (json_array_append_new(list, json_real((double)stretch)) != 0) {
            m->ok = false;
        }
    }
    sl_json_put(scaling, name, list, &m->ok);
    return SL_OK;
}

// Writes per-channel stretches: one set for short and one for long jobs (longrope), or one set for all, which
// converters make from llama3's scaling. No other scaling may be combined with them.
static enum sl_status put_longrope(struct making *m, bool has_sets, bool is_scaled, json_t *scaling,
                                   struct sl_error *err) {
    const char *names[] = {"rope_freqs.weight", "rope_freqs.weight"};
    enum sl_status status = SL_OK;
    if (has_sets) {
        names[0] = "rope_factors_short.weight";
        names[1] = "rope_factors_long.weight";
        copy_to(m, scaling, "original_max_position_embeddings", "rope.scaling.original_context_length");
        copy_to(m, scaling, "attention_factor", "rope.scaling.attn_factor");
    } else {
        status = refuse_unless(m, "rope.scaling.attn_factor", 1, 1, "a scale of cosines of its own", err);
        sl_json_put(scaling, "attention_factor", json_real(1.0), &m->ok);
    }
    if (status == SL_OK && is_scaled) {
        status = refuse_unless(m, factor_key(m), 1, 1, "a scaling of RoPE beside its tensors", err);
    }
    SL_THEN(status, put_stretches(m, scaling, "short_factor", names[0], err));
    SL_THEN(status, put_stretches(m, scaling, "long_factor", names[1], err));
    sl_json_put(scaling, "rope_type", json_string("longrope"), &m->ok);
    return status;
}

static enum sl_status put_scaling(struct making *m, json_t *scaling, struct sl_error *err) {
    bool is_yarn = sl_gguf_text_is(scaling_type(m), "yarn");
    sl_json_put(scaling, "rope_type", sl_gguf_json_text(scaling_type(m)), &m->ok);
    copy_to(m, scaling, "factor", factor_key(m));
    copy_to(m, scaling, "original_max_position_embeddings", "rope.scaling.original_context_length");
    if (is_yarn) {
        copy_to(m, scaling, "beta_fast", "rope.scaling.yarn_beta_fast");
        copy_to(m, scaling, "beta_slow", "rope.scaling.yarn_beta_slow");
    }
    // Rejects other values: config.json's attention_factor is the whole scale, whereas the file's attn_factor is
    // multiplied by the scale that yarn derives from `factor`.
    return refuse_unless(m, "rope.scaling.attn_factor", 1, 1, "a scale of cosines of its own", err);
}

static enum sl_status put_rope(struct making *m, struct sl_error *err) {
    const struct sl_gguf_value *type = value_of(m, "rope.scaling.type");
    SL_FAIL_IF(type != NULL && (type->is_array || type->kind != SL_GGUF_STRING), err, SL_ERR_UNSUPPORTED,
               "%s.rope.scaling.type is not a text", m->architecture);
    bool has_sets = has_tensor(m, "rope_factors_short.weight") || has_tensor(m, "rope_factors_long.weight");
    bool has_one = has_tensor(m, "rope_freqs.weight"), is_none = sl_gguf_text_is(scaling_type(m), "none");
    SL_FAIL_IF(has_sets && has_one, err, SL_ERR_UNSUPPORTED,
               "tensors rope_freqs.weight and rope_factors_*: only either is supported");
    SL_FAIL_IF((has_sets || has_one) && sl_gguf_text_is(scaling_type(m), "yarn"), err, SL_ERR_UNSUPPORTED,
               "%s.rope.scaling.type is yarn, beside tensors that scale RoPE", m->architecture);
    json_t *scaling = json_object();
    enum sl_status status = SL_OK;
    if (has_sets || has_one) {
        status = put_longrope(m, has_sets, !is_none, scaling, err);
    } else if (!is_none && (type != NULL || value_of(m, factor_key(m)) != NULL)) {
        status = put_scaling(m, scaling, err);
    }
    if (status == SL_OK && json_object_size(scaling) > 0) {
        sl_json_put(m->root, "rope_scaling", scaling, &m->ok);
    } else {
        json_decref(scaling);
    }
    return status;
}

// Writes the rotated part of a head, if that is not all of it.
static void put_rotary(struct making *m) {
    int64_t rotary = integer_of(m, "rope.dimension_count", 0);
    int64_t head_dim = integer_of(m, "attention.key_length", even_share(m));
    if (rotary > 0 && head_dim > 0 && rotary != head_dim) {
        sl_json_put(m->root, "partial_rotary_factor", json_real((double)rotary / (double)head_dim), &m->ok);
    }
}

// --- the documents ---------------------------------------------------------------------------------------------------

static void put_layers(struct making *m, const char *family) {
    const struct sl_gguf_tensor *embedding = sl_gguf_tensor(m->gguf, "token_embd.weight");
    json_t *names = json_array();
    // A Llama with sliding windows is a Mistral.
    bool is_mistral = strcmp(m->architecture, "llama") == 0 && integer_of(m, "attention.sliding_window", 0) > 0;
    m->ok = json_array_append_new(names, json_string(is_mistral ? "MistralForCausalLM" : family)) == 0 && m->ok;
    sl_json_put(m->root, "architectures", names, &m->ok);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        copy_to(m, m->root, fields[i].json, fields[i].key);
    }
    if (integer_of(m, "attention.sliding_window", -1) == 0) { // 0 means no window
        sl_json_put(m->root, "sliding_window", json_null(), &m->ok);
    }
    if (embedding != NULL && embedding->n_dims == 2) {
        sl_json_put(m->root, "vocab_size", json_integer(embedding->shape[0]), &m->ok);
    }
    sl_json_put(m->root, "tie_word_embeddings", json_boolean(!has_tensor(m, "output.weight")), &m->ok);
    if (strcmp(m->architecture, "falcon") != 0 && strcmp(m->architecture, "phi3") != 0) {
        sl_json_put(m->root, "attention_bias", json_boolean(has_tensor(m, "blk.0.attn_output.bias")), &m->ok);
        sl_json_put(m->root, "mlp_bias", json_boolean(has_tensor(m, "blk.0.ffn_up.bias")), &m->ok);
    }
    sl_json_put(m->root, "torch_dtype", json_string("bfloat16"), &m->ok);
}

enum sl_status sl_gguf_config(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err) {
    struct sl_gguf_text name = sl_gguf_text(gguf, "general.architecture");
    char list[128] = "";
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        if (!sl_gguf_text_is(name, architectures[i].name)) {
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? ", " : "", architectures[i].name);
            continue;
        }
        struct making m = {gguf, architectures[i].name, json_object(), true};
        enum sl_status status = check_known(&m, err);
        if (status == SL_OK) {
            put_layers(&m, architectures[i].family);
            put_rotary(&m);
            status = put_rope(&m, err);
        }
        if (status == SL_OK && !m.ok) {
            status =
                sl_fail(err, SL_ERR_INVALID, "a value is not a finite number, or not UTF-8, or there is no memory");
        }
        SL_TRY_OR(status, json_decref(m.root));
        *root_out = m.root;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "general.architecture is %.*s; only %s are supported",
                   (int)sl_gguf_shown(name).n_bytes, sl_gguf_shown(name).at, list);
}

// After general.sampling: those that converters take from generation_config.json, and those of llama.cpp, under the same
// names if both have one (engine/model/generation/generation.c).
static const struct name sampling[] = {
    {"temp", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"penalty_repeat", "repetition_penalty"},
    {"min_p", "min_p"},
    {"sequence", "sequence"},
    {"mirostat", "mirostat"},
    {"xtc_probability", "xtc_probability"},
    {"penalty_last_n", "penalty_last_n"},
    {"penalty_freq", "penalty_freq"},
    {"penalty_present", "penalty_present"},
};

// --- keys in errors --------------------------------------------------------------------------------------------------

// Names that are neither in fields[] nor in sampling[].
static const struct name more[] = {{"vocab_size", "vocab_size"},
                                   {"rope.scaling", "rope_scaling"},
                                   {"rope.scaling.type", "rope_type"},
                                   {"rope.dimension_count", "partial_rotary_factor"},
                                   {"rope.scaling.factor", "factor"},
                                   {"rope.scaling.original_context_length", "original_max_position_embeddings"},
                                   {"rope.scaling.attn_factor", "attention_factor"},
                                   {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                   {"rope.scaling.yarn_beta_slow", "beta_slow"}};
static const struct name tokens[] = {{"eos_token_id", "eos_token_id"}, {"bos_token_id", "bos_token_id"}};

// Writes the key that a name of a document is made from. False: there is none.
static bool write_key(const char *name, size_t n_bytes, struct sl_gguf_text architecture, char out[MAX_KEY]) {
    const struct {
        const char *prefix; // NULL: the architecture
        const struct name *names;
        size_t n;
    } tables[] = {{NULL, fields, sizeof fields / sizeof *fields},
                  {NULL, more, sizeof more / sizeof *more},
                  {"general.sampling", sampling, sizeof sampling / sizeof *sampling},
                  {"tokenizer.ggml", tokens, sizeof tokens / sizeof *tokens}};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (size_t i = 0; i < tables[t].n; i++) {
            const struct name *row = &tables[t].names[i];
            if (strlen(row->json) == n_bytes && memcmp(row->json, name, n_bytes) == 0) {
                snprintf(out, MAX_KEY, "%.*s.%s", tables[t].prefix ? MAX_KEY : (int)architecture.n_bytes,
                         tables[t].prefix ? tables[t].prefix : architecture.at, row->key);
                return true;
            }
        }
    }
    return false;
}

void sl_gguf_name_keys(const struct sl_gguf *gguf, struct sl_error *err) {
    static const char *const documents[] = {"config.json: ", "generation_config.json: "};
    const struct sl_gguf_text architecture = sl_gguf_text(gguf, "general.architecture");
    char text[sizeof err->text], key[MAX_KEY];
    size_t n = 0, skipped = 0;
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        const size_t length = strlen(documents[i]);
        skipped = strncmp(err->text, documents[i], length) == 0 ? length : skipped;
    }
    for (const char *at = err->text + skipped; skipped > 0 && *at && n < sizeof text;) {
        const size_t word = strspn(at, "abcdefghijklmnopqrstuvwxyz_"), shown = word > 0 ? word : 1;
        const bool is_key = write_key(at, word, architecture, key);
        if (is_key && at[word] == '.' && at[word + 1] >= 'a' && at[word + 1] <= 'z') { // the object of the next name
            at += word + 1;
            continue;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", is_key ? MAX_KEY : (int)shown, is_key ? key : at);
        at += shown;
    }
    if (n > 0) {
        snprintf(err->text, sizeof err->text, "%s", text);
    }
}

// --- where answers end -----------------------------------------------------------------------------------------------

static void add_end(json_t *ends, int64_t id, bool *ok) {
    size_t i;
    const json_t *known;
    json_array_foreach(ends, i, known) {
        if (json_integer_value(known) == id) {
            return;
        }
    }
    *ok = json_array_append_new(ends, json_integer(id)) == 0 && *ok;
}

// --- how tokens are drawn --------------------------------------------------------------------------------------------

static double number_at(const struct sl_gguf *gguf, const char *key, double fallback) {
    const struct sl_gguf_value *value = sl_gguf_value(gguf, key);
    return value != NULL ? number_of(value) : fallback;
}

static enum sl_status put_sampling(const struct sl_gguf *gguf, json_t *root, bool *ok, struct sl_error *err) {
    char key[MAX_KEY];
    double penalty = number_at(gguf, "general.sampling.penalty_repeat", 1);
    bool penalizes = penalty != 1 && number_at(gguf, "general.sampling.penalty_last_n", -1) != 0; // 0: no token
    for (size_t i = 0; i < sizeof sampling / sizeof sampling[0]; i++) {
        snprintf(key, sizeof key, "general.sampling.%s", sampling[i].key);
        const struct sl_gguf_value *value = sl_gguf_value(gguf, key);
        bool is_of_penalty =
            strcmp(key, "general.sampling.penalty_repeat") == 0 || strcmp(key, "general.sampling.penalty_last_n") == 0;
        if (value == NULL || (is_of_penalty && !penalizes)) {
            continue;
        }
        json_t *json = json_of(value);
        SL_FAIL_IF(json == NULL, err, SL_ERR_INVALID, "%s is not a finite number, or not UTF-8", key);
        sl_json_put(root, sampling[i].json, json, ok);
    }
    return SL_OK;
}

enum sl_status sl_gguf_generation(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *root = json_object(), *ends = json_array();
    bool ok = root != NULL && ends != NULL;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int64_t id = sl_gguf_integer(gguf, keys[i], -1);
        if (id >= 0) {
            add_end(ends, id, &ok);
        }
    }
    int64_t begin = sl_gguf_integer(gguf, "tokenizer.ggml.bos_token_id", -1);
    if (begin >= 0) {
        sl_json_put(root, "bos_token_id", json_integer(begin), &ok);
    }
    sl_json_put(root, "eos_token_id", ends, &ok);
    enum sl_status status = put_sampling(gguf, root, &ok, err);
    if (status == SL_OK && !ok) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    SL_TRY_OR(status, json_decref(root));
    *root_out = root;
    return SL_OK;
}
