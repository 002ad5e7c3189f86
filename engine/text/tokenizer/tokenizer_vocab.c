// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tokens of a model: spelling by id, id by spelling.
 *
 * Design: a byte-level vocabulary spells bytes with 256 printable characters. Printable Latin-1 characters stand for
 *         themselves; the other 68 bytes are U+0100, U+0101, ... in order. Loading translates once; later code uses
 *         only bytes. A token that is not spelled in that alphabet cannot result from merging, so it gets no slot in
 *         the hash; its spelling is its text. Other vocabularies are spelled as they are written.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define FIRST_SUBSTITUTE 0x100
#define N_SUBSTITUTES    68

static bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// Returns the byte that a character of the alphabet spells, or -1.
static int byte_of(int character) {
    int nth = character - FIRST_SUBSTITUTE;
    if (nth < 0) {
        return stands_for_itself(character) ? character : -1;
    }
    // The other bytes, in order: below 0x21, from 0x7f to 0xa0, and 0xad.
    return nth <= 0x20 ? nth : nth < N_SUBSTITUTES - 1 ? nth - 0x21 + 0x7f : nth == N_SUBSTITUTES - 1 ? 0xad : -1;
}

// Returns the character that spells a byte.
static int character_of(int byte) {
    if (stands_for_itself(byte)) {
        return byte;
    }
    return FIRST_SUBSTITUTE + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 0x21 : N_SUBSTITUTES - 1);
}

size_t sl_alphabet_from_bytes(const char *bytes, size_t n_bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        int character = character_of((unsigned char)bytes[i]);
        if (character >= 0x80) {
            out[n++] = (char)(0xc0 | character >> 6);
            character = 0x80 | (character & 0x3f);
        }
        out[n++] = (char)character;
    }
    return n;
}

bool sl_alphabet_to_bytes(const char *text, size_t n_bytes, char *out, size_t *n_bytes_out) {
    const unsigned char *p = (const unsigned char *)text, *end = p + n_bytes;
    size_t n = 0;
    while (p < end) {
        int character = *p++;
        if (character >= 0xc2 && character <= 0xdf && p < end) { // all characters of the alphabet have one or two bytes
            character = (character & 0x1f) << 6 | (*p++ & 0x3f);
        } else if (character >= 0x80) {
            return false;
        }
        int byte = byte_of(character);
        if (byte < 0) {
            return false;
        }
        out[n++] = (char)byte;
    }
    *n_bytes_out = n;
    return true;
}

bool sl_vocab_spell(const struct sl_vocab *vocab, const char *token, char *spelling_out, size_t *n_bytes_out) {
    size_t n_bytes = strlen(token);
    if (vocab->byte_level) {
        return sl_alphabet_to_bytes(token, n_bytes, spelling_out, n_bytes_out);
    }
    memcpy(spelling_out, token, n_bytes);
    *n_bytes_out = n_bytes;
    return true;
}

// --- id by spelling --------------------------------------------------------------------------------------------------
static size_t slot_of(const struct sl_vocab *vocab, const char *spelling, size_t n_bytes) {
    size_t mask = vocab->n_slots - 1;
    size_t i = (size_t)sl_hash(spelling, n_bytes, 0) & mask;
    while (vocab->slots[i] != 0) {
        const struct sl_vocab_entry *entry = &vocab->entries[vocab->slots[i] - 1];
        if (entry->n_spelling == n_bytes && memcmp(entry->spelling, spelling, n_bytes) == 0) {
            break;
        }
        i = (i + 1) & mask;
    }
    return i;
}

int32_t sl_vocab_find(const struct sl_vocab *vocab, const char *spelling, size_t n_bytes) {
    return vocab->slots[slot_of(vocab, spelling, n_bytes)] - 1;
}

// --- loading ---------------------------------------------------------------------------------------------------------
static enum sl_status check_id(const struct sl_vocab *vocab, const json_t *value, const char *token, int32_t *id_out,
                               struct sl_error *err) {
    SL_FAIL_IF(!json_is_integer(value), err, SL_ERR_INVALID, "the id of token \"%.64s\" is not an integer", token);
    json_int_t id = json_integer_value(value);
    SL_FAIL_IF(id < 0 || id >= vocab->n, err, SL_ERR_INVALID,
               "token \"%.64s\" has id %lld, but the %d tokens must have the ids 0 .. %d, each once", token,
               (long long)id, vocab->n, vocab->n - 1);
    *id_out = (int32_t)id;
    return SL_OK;
}

// Sets the spelling, which is at *blob, and advances it.
static void set_spelling(struct sl_vocab *vocab, struct sl_vocab_entry *entry, char **blob, size_t n_bytes) {
    *entry = (struct sl_vocab_entry){*blob, *blob, (uint32_t)n_bytes, (uint32_t)n_bytes, entry->special};
    *blob += n_bytes;
    vocab->max_text = n_bytes > vocab->max_text ? n_bytes : vocab->max_text;
}

// Copies a token of model.vocab to the blob; returns where the next one goes.
static enum sl_status add_model_token(struct sl_vocab *vocab, const char *token, const json_t *value, char **blob,
                                      struct sl_error *err) {
    int32_t id = -1;
    SL_TRY(check_id(vocab, value, token, &id, err));
    struct sl_vocab_entry *entry = &vocab->entries[id];
    SL_FAIL_IF(entry->spelling, err, SL_ERR_INVALID, "token \"%.64s\" has id %d, which another token has too", token,
               id);
    size_t n_bytes = 0;
    bool spelled = sl_vocab_spell(vocab, token, *blob, &n_bytes);
    if (!spelled) {
        n_bytes = strlen(token);
        memcpy(*blob, token, n_bytes);
    }
    SL_FAIL_IF(n_bytes == 0, err, SL_ERR_INVALID, "the token with id %d is empty", id);
    set_spelling(vocab, entry, blob, n_bytes);
    if (spelled) {
        vocab->slots[slot_of(vocab, entry->spelling, n_bytes)] = id + 1;
    }
    return SL_OK;
}

// Adds an added token: it is new, or names a token of the model's vocabulary again under the same id.
static enum sl_status add_added_token(struct sl_vocab *vocab, const json_t *model_vocab, const json_t *added,
                                      char **blob, struct sl_error *err) {
    const char *content = json_string_value(json_object_get(added, "content"));
    SL_FAIL_IF(!content || !content[0], err, SL_ERR_INVALID, "an added token has no content");
    bool special = false;
    int32_t id = -1;
    SL_TRY(sl_json_bool(added, content, "special", false, &special, err));
    SL_TRY(check_id(vocab, json_object_get(added, "id"), content, &id, err));
    struct sl_vocab_entry *entry = &vocab->entries[id];
    const json_t *known = json_object_get(model_vocab, content);
    bool again = known && json_integer_value(known) == id;
    SL_FAIL_IF((known && !again) || (!known && entry->spelling), err, SL_ERR_INVALID,
               "added token \"%.64s\" has id %d, but the vocabulary says otherwise", content, id);
    size_t n_bytes = strlen(content);
    entry->special = special;
    if (!known) { // its spelling is its text, even if that is in the alphabet
        memcpy(*blob, content, n_bytes);
        set_spelling(vocab, entry, blob, n_bytes);
    }
    return SL_OK;
}

// Counts the tokens, and the bytes of all their texts.
static enum sl_status measure(const json_t *model_vocab, const json_t *added_tokens, size_t *n_out,
                              size_t *n_blob_bytes_out, struct sl_error *err) {
    SL_FAIL_IF(!json_is_object(model_vocab), err, SL_ERR_INVALID, "model.vocab is missing or not an object");
    SL_FAIL_IF(added_tokens && !json_is_array(added_tokens), err, SL_ERR_INVALID, "added_tokens is not an array");
    size_t n = json_object_size(model_vocab), n_blob_bytes = 0;
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)model_vocab, token, value) {
        n_blob_bytes += strlen(token);
    }
    for (size_t i = 0; i < json_array_size(added_tokens); i++) {
        const char *content = json_string_value(json_object_get(json_array_get(added_tokens, i), "content"));
        n += content && !json_object_get(model_vocab, content);
        n_blob_bytes += content ? strlen(content) : 0;
    }
    SL_FAIL_IF(n == 0, err, SL_ERR_INVALID, "the vocabulary is empty");
    *n_out = n; // the limit on the file keeps it far below INT32_MAX
    *n_blob_bytes_out = n_blob_bytes;
    return SL_OK;
}

static enum sl_status add_tokens(struct sl_vocab *vocab, const json_t *model_vocab, const json_t *added_tokens,
                                 struct sl_error *err) {
    char *blob = vocab->blob;
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)model_vocab, token, value) {
        SL_TRY(add_model_token(vocab, token, value, &blob, err));
    }
    for (size_t i = 0; i < json_array_size(added_tokens); i++) {
        SL_TRY(add_added_token(vocab, model_vocab, json_array_get(added_tokens, i), &blob, err));
    }
    for (int32_t i = 0; i < vocab->n; i++) { // an added token that is listed twice was counted twice
        SL_FAIL_IF(!vocab->entries[i].spelling, err, SL_ERR_INVALID, "no token has id %d, though %d tokens are listed",
                   i, vocab->n);
    }
    return SL_OK;
}

enum sl_status sl_vocab_load(struct sl_vocab *vocab, const json_t *model_vocab, const json_t *added_tokens,
                             bool byte_level, struct sl_error *err) {
    *vocab = (struct sl_vocab){.byte_level = byte_level};
    size_t n = 0, n_blob_bytes = 0;
    SL_TRY(measure(model_vocab, added_tokens, &n, &n_blob_bytes, err));
    size_t n_slots = 16;
    while (n_slots < n * 2) {
        n_slots *= 2;
    }
    vocab->n = (int32_t)n;
    vocab->n_slots = n_slots;
    vocab->entries = calloc(n, sizeof(*vocab->entries));
    vocab->slots = calloc(n_slots, sizeof(*vocab->slots));
    vocab->blob = malloc(n_blob_bytes + 1);
    enum sl_status status = vocab->entries && vocab->slots && vocab->blob
                                ? add_tokens(vocab, model_vocab, added_tokens, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a vocabulary of %zu tokens", n);
    SL_TRY_OR(status, sl_vocab_cleanup(vocab));
    return SL_OK;
}

void sl_vocab_cleanup(struct sl_vocab *vocab) {
    free(vocab->entries);
    free(vocab->slots);
    free(vocab->blob);
    *vocab = (struct sl_vocab){0};
}
