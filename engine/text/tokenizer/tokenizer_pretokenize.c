// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the pre-tokenizer: cuts text into the pieces within which merges may happen.
 *
 * Design: every kind of step becomes the same struct sl_cut: rewrite the piece, then cut it by an expression.
 *         Metaspace (cuts before each mark), Digits (around numbers) and Punctuation (around signs) are expressions
 *         too.
 *
 *         Steps after ByteLevel get bytes spelled in the byte-level alphabet, where a byte in the middle of a
 *         character may count as a letter or a digit (Falcon's Digits cuts at 0xb2, spelled as a superscript two).
 *         Only then is a text actually spelled in that alphabet, and the pieces are translated back at the end.
 *
 * To add a step: a function that fills a struct sl_cut and a line in kinds[].
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define BYTE_LEVEL_REGEX "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SMALL_PIECE      256 // bytes that need no malloc

/*
 * The characters that Punctuation cuts at: ASCII's signs and Unicode's punctuation, of the old Unicode version in the
 * `tokenizers` library: without characters that became punctuation later, and with two that were punctuation then.
 */
#define NEWER_SIGNS                                                                                                    \
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b7d}\\x{1b7e}\\x{2e43}-\\x{2e4f}\\x{2e52}-\\x{2e5d}\\x{10ead}"       \
    "\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}\\x{1144b}-\\x{1144f}\\x{1145a}\\x{1145b}\\x{1145d}"                    \
    "\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}"                    \
    "\\x{11a9a}-\\x{11a9c}\\x{11a9e}-\\x{11aa2}\\x{11b00}-\\x{11b09}\\x{11c41}-\\x{11c45}\\x{11c70}\\x{11c71}"         \
    "\\x{11ef7}\\x{11ef8}\\x{11f43}-\\x{11f4f}\\x{11fff}\\x{12ff1}\\x{12ff2}\\x{16e97}-\\x{16e9a}\\x{16fe2}"           \
    "\\x{1e95e}\\x{1e95f}"
#define SIGN "(?:(?![" NEWER_SIGNS "])[\\p{P}$+<=>^`|~]|[\\x{166d}\\x{111c9}])"

// --- the file's pre_tokenizer ----------------------------------------------------------------------------------------
// Appends a step, which cuts by `regex` unless that is NULL.
static enum sl_status add_cut(struct sl_pretokenizer *pretokenizer, struct sl_cut cut, const char *regex,
                              struct sl_error *err) {
    SL_FAIL_IF(pretokenizer->n_cuts == SL_MAX_STEPS, err, SL_ERR_UNSUPPORTED, "pre_tokenizer: more than %d steps",
               SL_MAX_STEPS);
    if (regex) {
        SL_TRY(sl_regex_compile(regex, &cut.code, err));
        pretokenizer->digest = sl_hash(regex, strlen(regex), pretokenizer->digest);
    }
    int32_t record[3] = {cut.marks_spaces, (int32_t)cut.prepend, cut.to_alphabet};
    pretokenizer->digest = sl_hash(record, sizeof(record), pretokenizer->digest);
    pretokenizer->digest = sl_hash(cut.prefix, cut.prefix ? strlen(cut.prefix) : 0, pretokenizer->digest);
    pretokenizer->cuts[pretokenizer->n_cuts++] = cut;
    return SL_OK;
}

static enum sl_status add_split(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const pattern_keys[] = {"Regex", NULL};
    bool invert = false;
    const json_t *pattern = json_object_get(step, "pattern");
    const char *behavior = json_string_value(json_object_get(step, "behavior")), *regex = NULL;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_only(pattern, "pattern of Split", pattern_keys, err));
    SL_TRY(sl_json_bool(step, what, "invert", false, &invert, err));
    SL_TRY(sl_json_text(pattern, what, "Regex", &regex, err));
    SL_FAIL_IF(!behavior || strcmp(behavior, "Isolated") != 0 || invert, err, SL_ERR_UNSUPPORTED,
               "%s has behavior %.32s%s; only Isolated is supported", what, behavior ? behavior : "(none)",
               invert ? ", inverted" : "");
    return add_cut(part, (struct sl_cut){0}, regex, err);
}

static enum sl_status add_digits(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_bool(step, what, "individual_digits", false, &individual, err));
    return add_cut(part, (struct sl_cut){0}, individual ? "\\p{N}" : "\\p{N}+", err);
}

static enum sl_status add_punctuation(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "behavior", NULL};
    const json_t *json = json_object_get(step, "behavior");
    const char *behavior = json ? json_string_value(json) : "Isolated";
    SL_TRY(sl_json_only(step, what, keys, err));
    bool contiguous = behavior && strcmp(behavior, "Contiguous") == 0;
    SL_FAIL_IF(!contiguous && (!behavior || strcmp(behavior, "Isolated") != 0), err, SL_ERR_UNSUPPORTED,
               "%s has behavior %.32s; only Isolated and Contiguous are supported", what,
               behavior ? behavior : "(none)");
    // Possessive, so that a run of a million signs needs no stack.
    return add_cut(part, (struct sl_cut){0}, contiguous ? SIGN "++" : SIGN, err);
}

static enum sl_status add_byte_level(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    struct sl_pretokenizer *pretokenizer = part;
    bool prefix = false, use_regex = false;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_bool(step, what, "add_prefix_space", true, &prefix, err));
    SL_TRY(sl_json_bool(step, what, "use_regex", true, &use_regex, err));
    SL_FAIL_IF(pretokenizer->byte_level, err, SL_ERR_UNSUPPORTED, "%s is there twice, which is not supported", what);
    struct sl_cut cut = {.prepend = prefix ? SL_PREPEND_ALWAYS : SL_PREPEND_NEVER, .prefix = " ", .to_alphabet = true};
    pretokenizer->byte_level = true;
    return add_cut(pretokenizer, cut, use_regex ? BYTE_LEVEL_REGEX : NULL, err);
}

// Files from before 2024 have add_prefix_space; true and false mean "always" and "never".
static enum sl_status read_scheme(const json_t *step, const char *what, enum sl_prepend *prepend_out,
                                  struct sl_error *err) {
    static const struct {
        const char *name;
        enum sl_prepend prepend;
    } schemes[] = {{"always", SL_PREPEND_ALWAYS}, {"first", SL_PREPEND_FIRST}, {"never", SL_PREPEND_NEVER}};
    const json_t *scheme = json_object_get(step, "prepend_scheme");
    const char *name = scheme ? json_string_value(scheme) : "always";
    bool prefix = true;
    SL_TRY(sl_json_bool(step, what, "add_prefix_space", true, &prefix, err));
    SL_FAIL_IF(!prefix && scheme && (!name || strcmp(name, "never") != 0), err, SL_ERR_INVALID,
               "%s: add_prefix_space is false, but prepend_scheme is not \"never\"", what);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes) && name; i++) {
        if (strcmp(schemes[i].name, prefix ? name : "never") == 0) {
            *prepend_out = schemes[i].prepend;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: prepend_scheme %.32s is not supported", what, name ? name : "(none)");
}

enum sl_status sl_metaspace_read(const json_t *step, const char *what, enum sl_prepend *prepend_out, bool *split_out,
                                 struct sl_error *err) {
    static const char *const keys[] = {"type",    "replacement", "prepend_scheme", "split", "add_prefix_space",
                                       "str_rep", NULL};
    const char *mark = NULL;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_text(step, what, "replacement", &mark, err));
    SL_TRY(sl_json_bool(step, what, "split", true, split_out, err));
    SL_FAIL_IF(strcmp(mark, SL_MARK) != 0, err, SL_ERR_UNSUPPORTED,
               "%s: replacement \"%.16s\" is not supported; expected \"" SL_MARK "\"", what, mark);
    return read_scheme(step, what, prepend_out, err);
}

static enum sl_status add_metaspace(void *part, const json_t *step, const char *what, struct sl_error *err) {
    struct sl_cut cut = {.marks_spaces = true, .prefix = SL_MARK};
    bool split = false;
    SL_TRY(sl_metaspace_read(step, what, &cut.prepend, &split, err));
    return add_cut(part, cut, split ? SL_MARK "[^" SL_MARK "]*" : NULL, err);
}

static const struct sl_json_step kinds[] = {
    {"Split", add_split},          {"Digits", add_digits},       {"Punctuation", add_punctuation},
    {"ByteLevel", add_byte_level}, {"Metaspace", add_metaspace}, {NULL, NULL},
};

enum sl_status sl_pretokenizer_load(struct sl_pretokenizer *pretokenizer, const json_t *root, struct sl_error *err) {
    *pretokenizer = (struct sl_pretokenizer){0};
    SL_TRY_OR(sl_json_steps(root, "pre_tokenizer", "pretokenizers", kinds, pretokenizer, err),
              sl_pretokenizer_cleanup(pretokenizer));
    if (pretokenizer->n_cuts > 0) { // the last step need not spell text that is translated back at once
        pretokenizer->cuts[pretokenizer->n_cuts - 1].to_alphabet = false;
    }
    return SL_OK;
}

void sl_pretokenizer_cleanup(struct sl_pretokenizer *pretokenizer) {
    for (int i = 0; i < pretokenizer->n_cuts; i++) {
        sl_regex_destroy(pretokenizer->cuts[i].code);
    }
    *pretokenizer = (struct sl_pretokenizer){0};
}

// --- cutting ---------------------------------------------------------------------------------------------------------
// A piece in processing: the next step, whether it is in the byte-level alphabet, whether it begins the text.
struct piece {
    const char *bytes;
    size_t n_bytes;
    int step;
    bool in_alphabet, first;
};

static enum sl_status cut(const struct sl_cutting *c, struct piece piece);

static enum sl_status no_memory(const struct sl_cutting *c, size_t n_bytes) {
    return sl_fail(c->err, SL_ERR_EXHAUSTED, "no memory for a piece of %zu bytes", n_bytes);
}

static enum sl_status deliver(const struct sl_cutting *c, struct piece piece) {
    if (!piece.in_alphabet) {
        return c->fn(c->arg, piece.bytes, piece.n_bytes);
    }
    char small[SMALL_PIECE], *bytes = piece.n_bytes <= SMALL_PIECE ? small : malloc(piece.n_bytes);
    size_t n_bytes = 0;
    if (!bytes) {
        return no_memory(c, piece.n_bytes);
    }
    enum sl_status status = SL_ERR_INTERNAL; // would be a bug: this file spelled it
    if (sl_alphabet_to_bytes(piece.bytes, piece.n_bytes, bytes, &n_bytes)) {
        status = c->fn(c->arg, bytes, n_bytes);
    }
    if (bytes != small) {
        free(bytes);
    }
    return status;
}

// Passes bytes [begin, end) of a piece to the next step.
static enum sl_status pass_on(const struct sl_cutting *c, const struct piece *whole, size_t begin, size_t end) {
    struct piece part = {whole->bytes + begin, end - begin, whole->step + 1, whole->in_alphabet,
                         whole->first && begin == 0};
    if (begin == end) {
        return SL_OK;
    }
    if (!c->pretokenizer->cuts[whole->step].to_alphabet) {
        return cut(c, part);
    }
    char small[2 * SMALL_PIECE], *spelled = part.n_bytes <= SMALL_PIECE ? small : malloc(2 * part.n_bytes);
    if (!spelled) {
        return no_memory(c, part.n_bytes);
    }
    part.n_bytes = sl_alphabet_from_bytes(part.bytes, part.n_bytes, spelled);
    part.bytes = spelled;
    part.in_alphabet = true;
    enum sl_status status = cut(c, part);
    if (spelled != small) {
        free(spelled);
    }
    return status;
}

// Cuts so that every match is a piece, and so is the text between matches.
static enum sl_status cut_by_matches(const struct sl_cutting *c, const struct piece *piece,
                                     const struct pcre2_real_code_8 *code) {
    size_t from = 0, done = 0;
    enum sl_status status = SL_OK;
    while (from < piece->n_bytes) {
        struct sl_regex_match match = {0};
        status = sl_regex_find(code, c->search, piece->bytes, piece->n_bytes, from, &match, c->err);
        if (status != SL_OK || !match.found || (status = pass_on(c, piece, done, match.begin)) != SL_OK ||
            (status = pass_on(c, piece, match.begin, match.end)) != SL_OK) {
            break;
        }
        done = from = match.end;
        if (match.end == match.begin &&
            from < piece->n_bytes) { // an empty match cuts; continue after the next character
            from += (size_t)sl_utf8_length((const unsigned char *)piece->bytes + from, piece->n_bytes - from);
        }
    }
    return status == SL_OK ? pass_on(c, piece, done, piece->n_bytes) : status;
}

static enum sl_status cut(const struct sl_cutting *c, struct piece piece) {
    if (piece.step == c->pretokenizer->n_cuts) {
        return deliver(c, piece);
    }
    const struct sl_cut *step = &c->pretokenizer->cuts[piece.step];
    struct sl_text text = {.bytes = piece.bytes, .n_bytes = piece.n_bytes};
    enum sl_status status = step->marks_spaces ? sl_text_replace(&text, " ", step->prefix) : SL_OK;
    bool prepend = step->prepend == SL_PREPEND_ALWAYS || (step->prepend == SL_PREPEND_FIRST && piece.first);
    if (status == SL_OK && prepend && !sl_text_begins(&text, step->prefix)) {
        status = sl_text_prepend(&text, step->prefix);
    }
    if (status != SL_OK) {
        status = no_memory(c, piece.n_bytes);
    } else {
        piece.bytes = text.bytes;
        piece.n_bytes = text.n_bytes;
        status = step->code ? cut_by_matches(c, &piece, step->code) : pass_on(c, &piece, 0, piece.n_bytes);
    }
    sl_text_cleanup(&text);
    return status;
}

enum sl_status sl_pretokenizer_cut(const struct sl_cutting *cutting, const char *text, size_t n_bytes, bool first) {
    return n_bytes == 0 ? SL_OK : cut(cutting, (struct piece){.bytes = text, .n_bytes = n_bytes, .first = first});
}
