// SPDX-License-Identifier: Apache-2.0
// Purpose: operations of Python's strings and dicts, for filters and methods. See chat_methods.h.
#include "engine/text/chat/chat_methods.h"

#define MAX_STRIPPED_BYTES 256 // limit of the characters that strip() removes: it is quadratic

bool sl_chat_given(struct sl_chat_value arg) {
    return arg.kind != SL_CHAT_ABSENT && arg.kind != SL_CHAT_NONE;
}

bool sl_chat_want_string(struct sl_chat_work *work, struct sl_chat_value value, const char *what) {
    if (value.kind != SL_CHAT_STRING) {
        sl_chat_fail(work, SL_ERR_INVALID, "%s takes a string, not %s", what, sl_chat_kind_name(value.kind));
    }
    return value.kind == SL_CHAT_STRING;
}

bool sl_chat_want_int(struct sl_chat_work *work, struct sl_chat_value value, const char *what, int64_t *out) {
    if (value.kind != SL_CHAT_INT && value.kind != SL_CHAT_BOOL) {
        sl_chat_fail(work, SL_ERR_INVALID, "%s takes an integer, not %s", what, sl_chat_kind_name(value.kind));
        return false;
    }
    *out = value.kind == SL_CHAT_INT ? value.integer : value.truth;
    return true;
}

SL_CHAT_ROW_FN(sl_chat_strip_by) {
    struct sl_chat_text text = sl_chat_str(work, subject);
    struct sl_chat_value chars = args[0];
    bool given = sl_chat_given(chars);
    if (given && (!sl_chat_want_string(work, chars, "strip") || chars.text.n_bytes > MAX_STRIPPED_BYTES)) {
        return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "strip of more than %d bytes of characters", MAX_STRIPPED_BYTES);
    }
    struct sl_chat_text left = sl_chat_strip(text, given ? &chars.text : NULL, row->variant);
    size_t n_bytes = (text.n_bytes - left.n_bytes) * (given ? 1 + chars.text.n_bytes / 4 : 4);
    return sl_chat_step(work, n_bytes) ? sl_chat_string(left) : sl_chat_nothing();
}

// ---- split ----------------------------------------------------------------------------------------------------------

static void push_text(struct sl_chat_work *work, struct sl_chat_list *list, const char *begin, const char *end) {
    sl_chat_list_push(work, list, sl_chat_string((struct sl_chat_text){begin, (size_t)(end - begin)}));
}

// Splits text into the words between runs of white space.
static void split_words(struct sl_chat_work *work, struct sl_chat_text text, int64_t max_splits,
                        struct sl_chat_list *list) {
    text = sl_chat_strip(text, NULL, SL_CHAT_LEFT);
    while (text.n_bytes > 0 && work->status == SL_OK) {
        struct sl_chat_text rest = text;
        if (max_splits >= 0 && (int64_t)list->n >= max_splits) {
            push_text(work, list, text.bytes, text.bytes + text.n_bytes);
            return;
        }
        while (rest.n_bytes > 0 && sl_chat_space_bytes(rest) == 0) {
            rest = sl_chat_text_from(rest, sl_chat_char_bytes(rest));
        }
        push_text(work, list, text.bytes, rest.bytes);
        text = sl_chat_strip(rest, NULL, SL_CHAT_LEFT);
    }
}

static void split_by(struct sl_chat_work *work, struct sl_chat_text text, struct sl_chat_text separator,
                     int64_t max_splits, struct sl_chat_list *list) {
    while (work->status == SL_OK) {
        size_t at = sl_chat_find(text, separator);
        if (at > text.n_bytes || (max_splits >= 0 && (int64_t)list->n >= max_splits)) {
            push_text(work, list, text.bytes, text.bytes + text.n_bytes);
            return;
        }
        push_text(work, list, text.bytes, text.bytes + at);
        text = sl_chat_text_from(text, at + separator.n_bytes);
    }
}

SL_CHAT_ROW_FN(sl_chat_split) {
    int64_t max_splits = -1;
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    if (!list || (args[1].kind != SL_CHAT_ABSENT && !sl_chat_want_int(work, args[1], "split", &max_splits)) ||
        !sl_chat_step(work, subject.text.n_bytes)) {
        return sl_chat_nothing();
    }
    if (!sl_chat_given(args[0])) {
        split_words(work, subject.text, max_splits, list);
    } else if (sl_chat_want_string(work, args[0], "split")) {
        if (args[0].text.n_bytes == 0) {
            return sl_chat_fail(work, SL_ERR_INVALID, "split by an empty string");
        }
        split_by(work, subject.text, args[0].text, max_splits, list);
    }
    return sl_chat_list_value(SL_CHAT_LIST, list);
}

// ---- replace, find --------------------------------------------------------------------------------------------------

struct sl_chat_value sl_chat_replace(struct sl_chat_work *work, struct sl_chat_text text, struct sl_chat_text old,
                                     struct sl_chat_text new, int64_t max_count) {
    struct sl_chat_buffer buffer = {0};
    if (old.n_bytes == 0) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "replace of an empty string");
    }
    (void)sl_chat_step(work, text.n_bytes);
    while (work->status == SL_OK) {
        size_t at = max_count != 0 ? sl_chat_find(text, old) : text.n_bytes + 1;
        if (at > text.n_bytes) {
            break;
        }
        sl_chat_append(work, &buffer, (struct sl_chat_text){text.bytes, at});
        sl_chat_append(work, &buffer, new);
        text = sl_chat_text_from(text, at + old.n_bytes);
        max_count -= max_count > 0;
    }
    if (!buffer.bytes) {
        return sl_chat_string(text); // nothing was replaced, or only empty by empty
    }
    sl_chat_append(work, &buffer, text);
    return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
}

SL_CHAT_ROW_FN(sl_chat_find_in) {
    if (!sl_chat_want_string(work, args[0], "find") || !sl_chat_step(work, subject.text.n_bytes)) {
        return sl_chat_nothing();
    }
    size_t at = sl_chat_find(subject.text, args[0].text);
    return sl_chat_int(
        at > subject.text.n_bytes ? -1 : (int64_t)sl_chat_count_chars((struct sl_chat_text){subject.text.bytes, at}));
}

SL_CHAT_ROW_FN(sl_chat_matches) {
    struct sl_chat_text text = subject.text;
    struct sl_chat_value part = args[0];
    if (part.kind == SL_CHAT_TUPLE) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "startswith and endswith of a tuple");
    }
    if (!sl_chat_want_string(work, part, "startswith or endswith") || !sl_chat_step(work, part.text.n_bytes)) {
        return sl_chat_nothing();
    }
    size_t n = part.text.n_bytes;
    size_t at = row->variant == 1 ? text.n_bytes - n : 0;
    return sl_chat_bool(n <= text.n_bytes && (n == 0 || memcmp(text.bytes + at, part.text.bytes, n) == 0));
}

// ---- join -----------------------------------------------------------------------------------------------------------

struct sl_chat_value sl_chat_join(struct sl_chat_work *work, struct sl_chat_value items, struct sl_chat_text between,
                                  bool only_strings) {
    const struct sl_chat_list *list = sl_chat_iterate(work, items);
    struct sl_chat_buffer buffer = {0};
    for (size_t i = 0; list && i < list->n && work->status == SL_OK; i++) {
        if (only_strings && !sl_chat_want_string(work, list->items[i], "join")) {
            break;
        }
        sl_chat_append(work, &buffer, i > 0 ? between : SL_CHAT_TEXT(""));
        sl_chat_append(work, &buffer, sl_chat_str(work, list->items[i]));
    }
    return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
}

// ---- case -----------------------------------------------------------------------------------------------------------

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Returns whether the character after c begins a word.
static bool begins_word(enum sl_chat_case form, char c) {
    return form == SL_CHAT_TITLE   ? !is_letter(c)
           : form == SL_CHAT_WORDS ? strchr("-({[< \t\n\v\f\r\x1c\x1d\x1e\x1f", c) != NULL
                                   : false;
}

SL_CHAT_ROW_FN(sl_chat_change_case) {
    struct sl_chat_text text = sl_chat_str(work, subject);
    enum sl_chat_case form = row->variant;
    if (!sl_chat_is_ascii(text)) {
        return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "upper or lower case of text that is not ASCII");
    }
    char *bytes = sl_chat_step(work, text.n_bytes) ? sl_chat_alloc(work, text.n_bytes + 1) : NULL;
    for (size_t i = 0; bytes && i < text.n_bytes; i++) {
        char c = text.bytes[i];
        bool first = i == 0 || begins_word(form, text.bytes[i - 1]);
        bool upper = form == SL_CHAT_UPPER || (form != SL_CHAT_LOWER && first);
        bytes[i] = !is_letter(c) ? c : upper ? (char)(c & ~0x20) : (char)(c | 0x20);
    }
    return bytes ? sl_chat_string((struct sl_chat_text){bytes, text.n_bytes}) : sl_chat_nothing();
}

// ---- dicts ----------------------------------------------------------------------------------------------------------

SL_CHAT_ROW_FN(sl_chat_pairs) {
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    if (subject.kind != SL_CHAT_DICT && subject.kind != SL_CHAT_UNDEFINED) {
        sl_chat_fail(work, SL_ERR_INVALID, "items of %s", sl_chat_kind_name(subject.kind));
    }
    for (size_t i = 0; work->status == SL_OK && subject.kind == SL_CHAT_DICT && i < subject.dict->n; i++) {
        struct sl_chat_list *pair = sl_chat_list_create(work, 2);
        sl_chat_list_push(work, pair, sl_chat_string(subject.dict->pairs[i].key));
        sl_chat_list_push(work, pair, subject.dict->pairs[i].value);
        sl_chat_list_push(work, list, sl_chat_list_value(SL_CHAT_TUPLE, pair));
    }
    return sl_chat_list_value(SL_CHAT_ITERATOR, list);
}
