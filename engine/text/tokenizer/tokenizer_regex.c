// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the expressions of pre-tokenizers: compiles them and searches with them.
 *
 * Design: models write their expressions for Oniguruma; Sluice runs PCRE2. The two agree on the constructs that
 *         pre-tokenizers use, with three exceptions that translate() handles. White space: PCRE2's \s also has
 *         U+180E. Names of scripts: PCRE2 means the script's extensions. Constructs that are not known to agree are
 *         rejected by name.
 *
 * Limits: the properties are those of the installed PCRE2's Unicode version (10.42: Unicode 14). Over all code
 *         points, ids differ from those of the `tokenizers` library only for the 9,392 that later versions assigned.
 *         Workers that link different versions may cut such text differently; each still encodes it without loss.
 *
 * To add a construct: verify that both engines interpret it in the same way, accept it in translate(), and record
 * golden strings with tools/golden_tokenizer.py that would show a difference.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#define MATCH_LIMIT    10000000 // steps of the interpreter (or the compiled code) in one match
#define FIRST_WINDOW   256      // bytes of the text that a match sees first
#define STEPS_PER_BYTE 64       // of a window, in one match
#define STEPS_IN_ALL   1024     // for each byte of a text, in matches for which their window was too small
#define HEAP_LIMIT_KIB (64 * 1024)
#define WHITE_SPACE    "p{White_Space}"
#define MAX_GROWTH     8 // growth of an expression in translate(): "\s" becomes "\p{White_Space}"

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

// Translates \p{L}, \p{Lu}: a general category, unchanged; \p{Han}: a script.
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

// Translates \x{2e5d}; the engines read other forms differently.
static bool translate_code_point(struct translation *t) {
    size_t n = t->at[2] == '{' ? strspn(t->at + 3, "0123456789abcdefABCDEF") : 0;
    if (n == 0 || t->at[n + 3] != '}') {
        return false;
    }
    copy(t, n + 4);
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
    case 'x':
        return translate_code_point(t);
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

// Translates {2}, {2,} and {1,3}; the engines disagree on a following ? or +.
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

// Translates one construct; returns false unless both engines are known to agree on it.
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
        SL_FAIL_IF(!translate_one(&t), err, SL_ERR_UNSUPPORTED,
                   "pre_tokenizer: the expression has \"%.16s\" at %zu, which is not supported", construct,
                   (size_t)(construct - regex));
    }
    *t.out = '\0';
    return SL_OK;
}

static enum sl_status compile(const char *translated, pcre2_code **code_out, struct sl_error *err) {
    int code = 0;
    size_t offset = 0;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    *code_out = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, options, &code, &offset, NULL);
    if (!*code_out) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof(text));
        return sl_fail(err, SL_ERR_INVALID, "pre_tokenizer: expression \"%.160s\": %s", translated, (char *)text);
    }
    // Without JIT the interpreter gives the same matches.
    pcre2_jit_compile(*code_out, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    return SL_OK;
}

enum sl_status sl_regex_compile(const char *regex, struct pcre2_real_code_8 **code_out, struct sl_error *err) {
    char *translated = malloc(strlen(regex) * MAX_GROWTH + 1);
    SL_FAIL_IF(!translated, err, SL_ERR_EXHAUSTED, "no memory for an expression of %zu bytes", strlen(regex));
    enum sl_status status = translate(regex, translated, err);
    SL_THEN(status, compile(translated, code_out, err));
    free(translated);
    return status;
}

void sl_regex_destroy(pcre2_code *code) {
    pcre2_code_free(code);
}

// --- searching -------------------------------------------------------------------------------------------------------
bool sl_regex_search_init(struct sl_regex_search *search, size_t n_bytes) {
    *search = (struct sl_regex_search){pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL),
                                       2 * MATCH_LIMIT + STEPS_IN_ALL * n_bytes};
    if (!search->match || !search->limits) {
        sl_regex_search_cleanup(search);
        return false;
    }
    pcre2_set_heap_limit(search->limits, HEAP_LIMIT_KIB);
    return true;
}

void sl_regex_search_cleanup(struct sl_regex_search *search) {
    pcre2_match_data_free(search->match);
    pcre2_match_context_free(search->limits);
    *search = (struct sl_regex_search){0};
}

static const PCRE2_SIZE *range_of(const struct sl_regex_search *search) {
    return pcre2_get_ovector_pointer(search->match);
}

static size_t limit_of(size_t window) {
    return window < MATCH_LIMIT / STEPS_PER_BYTE ? window * STEPS_PER_BYTE : MATCH_LIMIT;
}

// Matches within a window after `from`. PCRE2_ERROR_PARTIAL: the result may be another one in a larger window.
static int match(const pcre2_code *code, const struct sl_regex_search *search, const char *text, size_t n_bytes,
                 size_t from, size_t window) {
    const bool is_whole = n_bytes - from <= window;
    size_t end = is_whole ? n_bytes : from + window;
    while (end < n_bytes && ((unsigned char)text[end] & 0xc0) == 0x80) { // within a character
        end++;
    }
    uint32_t options = PCRE2_NO_UTF_CHECK | (is_whole ? 0 : PCRE2_PARTIAL_HARD);
    pcre2_set_match_limit(search->limits, (uint32_t)limit_of(window));
    int rc = pcre2_match(code, (PCRE2_SPTR)text, end, from, options, search->match, search->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) { // the interpreter keeps its stack on the heap
        options |= PCRE2_NO_JIT;
        rc = pcre2_match(code, (PCRE2_SPTR)text, end, from, options, search->match, search->limits);
    }
    const bool is_cut = !is_whole && (rc == PCRE2_ERROR_NOMATCH || (rc >= 0 && range_of(search)[1] == end));
    const bool needs_more = rc == PCRE2_ERROR_MATCHLIMIT && !(is_whole && limit_of(window) == MATCH_LIMIT);
    return is_cut || needs_more ? PCRE2_ERROR_PARTIAL : rc;
}

/*
 * A match sees a short window, and then one of twice its size until that is enough. What the others may have cost is
 * counted for the whole text: an expression that looks to the end of the text at each position would take hours,
 * though no single match of it takes long.
 */
enum sl_status sl_regex_find(const pcre2_code *code, struct sl_regex_search *search, const char *text, size_t n_bytes,
                             size_t from, struct sl_regex_match *match_out, struct sl_error *err) {
    size_t window = FIRST_WINDOW;
    int rc;
    while ((rc = match(code, search, text, n_bytes, from, window)) == PCRE2_ERROR_PARTIAL) {
        SL_FAIL_IF(
            search->n_steps < limit_of(window), err, SL_ERR_INVALID,
            "pre-tokenizing stopped %zu bytes into a text of %zu: the model's expression reads the text too often",
            from, n_bytes);
        search->n_steps -= limit_of(window);
        window *= 2;
    }
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) {
        const PCRE2_SIZE *range = range_of(search);
        *match_out = rc >= 0 ? (struct sl_regex_match){true, range[0], range[1]}
                             : (struct sl_regex_match){false, n_bytes, n_bytes};
        return SL_OK;
    }
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(rc, reason, sizeof(reason));
    enum sl_status status = rc == PCRE2_ERROR_NOMEMORY ? SL_ERR_EXHAUSTED : SL_ERR_INVALID;
    return sl_fail(err, status, "pre-tokenizing stopped %zu bytes into a text of %zu: %s", from, n_bytes,
                   (char *)reason);
}
