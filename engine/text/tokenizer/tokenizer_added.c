// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cuts added tokens ("<|im_end|>") out of text: leftmost first, and the longest of those that begin there.
 *
 * Design: the tokens are sorted by their bytes. At a position in the text, binary search narrows the range of
 *         matching tokens byte by byte, so that a file with thousands of added tokens costs no more than one with
 *         ten.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

// --- what is next to a token -----------------------------------------------------------------------------------------
static bool is_white_space(int32_t c) { // the Unicode property White_Space
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int32_t character_at(const char *text, size_t begin, size_t end) {
    utf8proc_int32_t c = -1;
    utf8proc_iterate((const utf8proc_uint8_t *)text + begin, (utf8proc_ssize_t)(end - begin), &c);
    return c;
}

// Returns whether c is a word character of regular expressions: alphabetic, a mark, a digit, or a joiner. utf8proc
// provides the general categories; the four ranges are further alphabetic characters: circled and squared letters.
static bool is_word_character(int32_t c) {
    static const uint32_t categories =
        1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT |
        1u << UTF8PROC_CATEGORY_LM | 1u << UTF8PROC_CATEGORY_LO | 1u << UTF8PROC_CATEGORY_MN |
        1u << UTF8PROC_CATEGORY_MC | 1u << UTF8PROC_CATEGORY_ME | 1u << UTF8PROC_CATEGORY_ND |
        1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_PC;
    return (categories >> utf8proc_category(c) & 1) || c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

static size_t previous_character(const char *text, size_t at) {
    do {
        at--;
    } while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static bool touches_word(const char *text, size_t begin, size_t end, size_t n_bytes) {
    return (begin > 0 && is_word_character(character_at(text, previous_character(text, begin), begin))) ||
           (end < n_bytes && is_word_character(character_at(text, end, n_bytes)));
}

static size_t skip_spaces_left(const char *text, size_t begin) {
    while (begin > 0) {
        size_t previous = previous_character(text, begin);
        if (!is_white_space(character_at(text, previous, begin))) {
            break;
        }
        begin = previous;
    }
    return begin;
}

static size_t skip_spaces_right(const char *text, size_t end, size_t n_bytes) {
    while (end < n_bytes && is_white_space(character_at(text, end, n_bytes))) {
        end += (size_t)sl_utf8_length((const unsigned char *)text + end, n_bytes - end);
    }
    return end;
}

// --- search ----------------------------------------------------------------------------------------------------------
// Returns the first of tokens [low, high), which match up to `depth` and are longer, whose byte at `depth` is at
// least `byte`.
static size_t lower_bound(const struct sl_added_set *set, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->tokens[middle].text[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Returns the longest token that text begins with, or NULL.
static const struct sl_added_token *match_here(const struct sl_added_set *set, const char *text, size_t n_bytes) {
    const struct sl_added_token *longest = NULL;
    size_t low = 0, high = set->n;
    for (size_t depth = 0; low < high; depth++) {
        if (set->tokens[low].n_bytes == depth) { // all of it matches; it sorts before tokens that it is a prefix of
            longest = &set->tokens[low++];
        }
        if (depth == n_bytes) {
            break;
        }
        int byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return longest;
}

bool sl_added_next(struct sl_added_cursor *cursor, size_t *begin_out, size_t *end_out, int32_t *id_out) {
    const struct sl_added_token *token = NULL;
    const char *text = cursor->text;
    if (cursor->pending_id >= 0) {
        goto give_token;
    }
    while (cursor->scanned < cursor->n_bytes && !token) {
        if (cursor->set->begins[(unsigned char)text[cursor->scanned]]) {
            token = match_here(cursor->set, text + cursor->scanned, cursor->n_bytes - cursor->scanned);
        }
        if (!token) {
            cursor->scanned++;
        } else if (token->single_word &&
                   touches_word(text, cursor->scanned, cursor->scanned + token->n_bytes, cursor->n_bytes)) {
            cursor->scanned += token->n_bytes; // no other token may begin inside
            token = NULL;
        }
    }
    *id_out = -1;
    *begin_out = cursor->emitted;
    if (!token) {
        *end_out = cursor->n_bytes;
        cursor->emitted = cursor->n_bytes;
        return *begin_out < *end_out;
    }
    size_t begin = cursor->scanned, end = begin + token->n_bytes;
    cursor->scanned = end;
    if (token->takes_left) {
        begin = skip_spaces_left(text, begin);
    }
    if (token->takes_right) {
        end = skip_spaces_right(text, end, cursor->n_bytes);
    }
    cursor->pending_id = token->id;
    cursor->pending_begin = begin < cursor->emitted ? cursor->emitted : begin; // the token before took those spaces
    cursor->pending_end = end < cursor->emitted ? cursor->emitted : end;
    if (cursor->emitted < cursor->pending_begin) {
        *end_out = cursor->emitted = cursor->pending_begin;
        return true;
    }
give_token:
    *id_out = cursor->pending_id;
    *begin_out = cursor->pending_begin;
    *end_out = cursor->emitted = cursor->pending_end;
    cursor->pending_id = -1;
    return true;
}

// --- loading ---------------------------------------------------------------------------------------------------------
static int compare_tokens(const void *left, const void *right) {
    const struct sl_added_token *a = left, *b = right;
    size_t n_common = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int order = memcmp(a->text, b->text, n_common);
    return order ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

static enum sl_status read_token(const json_t *json, bool normalized, const struct sl_normalizer *normalizer,
                                 struct sl_added_token *token_out, bool *wanted_out, struct sl_error *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    const char *content = json_string_value(json_object_get(json, "content"));
    SL_FAIL_IF(!content || !content[0], err, SL_ERR_INVALID, "an added token has no content");
    struct sl_added_token token = {.id = (int32_t)json_integer_value(json_object_get(json, "id"))};
    bool special = false, is_normalized = false;
    SL_TRY(sl_json_only(json, content, keys, err));
    SL_TRY(sl_json_bool(json, content, "special", false, &special, err));
    SL_TRY(sl_json_bool(json, content, "single_word", false, &token.single_word, err));
    SL_TRY(sl_json_bool(json, content, "lstrip", false, &token.takes_left, err));
    SL_TRY(sl_json_bool(json, content, "rstrip", false, &token.takes_right, err));
    SL_TRY(sl_json_bool(json, content, "normalized", !special, &is_normalized, err));
    *wanted_out = is_normalized == normalized;
    if (!*wanted_out) {
        return SL_OK;
    }
    struct sl_text text = {.bytes = content, .n_bytes = strlen(content)};
    enum sl_status status = normalized ? sl_normalizer_run(normalizer, &text) : SL_OK;
    token.n_bytes = text.n_bytes;
    token.text = status == SL_OK ? strndup(text.bytes, text.n_bytes) : NULL;
    sl_text_cleanup(&text);
    SL_FAIL_IF(!token.text, err, SL_ERR_EXHAUSTED, "no memory for added token \"%.64s\"", content);
    if (token.n_bytes == 0) {
        free(token.text);
        return sl_fail(err, SL_ERR_INVALID, "the normalizer leaves nothing of added token \"%.64s\"", content);
    }
    *token_out = token;
    return SL_OK;
}

enum sl_status sl_added_load(struct sl_added_set *set, const json_t *added_tokens, bool normalized,
                             const struct sl_normalizer *normalizer, struct sl_error *err) {
    *set = (struct sl_added_set){0};
    size_t n = json_array_size(added_tokens);
    if (n == 0) {
        return SL_OK;
    }
    set->tokens = calloc(n, sizeof(*set->tokens));
    SL_FAIL_IF(!set->tokens, err, SL_ERR_EXHAUSTED, "no memory for %zu added tokens", n);
    for (size_t i = 0; i < n; i++) {
        bool wanted = false;
        enum sl_status status =
            read_token(json_array_get(added_tokens, i), normalized, normalizer, &set->tokens[set->n], &wanted, err);
        SL_TRY_OR(status, sl_added_cleanup(set));
        if (wanted) {
            set->begins[(unsigned char)set->tokens[set->n].text[0]] = true;
            set->n++;
        }
    }
    qsort(set->tokens, set->n, sizeof(*set->tokens), compare_tokens);
    for (size_t i = 1; i < set->n; i++) {
        if (compare_tokens(&set->tokens[i - 1], &set->tokens[i]) == 0) {
            enum sl_status status = sl_fail(err, SL_ERR_INVALID, "added token \"%.64s\" is listed twice%s",
                                            set->tokens[i].text, normalized ? " (after normalization)" : "");
            sl_added_cleanup(set);
            return status;
        }
    }
    return SL_OK;
}

void sl_added_cleanup(struct sl_added_set *set) {
    for (size_t i = 0; i < set->n; i++) {
        free(set->tokens[i].text);
    }
    free(set->tokens);
    *set = (struct sl_added_set){0};
}
