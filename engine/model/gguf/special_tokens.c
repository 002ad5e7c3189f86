// SPDX-License-Identifier: Apache-2.0
/*
 * Design: tokenizer.json has megabytes, so it is read only if tokenizer_config.json lacks added_tokens_decoder or the
 *         end of a text.
 */
#include "engine/model/gguf/special_tokens.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/gguf/document.h"

#define CONTROL 3 // a value of tokenizer.ggml.token_type

// Special tokens found in a model's documents.
struct found {
    json_t *specials;
    const char *eos; // NULL: no document names one
    int64_t eos_id;
};

static enum sl_status read_gguf(const struct sl_gguf *gguf, struct found *found, struct sl_error *err) {
    const struct sl_gguf_value *tokens = sl_gguf_value(gguf, "tokenizer.ggml.tokens");
    const struct sl_gguf_value *types = sl_gguf_value(gguf, "tokenizer.ggml.token_type");
    found->eos_id = sl_gguf_integer(gguf, "tokenizer.ggml.eos_token_id", -1);
    if (tokens == NULL || !tokens->is_array || tokens->kind != SL_GGUF_STRING || types == NULL || !types->is_array) {
        return SL_OK; // the tokenizer's loader reports the error
    }
    const unsigned char *at = tokens->data;
    for (uint64_t i = 0; i < tokens->n; i++) {
        struct sl_gguf_text text = sl_gguf_next_text(&at);
        int64_t type = 0;
        bool is_control = i < types->n && sl_gguf_as_integer(types, i, &type) && type == CONTROL;
        // A token that is not UTF-8 has no name here.
        json_t *name = is_control ? json_stringn(text.at, text.n_bytes) : NULL;
        bool failed = name != NULL &&
                      json_object_set_new(found->specials, json_string_value(name), json_integer((json_int_t)i)) != 0;
        json_decref(name);
        SL_FAIL_IF(failed, err, SL_ERR_EXHAUSTED, "no memory for special tokens");
    }
    return SL_OK;
}

static enum sl_status add(struct found *found, const json_t *token, json_int_t id, struct sl_error *err) {
    const char *content = json_string_value(json_object_get(token, "content"));
    if (content != NULL && found->eos != NULL && strcmp(content, found->eos) == 0) {
        found->eos_id = id;
    }
    if (content == NULL || !json_is_true(json_object_get(token, "special"))) {
        return SL_OK;
    }
    return json_object_set_new(found->specials, content, json_integer(id)) == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for special tokens");
}

// Adds {"0": {"content": "<|endoftext|>", "special": true}, ...}.
static enum sl_status add_decoder(struct found *found, const json_t *decoder, struct sl_error *err) {
    const char *key;
    json_t *token;
    enum sl_status status = SL_OK;
    json_object_foreach((json_t *)decoder, key, token) {
        char *end;
        long long id = strtoll(key, &end, 10);
        status = status == SL_OK && *key != '\0' && *end == '\0' ? add(found, token, id, err) : status;
    }
    return status;
}

// Adds [{"id": 0, "content": "<|endoftext|>", "special": true}, ...].
static enum sl_status add_list(struct found *found, const json_t *list, struct sl_error *err) {
    size_t i;
    const json_t *token;
    enum sl_status status = SL_OK;
    json_array_foreach(list, i, token) {
        const json_t *id = json_object_get(token, "id");
        status = status == SL_OK && json_is_integer(id) ? add(found, token, json_integer_value(id), err) : status;
    }
    return status;
}

static const char *eos_of(const json_t *config) {
    const json_t *token = json_object_get(config, "eos_token");
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static enum sl_status read_folder(const char *model, struct found *found, struct sl_error *err) {
    json_t *config = NULL, *map = NULL, *tokenizer = NULL;
    enum sl_status status = sl_model_document_load_optional(model, "tokenizer_config.json", &config, err);
    if (status == SL_OK && eos_of(config) == NULL) {
        status = sl_model_document_load_optional(model, "special_tokens_map.json", &map, err);
    }
    found->eos = eos_of(config) != NULL ? eos_of(config) : eos_of(map);
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    SL_THEN(status, add_decoder(found, decoder, err));
    if (status == SL_OK && (json_object_size(decoder) == 0 || (found->eos != NULL && found->eos_id < 0))) {
        status = sl_model_document_load_optional(model, "tokenizer.json", &tokenizer, err);
    }
    SL_THEN(status, add_list(found, json_object_get(tokenizer, "added_tokens"), err));
    if (found->eos != NULL && found->eos_id < 0) {
        const json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
        const json_t *id = json_object_get(vocab, found->eos);
        found->eos_id = json_is_integer(id) ? json_integer_value(id) : -1;
    }
    found->eos = NULL; // the documents own it
    json_decref(config);
    json_decref(map);
    json_decref(tokenizer);
    return status;
}

enum sl_status sl_model_special_tokens(const char *model, json_t **tokens_out, int64_t *eos_id_out,
                                       struct sl_error *err) {
    struct sl_gguf *gguf = NULL;
    enum sl_status status = sl_model_gguf_open(model, &gguf, err);
    struct found found = {.specials = json_object(), .eos_id = -1};
    if (status == SL_OK && found.specials == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for special tokens");
    }
    SL_THEN(status, gguf != NULL ? read_gguf(gguf, &found, err) : read_folder(model, &found, err));
    sl_gguf_close(&gguf);
    SL_TRY_OR(status, json_decref(found.specials));
    *tokens_out = found.specials;
    *eos_id_out = found.eos_id;
    return SL_OK;
}
