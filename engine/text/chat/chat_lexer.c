// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: splits a template's source into tokens. See chat_internal.h.
 *
 * Design: the lexer decides which white space around tags is text, by the rules of Jinja's lexer. "-" removes all of
 *         it on its side. Without it, a block or comment removes the blanks before it on its line (lstrip_blocks,
 *         unless "+") and the line's end after it (trim_blocks, unless "+").
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/text/chat/chat_internal.h"

struct lexer {
    struct sl_chat_work *work;
    const char *at, *end;
    bool line_starts; // at the start of the source, or after the end of a line
    int n_open;       // open brackets within a tag: inside them }} is two brackets
    struct sl_chat_token *tokens;
    size_t n_tokens, capacity;
};

static struct sl_chat_token *push(struct lexer *lexer, enum sl_chat_token_type type, struct sl_chat_text text) {
    struct sl_chat_token *tokens = sl_chat_grow(lexer->work, lexer->tokens, lexer->n_tokens, lexer->n_tokens + 1,
                                                sizeof(*tokens), &lexer->capacity);
    if (!tokens) {
        return NULL;
    }
    lexer->tokens = tokens;
    struct sl_chat_token *token = &lexer->tokens[lexer->n_tokens++];
    *token = (struct sl_chat_token){.type = type, .line = lexer->work->line, .text = text};
    return token;
}

static size_t left(const struct lexer *lexer) {
    return (size_t)(lexer->end - lexer->at);
}

static bool looking_at(const struct lexer *lexer, const char *text) {
    size_t n = strlen(text);
    return left(lexer) >= n && memcmp(lexer->at, text, n) == 0;
}

static void advance(struct lexer *lexer, size_t n_bytes) {
    for (const char *end = lexer->at + n_bytes; lexer->at < end; lexer->at++) {
        lexer->work->line += *lexer->at == '\n';
    }
}

static bool failed(const struct lexer *lexer) {
    return lexer->work->status != SL_OK;
}

// ---- the ends of tags -----------------------------------------------------------------------------------------------

// Ends a tag: skips all white space after "-", and one line's end after a block or comment without "+".
static void end_tag(struct lexer *lexer, char sign, bool trims_line) {
    const char *begin = lexer->at;
    if (sign == '-') {
        struct sl_chat_text rest = {lexer->at, left(lexer)};
        advance(lexer, rest.n_bytes - sl_chat_strip(rest, NULL, SL_CHAT_LEFT).n_bytes);
    } else if (trims_line && sign != '+' && looking_at(lexer, "\n")) {
        advance(lexer, 1);
    }
    lexer->line_starts = lexer->at > begin && lexer->at[-1] == '\n';
}

static void lex_comment(struct lexer *lexer) {
    size_t at = sl_chat_find((struct sl_chat_text){lexer->at, left(lexer)}, SL_CHAT_TEXT("#}"));
    if (at > left(lexer)) {
        sl_chat_fail(lexer->work, SL_ERR_INVALID, "a comment has no end");
        return;
    }
    char sign = at > 0 ? lexer->at[at - 1] : '\0';
    advance(lexer, at + 2);
    end_tag(lexer, sign, true);
}

// Returns true when the tag has ended.
static bool lex_end(struct lexer *lexer, bool block) {
    char sign = '\0';
    if (looking_at(lexer, block ? "-%}" : "-}}")) {
        sign = '-';
    } else if (block && looking_at(lexer, "+%}")) {
        sign = '+';
    } else if (!looking_at(lexer, block ? "%}" : "}}")) {
        return false;
    }
    size_t n = sign ? 3 : 2;
    push(lexer, block ? SL_CHAT_TOKEN_BLOCK_END : SL_CHAT_TOKEN_OUTPUT_END, (struct sl_chat_text){lexer->at, n});
    advance(lexer, n);
    end_tag(lexer, sign, block);
    return true;
}

// ---- within tags ----------------------------------------------------------------------------------------------------

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static void append_char(struct lexer *lexer, struct sl_chat_buffer *buffer, uint32_t c) {
    char bytes[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--) {
        bytes[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    bytes[0] = (char)(first[n] | c);
    sl_chat_append(lexer->work, buffer, (struct sl_chat_text){bytes, n});
}

// Parses \x41, \u0041, \U00000041, \101: `base` digits, at least min_digits of them.
static void lex_code(struct lexer *lexer, struct sl_chat_buffer *buffer, int base, int min_digits, int max_digits) {
    uint32_t code = 0;
    int n = 0;
    for (; n < max_digits && left(lexer) > 0; n++) {
        char c = *lexer->at;
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : 99;
        if (digit >= base) {
            break;
        }
        code = code * (uint32_t)base + (uint32_t)digit;
        lexer->at++;
    }
    if (n < min_digits || code > 0x10ffff) {
        sl_chat_fail(lexer->work, SL_ERR_INVALID, "an escape in a string is damaged");
    } else if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
        sl_chat_fail(lexer->work, SL_ERR_UNSUPPORTED, "a string contains the character U+%04X", (unsigned)code);
    } else {
        append_char(lexer, buffer, code);
    }
}

static void lex_escape(struct lexer *lexer, struct sl_chat_buffer *buffer) {
    static const char escapes[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v";
    char c = lexer->at < lexer->end ? *lexer->at : '\0';
    if (c >= '0' && c <= '7') {
        lex_code(lexer, buffer, 8, 1, 3);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        lexer->at++;
        lex_code(lexer, buffer, 16, n, n);
    } else if (c == '\n') {
        advance(lexer, 1);
    } else if (c == 'N') {
        sl_chat_fail(lexer->work, SL_ERR_UNSUPPORTED, "\\N in a string; \\u is supported");
    } else {
        for (const char *escape = escapes; *escape; escape += 2) {
            if (*escape == c) {
                lexer->at++;
                append_char(lexer, buffer, (unsigned char)escape[1]);
                return;
            }
        }
        append_char(lexer, buffer, '\\'); // an unknown escape stays as it is
    }
}

static void lex_string(struct lexer *lexer) {
    struct sl_chat_buffer buffer = {0};
    int line = lexer->work->line;
    char quote = *lexer->at++;
    while (lexer->at < lexer->end && *lexer->at != quote && !failed(lexer)) {
        if (*lexer->at == '\\') {
            lexer->at++;
            lex_escape(lexer, &buffer);
            continue;
        }
        size_t n = 0;
        while (n < left(lexer) && lexer->at[n] != quote && lexer->at[n] != '\\') {
            n++;
        }
        sl_chat_append(lexer->work, &buffer, (struct sl_chat_text){lexer->at, n});
        advance(lexer, n);
    }
    if (lexer->at == lexer->end) {
        lexer->work->line = line;
        sl_chat_fail(lexer->work, SL_ERR_INVALID, "a string has no end");
        return;
    }
    lexer->at++;
    push(lexer, SL_CHAT_TOKEN_STRING, (struct sl_chat_text){buffer.bytes ? buffer.bytes : "", buffer.n_bytes});
}

static size_t count_digits(const struct lexer *lexer, size_t from) {
    size_t n = 0;
    while (from + n < left(lexer) && is_digit(lexer->at[from + n])) {
        n++;
    }
    return n;
}

static bool is_at(const struct lexer *lexer, size_t n, const char *chars) {
    return n < left(lexer) && lexer->at[n] != '\0' && strchr(chars, lexer->at[n]);
}

static void lex_number(struct lexer *lexer) {
    size_t n = count_digits(lexer, 0);
    bool whole = true;
    if (n == 1 && *lexer->at == '0' && is_at(lexer, 1, "xXoObB")) {
        sl_chat_fail(lexer->work, SL_ERR_UNSUPPORTED, "a number that is not decimal");
        return;
    }
    if (lexer->at[-1] != '.') { // items.0.1 has two numbers
        if (is_at(lexer, n, ".") && count_digits(lexer, n + 1) > 0) {
            n += 1 + count_digits(lexer, n + 1);
            whole = false;
        }
        size_t sign = is_at(lexer, n + 1, "+-");
        if (is_at(lexer, n, "eE") && count_digits(lexer, n + 1 + sign) > 0) {
            n += 1 + sign + count_digits(lexer, n + 1 + sign);
            whole = false;
        }
    }
    char text[64];
    if (n >= sizeof(text) || is_at(lexer, n, "_") || (whole && n > 1 && *lexer->at == '0')) {
        sl_chat_fail(lexer->work, SL_ERR_UNSUPPORTED, "a number of %zu digits, with _ or with leading zeros", n);
        return;
    }
    memcpy(text, lexer->at, n);
    text[n] = '\0';
    struct sl_chat_token *token = push(lexer, SL_CHAT_TOKEN_NUMBER, (struct sl_chat_text){lexer->at, n});
    errno = 0;
    if (token) {
        token->value = whole ? sl_chat_int(strtoll(text, NULL, 10))
                             : (struct sl_chat_value){.kind = SL_CHAT_FLOAT, .real = strtod(text, NULL)};
    }
    if (whole && errno == ERANGE) {
        sl_chat_fail(lexer->work, SL_ERR_UNSUPPORTED, "an integer of more than 64 bits");
    }
    advance(lexer, n);
}

static void lex_operator(struct lexer *lexer) {
    static const char *const operators[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
                                            ">",  "=",  ".",  ":",  "|",  ",",  ";", "(", ")", "[", "]", "{", "}"};
    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++) {
        if (looking_at(lexer, operators[i])) {
            size_t n = strlen(operators[i]);
            lexer->n_open += strchr("([{", *lexer->at) != NULL;
            lexer->n_open -= strchr(")]}", *lexer->at) != NULL;
            if (lexer->n_open < 0) {
                sl_chat_fail(lexer->work, SL_ERR_INVALID, "unexpected '%c'", *lexer->at);
            } else if (lexer->n_open > SL_CHAT_MAX_DEPTH) {
                sl_chat_fail(lexer->work, SL_ERR_EXHAUSTED, "nested deeper than %d", SL_CHAT_MAX_DEPTH);
            }
            push(lexer, SL_CHAT_TOKEN_OPERATOR, (struct sl_chat_text){lexer->at, n});
            advance(lexer, n);
            return;
        }
    }
    unsigned char c = (unsigned char)*lexer->at;
    sl_chat_fail(lexer->work, SL_ERR_INVALID, c > ' ' && c < 0x7f ? "unexpected '%c'" : "unexpected byte 0x%02x", c);
}

static void lex_name(struct lexer *lexer) {
    size_t n = 1;
    while (n < left(lexer) && (is_name_start(lexer->at[n]) || is_digit(lexer->at[n]))) {
        n++;
    }
    push(lexer, SL_CHAT_TOKEN_NAME, (struct sl_chat_text){lexer->at, n});
    advance(lexer, n);
}

static void lex_tag(struct lexer *lexer, bool block) {
    int line = lexer->work->line;
    lexer->n_open = 0;
    while (!failed(lexer)) {
        struct sl_chat_text rest = {lexer->at, left(lexer)};
        advance(lexer, rest.n_bytes - sl_chat_strip(rest, NULL, SL_CHAT_LEFT).n_bytes);
        if (lexer->at == lexer->end) {
            lexer->work->line = line;
            sl_chat_fail(lexer->work, SL_ERR_INVALID, "the tag has no end");
        } else if (lexer->n_open == 0 && lex_end(lexer, block)) {
            return;
        } else if (is_name_start(*lexer->at)) {
            lex_name(lexer);
        } else if (is_digit(*lexer->at)) {
            lex_number(lexer);
        } else if (*lexer->at == '"' || *lexer->at == '\'') {
            lex_string(lexer);
        } else {
            lex_operator(lexer);
        }
    }
}

// ---- text and tags --------------------------------------------------------------------------------------------------

// Returns the bytes before the next tag, or all bytes.
static size_t find_tag(const struct lexer *lexer) {
    size_t n = 0;
    while (n + 1 < left(lexer) && !(lexer->at[n] == '{' && strchr("{%#", lexer->at[n + 1]) && lexer->at[n + 1])) {
        n++;
    }
    return n + 1 < left(lexer) ? n : left(lexer);
}

// Removes the blanks between the last line's end and a block or comment.
static struct sl_chat_text without_indentation(const struct lexer *lexer, struct sl_chat_text text) {
    size_t line = text.n_bytes;
    while (line > 0 && text.bytes[line - 1] != '\n') {
        line--;
    }
    struct sl_chat_text blanks = {text.bytes + line, text.n_bytes - line};
    bool blank = sl_chat_strip(blanks, NULL, SL_CHAT_LEFT).n_bytes == 0;
    return blank && (line > 0 || lexer->line_starts) ? (struct sl_chat_text){text.bytes, line} : text;
}

static void lex_text(struct lexer *lexer) {
    struct sl_chat_text text = {lexer->at, find_tag(lexer)};
    const char *tag = text.bytes + text.n_bytes;
    char kind = tag < lexer->end ? tag[1] : '\0', sign = '\0';
    if (kind && tag + 2 < lexer->end && (tag[2] == '-' || tag[2] == '+')) {
        sign = tag[2];
    }
    size_t n_bytes = text.n_bytes;
    if (sign == '-') {
        text = sl_chat_strip(text, NULL, SL_CHAT_RIGHT);
    } else if (kind && kind != '{' && sign != '+') {
        text = without_indentation(lexer, text);
    }
    if (text.n_bytes > 0) {
        push(lexer, SL_CHAT_TOKEN_TEXT, text);
    }
    advance(lexer, n_bytes);
    if (!kind) {
        return;
    }
    if (kind != '#') {
        push(lexer, kind == '%' ? SL_CHAT_TOKEN_BLOCK_BEGIN : SL_CHAT_TOKEN_OUTPUT_BEGIN,
             (struct sl_chat_text){lexer->at, 2});
    }
    advance(lexer, sign ? 3 : 2);
    if (kind == '#') {
        lex_comment(lexer);
    } else {
        lex_tag(lexer, kind == '%');
    }
}

struct sl_chat_token *sl_chat_lex(struct sl_chat_work *work, struct sl_chat_text source) {
    struct lexer lexer = {.work = work, .at = source.bytes, .end = source.bytes + source.n_bytes, .line_starts = true};
    work->line = 1;
    while (lexer.at < lexer.end && !failed(&lexer)) {
        lex_text(&lexer);
    }
    push(&lexer, SL_CHAT_TOKEN_END, SL_CHAT_TEXT("the end"));
    return failed(&lexer) ? NULL : lexer.tokens;
}
