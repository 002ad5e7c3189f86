// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: makes tokenizer.json and tokenizer_config.json from a GGUF file's metadata.
 *
 * Design: there are two models. "gpt2" has tokens in the alphabet of bytes, a list of merges, and a name that stands
 *         for normalizer and pre-tokenizer (gguf_pretokenizers.c). "llama" is SentencePiece's model, with token
 *         scores and no merges: every way to cut a token into two is a merge, and the score of the result ranks it.
 *         Control tokens and user-added tokens are cut out of text first; the others are the vocabulary.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "engine/model/gguf/document.h"
#include "engine/model/gguf/gguf_json.h"
#include "engine/model/gguf/pretokenizers.h"

#define MAX_TOKENS      (1 << 24)
#define MAX_TOKEN_BYTES 1024 // model "llama": the work of cutting is quadratic

enum token_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct making {
    const struct sl_gguf *gguf;
    const struct sl_gguf_value *tokens, *types, *scores; // scores: model "llama" only
    struct sl_gguf_text *texts;                          // [n]
    uint64_t n;
    bool is_llama;
    const struct sl_pretokenizer_name *pre; // model "gpt2"
    json_t *vocab;                          // text -> id
    bool ok;                                // as in sl_json_put()
    bool exhausted;                         // no memory for merges
    struct sl_error *err;
};

static enum sl_status read_lists(struct making *m) {
    m->tokens = sl_gguf_value(m->gguf, "tokenizer.ggml.tokens");
    m->types = sl_gguf_value(m->gguf, "tokenizer.ggml.token_type");
    m->scores = sl_gguf_value(m->gguf, "tokenizer.ggml.scores");
    SL_FAIL_IF(m->tokens == NULL || !m->tokens->is_array || m->tokens->kind != SL_GGUF_STRING || m->tokens->n < 1 ||
                   m->tokens->n > MAX_TOKENS,
               m->err, SL_ERR_INVALID, "tokenizer.ggml.tokens is missing or no list of 1 to %d texts", MAX_TOKENS);
    m->n = m->tokens->n;
    SL_FAIL_IF(m->types != NULL && (!m->types->is_array || m->types->kind != SL_GGUF_I32 || m->types->n != m->n),
               m->err, SL_ERR_INVALID, "tokenizer.ggml.token_type is not a list of %llu numbers, one a token",
               (unsigned long long)m->n);
    SL_FAIL_IF(m->is_llama && (m->scores == NULL || !m->scores->is_array || m->scores->kind != SL_GGUF_F32 ||
                               m->scores->n != m->n),
               m->err, SL_ERR_INVALID, "tokenizer.ggml.scores is not a list of %llu numbers, one a token",
               (unsigned long long)m->n);
    m->texts = calloc(m->n, sizeof *m->texts);
    SL_FAIL_IF(m->texts == NULL, m->err, SL_ERR_EXHAUSTED, "out of memory for %llu tokens", (unsigned long long)m->n);
    const unsigned char *at = m->tokens->data;
    for (uint64_t i = 0; i < m->n; i++) {
        m->texts[i] = sl_gguf_next_text(&at);
    }
    return SL_OK;
}

static enum token_type type_of(const struct making *m, uint64_t id) {
    int64_t type = NORMAL;
    if (m->types != NULL) {
        (void)sl_gguf_as_integer(m->types, id, &type);
    }
    return (enum token_type)type;
}

static bool is_added(enum token_type type) {
    return type == CONTROL || type == USER_DEFINED;
}

static struct sl_gguf_text token_at(const struct making *m, const char *key) {
    int64_t id = sl_gguf_integer(m->gguf, key, -1);
    return id >= 0 && (uint64_t)id < m->n ? m->texts[id] : (struct sl_gguf_text){0};
}

// --- vocabulary ------------------------------------------------------------------------------------------------------

static enum sl_status make_vocab(struct making *m) {
    m->vocab = json_object();
    for (uint64_t i = 0; i < m->n; i++) {
        struct sl_gguf_text text = m->texts[i];
        if (is_added(type_of(m, i))) {
            continue;
        }
        SL_FAIL_IF(text.n_bytes == 0 || memchr(text.at, '\0', text.n_bytes) != NULL, m->err, SL_ERR_INVALID,
                   "token %llu is empty or has a zero byte", (unsigned long long)i);
        SL_FAIL_IF(m->is_llama && text.n_bytes > MAX_TOKEN_BYTES, m->err, SL_ERR_UNSUPPORTED,
                   "token %llu has %zu bytes; up to %d are supported", (unsigned long long)i, text.n_bytes,
                   MAX_TOKEN_BYTES);
        SL_FAIL_IF(json_object_getn(m->vocab, text.at, text.n_bytes) != NULL, m->err, SL_ERR_INVALID,
                   "token %llu, \"%.*s\", is there twice", (unsigned long long)i, (int)sl_gguf_shown(text).n_bytes,
                   text.at);
        SL_FAIL_IF(json_object_setn_new(m->vocab, text.at, text.n_bytes, json_integer((json_int_t)i)) != 0, m->err,
                   SL_ERR_INVALID, "token %llu is not UTF-8, or there is no memory for it", (unsigned long long)i);
    }
    const struct sl_gguf_value *merges = sl_gguf_value(m->gguf, "tokenizer.ggml.merges");
    SL_FAIL_IF(!m->is_llama && (merges == NULL || !merges->is_array || merges->kind != SL_GGUF_STRING), m->err,
               SL_ERR_INVALID, "tokenizer.ggml.merges is missing or no list of texts");
    return SL_OK;
}

// Returns whether a token takes the white space after it. Phi-3's special tokens do, except three; its files do not
// say so.
static bool takes_right(const struct making *m, struct sl_gguf_text text, enum token_type type) {
    return m->is_llama && type == CONTROL && sl_gguf_text_is(sl_gguf_text(m->gguf, "general.architecture"), "phi3") &&
           !sl_gguf_text_is(text, "<s>") && !sl_gguf_text_is(text, "<|endoftext|>");
}

static json_t *make_added(struct making *m) {
    json_t *list = json_array();
    for (uint64_t i = 0; i < m->n; i++) {
        enum token_type type = type_of(m, i);
        if (!is_added(type) && type != UNKNOWN) {
            continue;
        }
        json_t *token = json_pack("{s:I, s:o, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                                  sl_gguf_json_text(m->texts[i]), "special", type != USER_DEFINED, "normalized", false,
                                  "rstrip", takes_right(m, m->texts[i], type));
        m->ok = json_array_append_new(list, token) == 0 && m->ok;
    }
    return list;
}

// --- merges ----------------------------------------------------------------------------------------------------------

struct cut {
    struct sl_gguf_text text; // result of the merge
    size_t n_left;            // bytes of the left half
    double score;
    size_t left_characters, right_characters;
    uint64_t order; // breaks remaining ties
};

struct cuts {
    struct cut *list;
    size_t n, capacity;
};

static bool push_cut(struct cuts *cuts, struct cut cut) {
    if (!SL_GROW(cuts->list, cuts->n, cuts->capacity)) {
        return false;
    }
    cuts->list[cuts->n++] = cut;
    return true;
}

static bool begins_character(char byte) {
    return ((unsigned char)byte & 0xc0) != 0x80;
}

static size_t count_characters(const char *text, size_t n_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        n += begins_character(text[i]);
    }
    return n;
}

// Orders by best score; equal ones by the longer left half, then the longer right half, then ids.
static int compare_cuts(const void *a, const void *b) {
    const struct cut *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    if (x->left_characters != y->left_characters) {
        return x->left_characters > y->left_characters ? -1 : 1;
    }
    if (x->right_characters != y->right_characters) {
        return x->right_characters > y->right_characters ? -1 : 1;
    }
    return x->order < y->order ? -1 : x->order > y->order;
}

// Collects all ways to cut token `id` into two tokens of the vocabulary. Returns false if memory runs out.
static bool cut_token(const struct making *m, uint64_t id, struct cuts *cuts) {
    struct sl_gguf_text text = m->texts[id];
    size_t all = count_characters(text.at, text.n_bytes), left = 1;
    for (size_t at = 1; at < text.n_bytes; at++) {
        if (!begins_character(text.at[at])) {
            continue;
        }
        const json_t *first = json_object_getn(m->vocab, text.at, at);
        const json_t *second = json_object_getn(m->vocab, text.at + at, text.n_bytes - at);
        struct cut cut = {text, at, sl_gguf_element(m->scores, id), left, all - left, id << 32 | cuts->n};
        if (first != NULL && second != NULL && !push_cut(cuts, cut)) {
            return false;
        }
        left++;
    }
    return true;
}

static json_t *merges_of_scores(struct making *m) {
    struct cuts cuts = {0};
    json_t *merges = json_array();
    for (uint64_t i = 0; i < m->n && m->ok && !m->exhausted; i++) {
        bool is_normal = type_of(m, i) == NORMAL;
        m->ok = !is_normal || !isnan(sl_gguf_element(m->scores, i)); // NaN cannot be ordered
        m->exhausted = is_normal && m->ok && !cut_token(m, i, &cuts);
    }
    if (cuts.n > 0) {
        qsort(cuts.list, cuts.n, sizeof *cuts.list, compare_cuts);
    }
    for (size_t i = 0; i < cuts.n && m->ok; i++) {
        const struct cut *cut = &cuts.list[i];
        json_t *halves = json_pack("[s%, s%]", cut->text.at, cut->n_left, cut->text.at + cut->n_left,
                                   cut->text.n_bytes - cut->n_left);
        m->ok = json_array_append_new(merges, halves) == 0;
    }
    free(cuts.list);
    return merges;
}

static json_t *merges_of_file(struct making *m) {
    const struct sl_gguf_value *list = sl_gguf_value(m->gguf, "tokenizer.ggml.merges");
    json_t *merges = json_array(); // may be empty: then tokens of single bytes remain
    const unsigned char *at = list->data;
    for (uint64_t i = 0; i < list->n; i++) {
        m->ok = json_array_append_new(merges, sl_gguf_json_text(sl_gguf_next_text(&at))) == 0 && m->ok;
    }
    return merges;
}

// --- what is around --------------------------------------------------------------------------------------------------

static void put_json(struct making *m, json_t *root, const char *key, const char *text) {
    if (text != NULL) {
        sl_json_put(root, key, json_loads(text, 0, NULL), &m->ok);
    }
}

static void put_steps(struct making *m, json_t *root) {
    if (!m->is_llama) {
        put_json(m, root, "normalizer", m->pre->normalizer);
        put_json(m, root, "pre_tokenizer", m->pre->pre_tokenizer);
        put_json(m, root, "decoder", "{\"type\": \"ByteLevel\"}");
        return;
    }
    bool prefix = sl_gguf_bool(m->gguf, "tokenizer.ggml.add_space_prefix", true);
    put_json(m, root, "normalizer",
             prefix ? "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"},"
                      "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}]}"
                    : "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}");
    put_json(m, root, "decoder",
             prefix ? "{\"type\": \"Sequence\", \"decoders\": ["
                      "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"},"
                      "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},"
                      "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}"
                    : "{\"type\": \"Sequence\", \"decoders\": ["
                      "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"},"
                      "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}");
}

static bool adds_begin(const struct making *m) {
    return sl_gguf_bool(m->gguf, "tokenizer.ggml.add_bos_token", m->is_llama || m->pre->adds_begin);
}

// Adds one special token of a template, with its properties there.
static void add_special(struct making *m, json_t *single, json_t *known, const char *key) {
    struct sl_gguf_text text = token_at(m, key);
    json_t *place = json_pack("{s:{s:o}}", "SpecialToken", "id", sl_gguf_json_text(text));
    json_t *special =
        json_pack("{s:o, s:[I]}", "id", sl_gguf_json_text(text), "ids", (json_int_t)sl_gguf_integer(m->gguf, key, -1));
    m->ok = json_array_append_new(single, place) == 0 && m->ok;
    m->ok = json_object_setn_new(known, text.at, text.n_bytes, special) == 0 && m->ok;
}

static void put_template(struct making *m, json_t *root) {
    bool begin = adds_begin(m) && token_at(m, "tokenizer.ggml.bos_token_id").at != NULL;
    bool end = sl_gguf_bool(m->gguf, "tokenizer.ggml.add_eos_token", false) &&
               token_at(m, "tokenizer.ggml.eos_token_id").at != NULL;
    if (!begin && !end) {
        return;
    }
    json_t *single = json_array(), *known = json_object();
    if (begin) {
        add_special(m, single, known, "tokenizer.ggml.bos_token_id");
    }
    m->ok = json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A")) == 0 && m->ok;
    if (end) {
        add_special(m, single, known, "tokenizer.ggml.eos_token_id");
    }
    json_t *template =
        json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single, "special_tokens", known);
    sl_json_put(root, "post_processor", template, &m->ok);
}

static enum sl_status make_model(struct making *m, json_t *root) {
    SL_TRY(make_vocab(m));
    json_t *merges = m->is_llama ? merges_of_scores(m) : merges_of_file(m);
    json_t *model = json_pack("{s:s, s:o, s:O}", "type", "BPE", "merges", merges, "vocab", m->vocab);
    sl_json_put(root, "model", model, &m->ok);
    if (m->is_llama) {
        struct sl_gguf_text unknown = token_at(m, "tokenizer.ggml.unknown_token_id");
        sl_json_put(model, "byte_fallback", json_true(), &m->ok);
        sl_json_put(model, "fuse_unk", json_true(), &m->ok);
        if (unknown.at != NULL) {
            sl_json_put(model, "unk_token", sl_gguf_json_text(unknown), &m->ok);
        }
    } else {
        sl_json_put(model, "ignore_merges", json_boolean(m->pre->ignores_merges), &m->ok);
    }
    return SL_OK;
}

// --- the documents ---------------------------------------------------------------------------------------------------

static enum sl_status begin(struct making *m, const struct sl_gguf *gguf, struct sl_error *err) {
    struct sl_gguf_text model = sl_gguf_text(gguf, "tokenizer.ggml.model"),
                        pre = sl_gguf_text(gguf, "tokenizer.ggml.pre");
    *m = (struct making){.gguf = gguf, .is_llama = sl_gguf_text_is(model, "llama"), .ok = true, .err = err};
    SL_FAIL_IF(!m->is_llama && !sl_gguf_text_is(model, "gpt2"), err, SL_ERR_UNSUPPORTED,
               "tokenizer.ggml.model is %.*s; only gpt2 and llama are supported", (int)sl_gguf_shown(model).n_bytes,
               sl_gguf_shown(model).at);
    m->pre = m->is_llama ? NULL : sl_pretokenizer_of_name(pre);
    SL_FAIL_IF(!m->is_llama && m->pre == NULL, err, SL_ERR_UNSUPPORTED,
               "tokenizer.ggml.pre is %.*s, which is not one of ours", (int)sl_gguf_shown(pre).n_bytes,
               sl_gguf_shown(pre).at);
    return read_lists(m);
}

static enum sl_status finish(struct making *m, json_t *root, enum sl_status status, json_t **root_out) {
    if (status == SL_OK && m->exhausted) {
        status =
            sl_fail(m->err, SL_ERR_EXHAUSTED, "out of memory for the merges of %llu tokens", (unsigned long long)m->n);
    }
    if (status == SL_OK && !m->ok) {
        status = sl_fail(m->err, SL_ERR_INVALID, "a text is not UTF-8, a score no number, or there is no memory");
    }
    free(m->texts);
    json_decref(m->vocab);
    SL_TRY_OR(status, json_decref(root));
    *root_out = root;
    return SL_OK;
}

enum sl_status sl_gguf_tokenizer(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err) {
    struct making m;
    json_t *root = json_object();
    enum sl_status status = begin(&m, gguf, err);
    SL_THEN(status, make_model(&m, root));
    if (status == SL_OK) {
        sl_json_put(root, "added_tokens", make_added(&m), &m.ok);
        put_steps(&m, root);
        put_template(&m, root);
    }
    return finish(&m, root, status, root_out);
}

enum sl_status sl_gguf_tokenizer_config(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err) {
    static const struct {
        const char *name, *key;
    } named[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                 {"eos_token", "tokenizer.ggml.eos_token_id"},
                 {"unk_token", "tokenizer.ggml.unknown_token_id"},
                 {"pad_token", "tokenizer.ggml.padding_token_id"}};
    struct making m;
    json_t *root = json_object();
    enum sl_status status = begin(&m, gguf, err);
    for (size_t i = 0; i < sizeof named / sizeof named[0] && status == SL_OK; i++) {
        struct sl_gguf_text text = token_at(&m, named[i].key);
        if (text.at != NULL) {
            sl_json_put(root, named[i].name, sl_gguf_json_text(text), &m.ok);
        }
    }
    struct sl_gguf_text template = sl_gguf_text(gguf, "tokenizer.chat_template");
    if (status == SL_OK && template.at != NULL) {
        sl_json_put(root, "chat_template", sl_gguf_json_text(template), &m.ok);
    }
    return finish(&m, root, status, root_out);
}
