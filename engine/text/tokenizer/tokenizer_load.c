// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads the JSON files of a model folder and builds a tokenizer.
 *
 * Design: a tokenizer.json describes one of very many pipelines, of which some are supported. Every member that could
 *         change the pipeline is read, and rejected by name if it does. An unknown key is rejected too.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "engine/model/gguf/document.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define FINGERPRINT_SEED 1 // increase it when the same files give other ids

// --- members that say nothing, or what we do not do ------------------------------------------------------------------
static bool is_set(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    bool empty_text = json_is_string(value) && json_string_length(value) == 0;
    return value && !json_is_null(value) && !json_is_false(value) && !empty_text;
}

// Rejects the first of the NULL-terminated keys that is set.
static enum sl_status refuse_set(const json_t *object, const char *what, const char *const *keys,
                                 struct sl_error *err) {
    for (; *keys; keys++) {
        SL_FAIL_IF(is_set(object, *keys), err, SL_ERR_UNSUPPORTED, "%s sets %s, which is not supported", what, *keys);
    }
    return SL_OK;
}

static enum sl_status check_root(const json_t *root, struct sl_error *err) {
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const unset[] = {"truncation", "padding", NULL};
    enum sl_status status = sl_json_only(root, "tokenizer.json", keys, err);
    return status == SL_OK ? refuse_set(root, "tokenizer.json", unset, err) : status;
}

static enum sl_status check_model(const json_t *model, struct sl_error *err) {
    static const char *const keys[] = {"type",          "dropout",       "unk_token", "continuing_subword_prefix",
                                       "fuse_unk",      "vocab",         "merges",    "end_of_word_suffix",
                                       "byte_fallback", "ignore_merges", NULL};
    static const char *const unset[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", NULL};
    // Files from before 2020 have no type; then only BPE has merges.
    const json_t *type = json_object_get(model, "type");
    if (type && !sl_json_is_type(model, "BPE")) {
        const char *name = json_string_value(type);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a model of type %.32s is not supported; expected BPE",
                       name ? name : "(none)");
    }
    enum sl_status status = sl_json_only(model, "model", keys, err);
    return status == SL_OK ? refuse_set(model, "model", unset, err) : status;
}

// --- the whole -------------------------------------------------------------------------------------------------------
static uint64_t hash_added(const struct sl_added_set *set, uint64_t hash) {
    for (size_t i = 0; i < set->n; i++) {
        const struct sl_added_token *token = &set->tokens[i];
        int32_t record[4] = {token->id, token->takes_left, token->takes_right, token->single_word};
        hash = sl_hash(record, sizeof(record), hash);
        hash = sl_hash(token->text, token->n_bytes, hash);
    }
    return sl_hash(&set->n, sizeof(set->n), hash);
}

// Hashes everything that decides which ids a text gets and which text ids give.
static uint64_t fingerprint(const struct sl_tokenizer *tokenizer) {
    uint64_t hash = FINGERPRINT_SEED;
    for (int32_t i = 0; i < tokenizer->vocab.n; i++) {
        const struct sl_vocab_entry *entry = &tokenizer->vocab.entries[i];
        hash = sl_hash(entry->spelling, entry->n_spelling, hash + entry->special);
    }
    hash = hash_added(&tokenizer->added_raw, hash);
    hash = hash_added(&tokenizer->added_normalized, hash);
    uint64_t rest[] = {tokenizer->bpe.digest, tokenizer->normalizer.digest, tokenizer->pretokenizer.digest,
                       tokenizer->decoder.digest, tokenizer->vocab.byte_level};
    hash = sl_hash(&tokenizer->template, sizeof(tokenizer->template), hash);
    return sl_hash(rest, sizeof(rest), hash);
}

enum sl_status sl_tokenizer_build(const json_t *root, const json_t *config, const json_t *generation,
                                  struct sl_tokenizer **tokenizer_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_tokenizer, t, err, "no memory for a tokenizer");
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    enum sl_status status = check_root(root, err);
    if (status != SL_OK || (status = check_model(model, err)) != SL_OK ||
        (status = sl_normalizer_load(&t->normalizer, root, err)) != SL_OK ||
        (status = sl_pretokenizer_load(&t->pretokenizer, root, err)) != SL_OK ||
        (status = sl_vocab_load(&t->vocab, json_object_get(model, "vocab"), added, t->pretokenizer.byte_level, err)) !=
            SL_OK ||
        (status = sl_bpe_load(&t->bpe, &t->vocab, model, err)) != SL_OK ||
        (status = sl_added_load(&t->added_raw, added, false, &t->normalizer, err)) != SL_OK ||
        (status = sl_added_load(&t->added_normalized, added, true, &t->normalizer, err)) != SL_OK ||
        (status = sl_decoder_load(&t->decoder, &t->vocab, root, err)) != SL_OK ||
        (status = sl_template_load(&t->template, root, config, generation, t->vocab.n, err)) != SL_OK) {
        sl_tokenizer_destroy(&t);
        return status;
    }
    sl_least_load(t);
    t->fingerprint = fingerprint(t);
    *tokenizer_out = t;
    return SL_OK;
}

enum sl_status sl_tokenizer_load(const char *model_dir, struct sl_tokenizer **tokenizer_out, struct sl_error *err) {
    json_t *root = NULL, *config = NULL, *generation = NULL;
    enum sl_status status = sl_model_document_load(model_dir, "tokenizer.json", &root, err);
    SL_THEN(status, sl_model_document_load_optional(model_dir, "tokenizer_config.json", &config, err));
    SL_THEN(status, sl_model_document_load_optional(model_dir, "generation_config.json", &generation, err));
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
        sl_decoder_cleanup(&t->decoder);
        sl_pretokenizer_cleanup(&t->pretokenizer);
        sl_normalizer_cleanup(&t->normalizer);
        sl_added_cleanup(&t->added_raw);
        sl_added_cleanup(&t->added_normalized);
        sl_bpe_cleanup(&t->bpe);
        sl_vocab_cleanup(&t->vocab);
        free(t);
    }
    *tokenizer = NULL;
}
