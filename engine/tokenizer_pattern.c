// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cut text into the pieces within which merges may happen, by the expressions of the file's pre-tokenizer.
 *
 * Design: models write their expressions for Oniguruma; we run PCRE2. The two agree on the constructs that
 *         pre-tokenizers use, with three exceptions that translate() takes care of: white space (PCRE2's \s has U+180E
 *         in addition), names of scripts (PCRE2 means the script's extensions), and what we do not know to agree, which
 *         is refused by name.
 *
 * Limits: the properties are those of the Unicode version of the PCRE2 at hand (10.42: Unicode 14). Over all code
 *         points, ids differ from those of the `tokenizers` library only for the 9,392 that later versions assigned.
 *         Workers that link different versions may cut such text differently; each still encodes it without loss.
 *
 * To add a construct: make sure that both engines mean the same by it, accept it in translate(), and record golden
 *         strings with tools/golden_tokenizer.py that would tell a difference.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/tokenizer_internal.h"

#define MATCH_LIMIT      10000000 // steps of the interpreter (or the compiled code) in one match
#define HEAP_LIMIT_KIB   (64 * 1024)
#define WHITE_SPACE      "p{White_Space}"
#define MAX_GROWTH       8 // of an expression in translate(): "\s" becomes "\p{White_Space}"
#define BYTE_LEVEL_REGEX "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

// --- from Oniguruma's expressions to PCRE2's -------------------------------------------------------------------------
struct translation {
    const char *at; // next character of the source
    char *out;
    bool in_class;
};

static void copy(struct translation *t, size_t n) {
    memcpy(t->out, t->at, n);
    t->out += n;
    t->at += n;
}

static void put(struct translation *t, const char *text) {
    size_t n = strlen(text);
    memcpy(t->out, text, n);
    t->out += n;
}

// \p{L}, \p{Lu}: a general category, as it is. \p{Han}: a script.
static bool translate_property(struct translation *t) {
    const char *name = t->at + 3;
    size_t n = t->at[2] == '{' ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") : 0;
    if (n == 0 || name[n] != '}') {
        return false;
    }
    if (n <= 2) {
        copy(t, n + 4);
        return true;
    }
    copy(t, 3);
    put(t, "sc:");
    copy(t, n + 1);
    return true;
}

static bool translate_escape(struct translation *t) {
    switch (t->at[1]) {
    case 's':
    case 'S':
        put(t, t->at[1] == 's' ? "\\" WHITE_SPACE : "\\P{White_Space}");
        t->at += 2;
        return true;
    case 'p':
    case 'P':
        return translate_property(t);
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'd':
    case 'D':
        copy(t, 2);
        return true;
    default:
        if (t->at[1] && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", t->at[1])) {
            copy(t, 2);
            return true;
        }
        return false;
    }
}

static bool translate_group(struct translation *t) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    if (t->at[1] != '?' && t->at[1] != '*') {
        copy(t, 1);
        return true;
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (strncmp(t->at, known[i], strlen(known[i])) == 0) {
            copy(t, strlen(known[i]));
            return true;
        }
    }
    return false;
}

// {2}, {2,} and {1,3}; with ? or + behind them the engines disagree.
static bool translate_repeat(struct translation *t) {
    size_t n = 1 + strspn(t->at + 1, "0123456789");
    if (n == 1) {
        return false;
    }
    if (t->at[n] == ',') {
        n += 1 + strspn(t->at + n + 1, "0123456789");
    }
    if (t->at[n] != '}' || t->at[n + 1] == '?' || t->at[n + 1] == '+') {
        return false;
    }
    copy(t, n + 1);
    return true;
}

// One construct; false if it is not one that both engines are known to agree on.
static bool translate_one(struct translation *t) {
    if (*t->at == '\\') {
        return translate_escape(t);
    }
    if (t->in_class) {
        if (*t->at == '[' || (t->at[0] == '&' && t->at[1] == '&')) {
            return false;
        }
        t->in_class = *t->at != ']';
        copy(t, 1);
        return true;
    }
    switch (*t->at) {
    case '[':
        copy(t, t->at[1] == '^' ? 2 : 1);
        t->in_class = true;
        return *t->at != ']';
    case '(':
        return translate_group(t);
    case '{':
        return translate_repeat(t);
    case '^':
    case '$':
        return false;
    default:
        copy(t, 1);
        return true;
    }
}

static enum sl_status translate(const char *regex, char *out, struct sl_error *err) {
    struct translation t = {.at = regex, .out = out};
    while (*t.at) {
        const char *construct = t.at;
        if (!translate_one(&t)) {
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "pre_tokenizer: the expression has \"%.16s\" at %zu, which is not supported", construct,
                           (size_t)(construct - regex));
        }
    }
    *t.out = '\0';
    return SL_OK;
}

static enum sl_status add_regex(struct sl_pattern *pattern, const char *regex, struct sl_error *err) {
    if (pattern->n_codes == SL_MAX_PATTERNS) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "pre_tokenizer: more than %d expressions", SL_MAX_PATTERNS);
    }
    char *translated = malloc(strlen(regex) * MAX_GROWTH + 1);
    if (!translated) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an expression of %zu bytes", strlen(regex));
    }
    enum sl_status status = translate(regex, translated, err);
    if (status != SL_OK) {
        goto err_translated;
    }
    int code = 0;
    size_t offset = 0;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, options, &code, &offset, NULL);
    if (!compiled) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof(text));
        status = sl_fail(err, SL_ERR_INVALID, "pre_tokenizer: expression \"%.160s\": %s", translated, (char *)text);
        goto err_translated;
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // where there is no JIT the interpreter gives the same matches
    pattern->codes[pattern->n_codes++] = compiled;
    pattern->digest = sl_hash(regex, strlen(regex), pattern->digest);
err_translated:
    free(translated);
    return status;
}

// --- the file's pre_tokenizer ----------------------------------------------------------------------------------------
static enum sl_status add_split(struct sl_pattern *pattern, const json_t *json, struct sl_error *err) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const pattern_keys[] = {"Regex", NULL};
    bool invert = false;
    const json_t *expression = json_object_get(json, "pattern");
    const char *behavior = json_string_value(json_object_get(json, "behavior"));
    enum sl_status status = sl_json_only(json, "pre_tokenizer Split", keys, err);
    if (status != SL_OK || (status = sl_json_only(expression, "pattern of Split", pattern_keys, err)) != SL_OK ||
        (status = sl_json_bool(json, "pre_tokenizer Split", "invert", false, &invert, err)) != SL_OK) {
        return status;
    }
    const char *regex = json_string_value(json_object_get(expression, "Regex"));
    if (!regex) {
        return sl_fail(err, SL_ERR_INVALID, "pre_tokenizer Split has no pattern of type Regex");
    }
    if (!behavior || strcmp(behavior, "Isolated") != 0 || invert) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "pre_tokenizer Split has behavior %.32s%s; only Isolated is supported",
                       behavior ? behavior : "(none)", invert ? ", inverted" : "");
    }
    return add_regex(pattern, regex, err);
}

static enum sl_status add_digits(struct sl_pattern *pattern, const json_t *json, struct sl_error *err) {
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    enum sl_status status = sl_json_only(json, "pre_tokenizer Digits", keys, err);
    if (status != SL_OK ||
        (status = sl_json_bool(json, "pre_tokenizer Digits", "individual_digits", false, &individual, err)) != SL_OK) {
        return status;
    }
    return add_regex(pattern, individual ? "\\p{N}" : "\\p{N}+", err);
}

static enum sl_status add_byte_level(struct sl_pattern *pattern, const json_t *json, struct sl_error *err) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    static const char what[] = "pre_tokenizer ByteLevel";
    bool prefix = false, use_regex = false;
    enum sl_status status = sl_json_only(json, what, keys, err);
    if (status != SL_OK || (status = sl_json_bool(json, what, "add_prefix_space", true, &prefix, err)) != SL_OK ||
        (status = sl_json_bool(json, what, "use_regex", true, &use_regex, err)) != SL_OK) {
        return status;
    }
    pattern->prefix_at = prefix ? pattern->n_codes : -1;
    return use_regex ? add_regex(pattern, BYTE_LEVEL_REGEX, err) : SL_OK;
}

static enum sl_status add_step(struct sl_pattern *pattern, const json_t *json, bool last, struct sl_error *err) {
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) {
        return sl_fail(err, SL_ERR_INVALID, "pre_tokenizer is null or has no type; ByteLevel is needed");
    }
    bool byte_level = strcmp(type, "ByteLevel") == 0;
    if (byte_level != last) {
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "pre_tokenizer %.32s is %s; the last one, and no other, must be ByteLevel", type,
                       last ? "the last one" : "not the last one");
    }
    if (byte_level) {
        return add_byte_level(pattern, json, err);
    }
    if (strcmp(type, "Split") == 0) {
        return add_split(pattern, json, err);
    }
    if (strcmp(type, "Digits") == 0) {
        return add_digits(pattern, json, err);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "pre_tokenizer %.32s is not supported", type);
}

static enum sl_status add_steps(struct sl_pattern *pattern, const json_t *pre_tokenizer, struct sl_error *err) {
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    const char *type = json_string_value(json_object_get(pre_tokenizer, "type"));
    if (!type || strcmp(type, "Sequence") != 0) {
        return add_step(pattern, pre_tokenizer, true, err);
    }
    enum sl_status status = sl_json_only(pre_tokenizer, "pre_tokenizer Sequence", keys, err);
    const json_t *steps = json_object_get(pre_tokenizer, "pretokenizers");
    if (status == SL_OK && json_array_size(steps) == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "pre_tokenizer Sequence has no pretokenizers");
    }
    for (size_t i = 0; i < json_array_size(steps) && status == SL_OK; i++) {
        status = add_step(pattern, json_array_get(steps, i), i + 1 == json_array_size(steps), err);
    }
    return status;
}

enum sl_status sl_pattern_load(struct sl_pattern *pattern, const json_t *pre_tokenizer, struct sl_error *err) {
    *pattern = (struct sl_pattern){.prefix_at = -1};
    pattern->limits = pcre2_match_context_create(NULL);
    if (!pattern->limits) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a match context");
    }
    pcre2_set_match_limit(pattern->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(pattern->limits, HEAP_LIMIT_KIB);
    enum sl_status status = add_steps(pattern, pre_tokenizer, err);
    if (status != SL_OK) {
        sl_pattern_cleanup(pattern);
        return status;
    }
    pattern->digest = sl_hash(&pattern->prefix_at, sizeof(pattern->prefix_at), pattern->digest);
    return SL_OK;
}

void sl_pattern_cleanup(struct sl_pattern *pattern) {
    for (int i = 0; i < pattern->n_codes; i++) {
        pcre2_code_free(pattern->codes[i]);
    }
    pcre2_match_context_free(pattern->limits);
    *pattern = (struct sl_pattern){0};
}

// --- cutting ---------------------------------------------------------------------------------------------------------
struct cutting {
    const struct sl_pattern *pattern;
    pcre2_match_data *match;
    sl_piece_fn fn;
    void *arg;
    struct sl_error *err;
};

static enum sl_status cut(struct cutting *c, int step, const char *text, size_t n_bytes);

// SL_OK with *found_out, or why the search was given up.
static enum sl_status search(struct cutting *c, int step, const char *text, size_t n_bytes, size_t from,
                             bool *found_out) {
    const pcre2_code *code = c->pattern->codes[step];
    pcre2_match_context *limits = c->pattern->limits;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = pcre2_match(code, subject, n_bytes, from, PCRE2_NO_UTF_CHECK, c->match, limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) { // the interpreter keeps its stack on the heap
        rc = pcre2_match(code, subject, n_bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->match, limits);
    }
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) {
        *found_out = rc >= 0;
        return SL_OK;
    }
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(rc, reason, sizeof(reason));
    enum sl_status status = rc == PCRE2_ERROR_NOMEMORY ? SL_ERR_EXHAUSTED : SL_ERR_INVALID;
    return sl_fail(c->err, status, "pre-tokenizing stopped %zu bytes into a text of %zu: %s", from, n_bytes,
                   (char *)reason);
}

// Every match of codes[step] is a piece, and so is what lies between matches.
static enum sl_status cut_by_matches(struct cutting *c, int step, const char *text, size_t n_bytes) {
    if (step == c->pattern->n_codes) {
        return c->fn(c->arg, text, n_bytes);
    }
    size_t from = 0, done = 0;
    enum sl_status status = SL_OK;
    while (from < n_bytes) {
        bool found = false;
        status = search(c, step, text, n_bytes, from, &found);
        if (status != SL_OK || !found) {
            break;
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(c->match);
        size_t begin = range[0], end = range[1];
        if (begin > done && (status = cut(c, step + 1, text + done, begin - done)) != SL_OK) {
            break;
        }
        if (end > begin && (status = cut(c, step + 1, text + begin, end - begin)) != SL_OK) {
            break;
        }
        done = from = end;
        if (end == begin && end < n_bytes) { // an empty match cuts; look on behind the next character
            from += (size_t)sl_utf8_length((const unsigned char *)text + end, n_bytes - end);
        }
    }
    if (status == SL_OK && done < n_bytes) {
        status = cut(c, step + 1, text + done, n_bytes - done);
    }
    return status;
}

static enum sl_status cut(struct cutting *c, int step, const char *text, size_t n_bytes) {
    if (step != c->pattern->prefix_at || text[0] == ' ') {
        return cut_by_matches(c, step, text, n_bytes);
    }
    char *spaced = malloc(n_bytes + 1);
    if (!spaced) {
        return sl_fail(c->err, SL_ERR_EXHAUSTED, "no memory for a text of %zu bytes", n_bytes);
    }
    spaced[0] = ' ';
    memcpy(spaced + 1, text, n_bytes);
    enum sl_status status = cut_by_matches(c, step, spaced, n_bytes + 1);
    free(spaced);
    return status;
}

enum sl_status sl_pattern_cut(const struct sl_pattern *pattern, pcre2_match_data *match, const char *text,
                              size_t n_bytes, sl_piece_fn fn, void *arg, struct sl_error *err) {
    struct cutting c = {pattern, match, fn, arg, err};
    return n_bytes == 0 ? SL_OK : cut(&c, 0, text, n_bytes);
}

pcre2_match_data *sl_pattern_match_create(void) {
    return pcre2_match_data_create(1, NULL);
}

void sl_pattern_match_destroy(pcre2_match_data *match) {
    pcre2_match_data_free(match);
}
