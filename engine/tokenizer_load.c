// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: read the JSON files of a model folder and put a tokenizer together.
 *
 * Design: a tokenizer.json describes one of very many pipelines. Ours is one of them; every member that could make the
 *         pipeline another one is looked at, and refused by name if it does. A key that we do not know is refused too.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/json_file.h"
#include "engine/tokenizer_internal.h"

#define FINGERPRINT_SEED 1 // to be raised when the same files begin to give other ids

// --- JSON ------------------------------------------------------------------------------------------------------------
enum sl_status sl_json_only(const json_t *object, const char *what, const char *const *keys, struct sl_error *err) {
    if (!json_is_object(object)) {
        return sl_fail(err, SL_ERR_INVALID, "%.64s is missing or not an object", what);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0) {
            known++;
        }
        if (!*known) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%.64s has \"%.64s\", which is not supported", what, key);
        }
    }
    return SL_OK;
}

enum sl_status sl_json_bool(const json_t *object, const char *what, const char *key, bool fallback, bool *value_out,
                            struct sl_error *err) {
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_boolean(value)) {
        return sl_fail(err, SL_ERR_INVALID, "%.64s: \"%s\" is neither true nor false", what, key);
    }
    *value_out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return SL_OK;
}

static bool is_set(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    bool empty_text = json_is_string(value) && json_string_length(value) == 0;
    return value && !json_is_null(value) && !json_is_false(value) && !empty_text;
}

static bool has_type(const json_t *object, const char *type) {
    const char *value = json_string_value(json_object_get(object, "type"));
    return value && strcmp(value, type) == 0;
}

// The first of the NULL-terminated keys that is set is refused.
static enum sl_status refuse_set(const json_t *object, const char *what, const char *const *keys,
                                 struct sl_error *err) {
    for (; *keys; keys++) {
        if (is_set(object, *keys)) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s sets %s, which is not supported", what, *keys);
        }
    }
    return SL_OK;
}

static enum sl_status refuse_type(const json_t *object, const char *what, const char *expected, struct sl_error *err) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s of type %.32s is not supported; expected %s", what,
                   type ? type : "(none)", expected);
}

// A file that a model folder may lack; *root_out stays NULL then.
static enum sl_status load_optional(const char *dir, const char *name, json_t **root_out, struct sl_error *err) {
    struct sl_error cause = {0};
    enum sl_status status = sl_json_file_load(dir, name, root_out, &cause);
    if (status == SL_ERR_NOT_FOUND) {
        return SL_OK;
    }
    return status == SL_OK ? SL_OK : sl_fail(err, status, "%s", cause.text);
}

// --- the parts of tokenizer.json -------------------------------------------------------------------------------------
static enum sl_status check_root(const json_t *root, struct sl_error *err) {
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const unset[] = {"truncation", "padding", NULL};
    enum sl_status status = sl_json_only(root, "tokenizer.json", keys, err);
    if (status == SL_OK) {
        status = refuse_set(root, "tokenizer.json", unset, err);
    }
    if (status == SL_OK && !has_type(json_object_get(root, "decoder"), "ByteLevel")) {
        status = refuse_type(json_object_get(root, "decoder"), "a decoder", "ByteLevel", err);
    }
    return status;
}

static enum sl_status check_model(const json_t *model, struct sl_error *err) {
    static const char *const keys[] = {"type",          "dropout",       "unk_token", "continuing_subword_prefix",
                                       "fuse_unk",      "vocab",         "merges",    "end_of_word_suffix",
                                       "byte_fallback", "ignore_merges", NULL};
    static const char *const unset[] = {"dropout",       "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                        "byte_fallback", NULL};
    // Files of before 2020 have no type; then only BPE has merges.
    if (json_is_object(model) && json_object_get(model, "type") && !has_type(model, "BPE")) {
        return refuse_type(model, "a model", "BPE", err);
    }
    enum sl_status status = sl_json_only(model, "model", keys, err);
    return status == SL_OK ? refuse_set(model, "model", unset, err) : status;
}

static enum sl_status load_normalizer(const json_t *normalizer, bool *nfc_out, struct sl_error *err) {
    static const char *const keys[] = {"type", "normalizers", NULL};
    bool nfc = false;
    if (normalizer && !json_is_null(normalizer)) {
        const json_t *steps = json_object_get(normalizer, "normalizers");
        enum sl_status status = sl_json_only(normalizer, "normalizer", keys, err);
        if (status != SL_OK) {
            return status;
        }
        if (has_type(normalizer, "NFC")) {
            nfc = true;
        } else if (!has_type(normalizer, "Sequence") || !json_is_array(steps)) {
            return refuse_type(normalizer, "a normalizer", "NFC or none", err);
        }
        for (size_t i = 0; i < json_array_size(steps); i++) {
            if (!has_type(json_array_get(steps, i), "NFC")) {
                return refuse_type(json_array_get(steps, i), "a normalizer", "NFC or none", err);
            }
            nfc = true;
        }
    }
    *nfc_out = nfc;
    return SL_OK;
}

// TemplateProcessing of one text: the text alone, or one special token in front of it, whose id is then *begin_id_out.
static enum sl_status read_template(const json_t *template, int32_t n_vocab, int32_t *begin_id_out,
                                    struct sl_error *err) {
    const json_t *single = json_object_get(template, "single");
    size_t n = json_array_size(single);
    const json_t *text = json_object_get(json_array_get(single, n - 1), "Sequence");
    if (n < 1 || n > 2 || !text) {
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "post_processor TemplateProcessing is not supported but for a text alone or behind one token");
    }
    if (n == 1) {
        return SL_OK;
    }
    const char *name =
        json_string_value(json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id"));
    const json_t *token = name ? json_object_get(json_object_get(template, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(token, "ids");
    const json_t *id = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= n_vocab) {
        return sl_fail(err, SL_ERR_INVALID, "post_processor: special token \"%.64s\" has not exactly one known id",
                       name ? name : "(none)");
    }
    *begin_id_out = (int32_t)json_integer_value(id);
    return SL_OK;
}

static enum sl_status read_post_processor(const json_t *processor, int32_t n_vocab, int32_t *begin_id_out,
                                          struct sl_error *err) {
    if (!processor || json_is_null(processor) || has_type(processor, "ByteLevel")) {
        return SL_OK; // ByteLevel adjusts offsets, not ids
    }
    if (has_type(processor, "TemplateProcessing")) {
        return read_template(processor, n_vocab, begin_id_out, err);
    }
    const json_t *steps = json_object_get(processor, "processors");
    if (!has_type(processor, "Sequence") || !json_is_array(steps)) {
        return refuse_type(processor, "a post_processor", "ByteLevel or TemplateProcessing", err);
    }
    bool template_seen = false;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        bool is_template = has_type(step, "TemplateProcessing");
        if ((!is_template && !has_type(step, "ByteLevel")) || (is_template && template_seen)) {
            return refuse_type(step, "a post_processor in a Sequence", "ByteLevel and one TemplateProcessing", err);
        }
        enum sl_status status = is_template ? read_template(step, n_vocab, begin_id_out, err) : SL_OK;
        if (status != SL_OK) {
            return status;
        }
        template_seen |= is_template;
    }
    return SL_OK;
}

// --- the begin token -------------------------------------------------------------------------------------------------
static int32_t id_of_text(const json_t *root, const char *text) {
    const json_t *added = json_object_get(root, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        if (strcmp(json_string_value(json_object_get(token, "content")), text) == 0) {
            return (int32_t)json_integer_value(json_object_get(token, "id"));
        }
    }
    const json_t *id = json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

// The token that tokenizer_config.json, or else generation_config.json, calls the begin token.
static enum sl_status named_begin(const json_t *root, const json_t *config, const json_t *generation, int32_t n_vocab,
                                  int32_t *begin_id_out, struct sl_error *err) {
    const json_t *named = json_object_get(config, "bos_token");
    const char *text = json_string_value(json_is_object(named) ? json_object_get(named, "content") : named);
    const json_t *number = json_object_get(generation, "bos_token_id");
    int32_t id = -1;
    if (text) {
        id = id_of_text(root, text);
    } else if (json_is_integer(number) && json_integer_value(number) < n_vocab) {
        id = (int32_t)json_integer_value(number);
    }
    if (id < 0) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "tokenizer_config.json says add_bos_token, but the begin token \"%.64s\" is not in the vocabulary",
            text ? text : "(none)");
    }
    *begin_id_out = id;
    return SL_OK;
}

// An explicit add_bos_token wins; without one the template of tokenizer.json decides.
static enum sl_status load_begin(const json_t *root, const json_t *config, const json_t *generation, int32_t n_vocab,
                                 int32_t *begin_id_out, struct sl_error *err) {
    static const char *const unset[] = {"add_eos_token", NULL};
    int32_t begin_id = -1;
    bool add = false;
    enum sl_status status = read_post_processor(json_object_get(root, "post_processor"), n_vocab, &begin_id, err);
    if (status == SL_OK) {
        status = refuse_set(config, "tokenizer_config.json", unset, err);
    }
    if (status == SL_OK) {
        status = sl_json_bool(config, "tokenizer_config.json", "add_bos_token", begin_id >= 0, &add, err);
    }
    if (status == SL_OK && add && begin_id < 0) {
        status = named_begin(root, config, generation, n_vocab, &begin_id, err);
    }
    if (status == SL_OK) {
        *begin_id_out = add ? begin_id : -1;
    }
    return status;
}

// --- the whole -------------------------------------------------------------------------------------------------------
static uint64_t hash_added(const struct sl_added_set *set, uint64_t hash) {
    for (size_t i = 0; i < set->n; i++) {
        const struct sl_added_token *token = &set->tokens[i];
        int32_t record[3] = {token->id, token->takes_left, token->takes_right};
        hash = sl_hash(record, sizeof(record), hash);
        hash = sl_hash(token->text, token->n_bytes, hash);
    }
    return sl_hash(&set->n, sizeof(set->n), hash);
}

// Everything that decides which ids a text gets and which text ids give.
static uint64_t fingerprint(const struct sl_tokenizer *tokenizer) {
    uint64_t hash = FINGERPRINT_SEED;
    for (int32_t i = 0; i < tokenizer->vocab.n; i++) {
        const struct sl_vocab_entry *entry = &tokenizer->vocab.entries[i];
        hash = sl_hash(entry->bytes, entry->n_bytes, hash + entry->special);
    }
    hash = hash_added(&tokenizer->added_raw, hash);
    hash = hash_added(&tokenizer->added_normalized, hash);
    uint64_t rest[5] = {tokenizer->bpe.digest, tokenizer->bpe.ignore_merges, tokenizer->pattern.digest, tokenizer->nfc,
                        (uint64_t)(int64_t)tokenizer->begin_id};
    return sl_hash(rest, sizeof(rest), hash);
}

enum sl_status sl_tokenizer_build(const json_t *root, const json_t *config, const json_t *generation,
                                  struct sl_tokenizer **tokenizer_out, struct sl_error *err) {
    struct sl_tokenizer *t = calloc(1, sizeof(*t));
    if (!t) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a tokenizer");
    }
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    bool ignore_merges = false;
    enum sl_status status = check_root(root, err);
    if (status != SL_OK || (status = check_model(model, err)) != SL_OK ||
        (status = sl_json_bool(model, "model", "ignore_merges", false, &ignore_merges, err)) != SL_OK ||
        (status = load_normalizer(json_object_get(root, "normalizer"), &t->nfc, err)) != SL_OK ||
        (status = sl_vocab_load(&t->vocab, json_object_get(model, "vocab"), added, err)) != SL_OK ||
        (status = sl_bpe_load(&t->bpe, &t->vocab, json_object_get(model, "merges"), ignore_merges, err)) != SL_OK ||
        (status = sl_added_load(&t->added_raw, added, false, t->nfc, err)) != SL_OK ||
        (status = sl_added_load(&t->added_normalized, added, true, t->nfc, err)) != SL_OK ||
        (status = sl_pattern_load(&t->pattern, json_object_get(root, "pre_tokenizer"), err)) != SL_OK ||
        (status = load_begin(root, config, generation, t->vocab.n, &t->begin_id, err)) != SL_OK) {
        sl_tokenizer_destroy(&t);
        return status;
    }
    t->fingerprint = fingerprint(t);
    *tokenizer_out = t;
    return SL_OK;
}

enum sl_status sl_tokenizer_load(const char *model_dir, struct sl_tokenizer **tokenizer_out, struct sl_error *err) {
    json_t *root = NULL, *config = NULL, *generation = NULL;
    enum sl_status status = sl_json_file_load(model_dir, "tokenizer.json", &root, err);
    if (status == SL_OK) {
        status = load_optional(model_dir, "tokenizer_config.json", &config, err);
    }
    if (status == SL_OK) {
        status = load_optional(model_dir, "generation_config.json", &generation, err);
    }
    if (status == SL_OK) {
        status = sl_tokenizer_build(root, config, generation, tokenizer_out, err);
        if (status != SL_OK) {
            sl_error_prefix(err, model_dir);
        }
    }
    json_decref(root);
    json_decref(config);
    json_decref(generation);
    return status;
}

void sl_tokenizer_destroy(struct sl_tokenizer **tokenizer) {
    struct sl_tokenizer *t = *tokenizer;
    if (t) {
        sl_pattern_cleanup(&t->pattern);
        sl_added_cleanup(&t->added_raw);
        sl_added_cleanup(&t->added_normalized);
        sl_bpe_cleanup(&t->bpe);
        sl_vocab_cleanup(&t->vocab);
        free(t);
    }
    *tokenizer = NULL;
}
