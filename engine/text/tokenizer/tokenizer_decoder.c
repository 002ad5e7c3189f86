// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the decoder of the file: the text that each token gives.
 *
 * Design: most steps process one token at a time (Replace, Metaspace, ByteFallback, ByteLevel), so they run at load
 *         time and produce a text for each token. The detokenizer does what depends on the position in a text: the
 *         first token's marks, and the spaces that Strip removes from the beginning.
 *
 * To add a step: a function that parses it, a line in kinds[] and one in stages[].
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

// The steps while loading. Each works on the result of the one before, so their order matters; see stages[].
struct loading {
    struct sl_decoder *decoder;
    const char *from[SL_MAX_STEPS], *to[SL_MAX_STEPS]; // for Replace and Metaspace
    int n_replaces;
    bool byte_level;
    int stage; // stage of the last step
};

enum stage { START, TOKENS, WHOLE_TOKENS, FUSED, STRIPPED };

// A step must follow one whose stage is between `low` and `high`.
static const struct {
    const char *type;
    enum stage low, high, own;
} stages[] = {
    {"ByteLevel", START, START, STRIPPED}, // no other step is allowed
    {"Metaspace", START, START, TOKENS},
    {"Replace", START, TOKENS, TOKENS},
    {"ByteFallback", START, TOKENS, WHOLE_TOKENS},
    {"Fuse", START, FUSED, FUSED},
    {"Strip", FUSED, FUSED, STRIPPED},
};

static enum sl_status begin_step(struct loading *loading, const json_t *step, const char *what, struct sl_error *err) {
    const char *type = json_string_value(json_object_get(step, "type"));
    size_t i = 0;
    while (strcmp(stages[i].type, type) != 0) {
        i++;
    }
    SL_FAIL_IF(loading->stage < (int)stages[i].low || loading->stage > (int)stages[i].high ||
                   (loading->decoder->first_loses_marks && loading->n_replaces > 0 && stages[i].own == TOKENS),
               err, SL_ERR_UNSUPPORTED, "%s is not supported in this place among the decoder's steps", what);
    loading->stage = (int)stages[i].own;
    loading->decoder->digest = sl_hash(type, strlen(type) + 1, loading->decoder->digest);
    return SL_OK;
}

// --- steps -----------------------------------------------------------------------------------------------------------
static enum sl_status add_replacement(struct loading *loading, const char *what, const char *from, const char *to,
                                      struct sl_error *err) {
    SL_FAIL_IF(loading->n_replaces == SL_MAX_STEPS, err, SL_ERR_UNSUPPORTED, "decoder: more than %d steps",
               SL_MAX_STEPS);
    SL_FAIL_IF(strlen(to) > strlen(from), err, SL_ERR_UNSUPPORTED, "%s makes tokens longer, which is not supported",
               what);
    loading->from[loading->n_replaces] = from;
    loading->to[loading->n_replaces++] = to;
    return SL_OK;
}

static enum sl_status add_replace(void *part, const json_t *step, const char *what, struct sl_error *err) {
    const char *from, *to;
    SL_TRY(sl_json_replace(step, what, &from, &to, err));
    SL_TRY(begin_step(part, step, what, err));
    return add_replacement(part, what, from, to, err);
}

static enum sl_status add_metaspace(void *part, const json_t *step, const char *what, struct sl_error *err) {
    struct loading *loading = part;
    enum sl_prepend prepend = SL_PREPEND_NEVER;
    bool split = false; // has no effect here
    SL_TRY(sl_metaspace_read(step, what, &prepend, &split, err));
    SL_TRY(begin_step(loading, step, what, err));
    loading->decoder->first_loses_marks = prepend != SL_PREPEND_NEVER;
    return add_replacement(loading, what, SL_MARK, " ", err);
}

static enum sl_status add_byte_fallback(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", NULL};
    struct loading *loading = part;
    enum sl_status status = sl_json_only(step, what, keys, err);
    loading->decoder->byte_fallback = true;
    return status == SL_OK ? begin_step(loading, step, what, err) : status;
}

static enum sl_status add_fuse(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", NULL};
    SL_TRY(sl_json_only(step, what, keys, err));
    return begin_step(part, step, what, err);
}

static enum sl_status add_strip(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "content", "start", "stop", NULL};
    struct sl_decoder *decoder = ((struct loading *)part)->decoder;
    const json_t *start = json_object_get(step, "start"), *stop = json_object_get(step, "stop");
    const char *content = NULL;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_text(step, what, "content", &content, err));
    SL_TRY(begin_step(part, step, what, err));
    size_t n_bytes = strlen(content);
    SL_FAIL_IF(sl_utf8_length((const unsigned char *)content, n_bytes) != (int)n_bytes || !json_is_integer(start) ||
                   json_integer_value(start) < 0 || json_integer_value(start) > INT32_MAX || !json_is_integer(stop),
               err, SL_ERR_INVALID, "%s: \"content\" is not one character, or \"start\" or \"stop\" no count", what);
    SL_FAIL_IF(json_integer_value(stop) != 0, err, SL_ERR_UNSUPPORTED, "%s sets stop, which is not supported", what);
    memcpy(decoder->stripped, content, n_bytes + 1);
    decoder->n_stripped = (int)json_integer_value(start);
    decoder->digest = sl_hash(content, n_bytes, decoder->digest + (uint64_t)decoder->n_stripped);
    return SL_OK;
}

static enum sl_status add_byte_level(void *part, const json_t *step, const char *what, struct sl_error *err) {
    ((struct loading *)part)->byte_level = true; // its options concern the pre-tokenizer alone
    return begin_step(part, step, what, err);
}

static const struct sl_json_step kinds[] = {
    {"ByteLevel", add_byte_level},
    {"Metaspace", add_metaspace},
    {"Replace", add_replace},
    {"ByteFallback", add_byte_fallback},
    {"Fuse", add_fuse},
    {"Strip", add_strip},
    {NULL, NULL},
};

// --- the tokens' texts -----------------------------------------------------------------------------------------------
// Reads "<0x0A>" as the byte 0x0a.
static bool read_byte(const struct sl_text *text, char *byte_out) {
    const char *p = text->bytes;
    if (text->n_bytes != 6 || !sl_text_begins(text, "<0x") || !isxdigit((unsigned char)p[3]) ||
        !isxdigit((unsigned char)p[4]) || p[5] != '>') {
        return false;
    }
    char digits[3] = {p[3], p[4]};
    *byte_out = (char)strtol(digits, NULL, 16);
    return true;
}

// Writes the text of one token to *blob, and advances it, if the text differs from the spelling.
static enum sl_status set_text(const struct loading *loading, struct sl_vocab_entry *entry, char **blob) {
    struct sl_text text = {.bytes = entry->spelling, .n_bytes = entry->n_spelling};
    enum sl_status status = SL_OK;
    char byte = 0;
    for (int i = 0; i < loading->n_replaces && status == SL_OK; i++) {
        status = sl_text_replace(&text, loading->from[i], loading->to[i]);
    }
    SL_TRY_OR(status, sl_text_cleanup(&text));
    if (loading->decoder->byte_fallback && read_byte(&text, &byte)) {
        sl_text_cleanup(&text);
        text = (struct sl_text){.bytes = &byte, .n_bytes = 1};
    }
    if (text.bytes != entry->spelling) {
        memcpy(*blob, text.bytes, text.n_bytes);
        entry->text = *blob;
        entry->n_text = (uint32_t)text.n_bytes;
        *blob += text.n_bytes;
    }
    sl_text_cleanup(&text);
    return SL_OK;
}

static enum sl_status set_texts(const struct loading *loading, struct sl_vocab *vocab, struct sl_error *err) {
    size_t n_bytes = 1;
    for (int32_t id = 0; id < vocab->n; id++) {
        n_bytes += vocab->entries[id].n_spelling;
    }
    char *blob = loading->decoder->blob = malloc(n_bytes);
    enum sl_status status = blob ? SL_OK : SL_ERR_EXHAUSTED;
    for (int32_t id = 0; id < vocab->n && status == SL_OK; id++) {
        status = set_text(loading, &vocab->entries[id], &blob);
    }
    return status == SL_OK ? SL_OK : sl_fail(err, status, "no memory for the texts of %d tokens", vocab->n);
}

// --- the whole -------------------------------------------------------------------------------------------------------
enum sl_status sl_decoder_load(struct sl_decoder *decoder, struct sl_vocab *vocab, const json_t *root,
                               struct sl_error *err) {
    *decoder = (struct sl_decoder){0};
    struct loading loading = {.decoder = decoder};
    enum sl_status status = sl_json_steps(root, "decoder", "decoders", kinds, &loading, err);
    if (status == SL_OK && loading.byte_level != vocab->byte_level) {
        const char *type = json_string_value(json_object_get(json_object_get(root, "decoder"), "type"));
        status = sl_fail(err, SL_ERR_UNSUPPORTED, "decoder %.32s with%s pre_tokenizer ByteLevel is not supported",
                         type ? type : "(none)", vocab->byte_level ? "" : "out");
    }
    if (status == SL_OK && loading.stage == START) {
        status = sl_fail(err, SL_ERR_UNSUPPORTED,
                         "a decoder without steps, which puts spaces between tokens, is not "
                         "supported");
    }
    if (status == SL_OK && !vocab->byte_level) {
        status = set_texts(&loading, vocab, err);
    }
    decoder->digest += decoder->first_loses_marks;
    for (int i = 0; i < loading.n_replaces && status == SL_OK; i++) {
        decoder->digest = sl_hash(loading.from[i], strlen(loading.from[i]) + 1, decoder->digest);
        decoder->digest = sl_hash(loading.to[i], strlen(loading.to[i]) + 1, decoder->digest);
    }
    if (status != SL_OK) {
        sl_decoder_cleanup(decoder);
    }
    return status;
}

void sl_decoder_cleanup(struct sl_decoder *decoder) {
    free(decoder->blob);
    *decoder = (struct sl_decoder){0};
}
