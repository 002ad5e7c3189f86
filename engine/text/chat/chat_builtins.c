// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the functions and methods that templates may use, and the lookup in all tables. See chat_internal.h.
 *
 * To add one: a row in its table, with the parameter names of Jinja or Python, and a case in tools/golden_chat.py,
 * which records Jinja's result.
 */
#include <time.h>

#include "engine/text/chat/chat_methods.h"

// ---- functions ------------------------------------------------------------------------------------------------------

SL_CHAT_FN(call_raise_exception) {
    struct sl_chat_text text = sl_chat_str(work, args[0]);
    if (work->status == SL_OK) { // the template's own message, without a line number
        size_t n = text.n_bytes < 256 ? text.n_bytes : 256;
        while (n > 0 && n < text.n_bytes && ((unsigned char)text.bytes[n] & 0xc0) == 0x80) {
            n--;
        }
        work->status = sl_fail(work->err, SL_ERR_INVALID, "%.*s", (int)n, text.bytes ? text.bytes : "");
    }
    return sl_chat_nothing();
}

SL_CHAT_FN(call_range) {
    int64_t bounds[3] = {0, 0, 1};
    bool one = args[1].kind == SL_CHAT_ABSENT;
    for (int i = 0; i < 3; i++) {
        int64_t *bound = &bounds[one && i == 0 ? 1 : i];
        if (args[i].kind != SL_CHAT_ABSENT && !sl_chat_want_int(work, args[i], "range", bound)) {
            return sl_chat_nothing();
        }
    }
    if (bounds[2] == 0) {
        sl_chat_fail(work, SL_ERR_INVALID, "range with a step of 0");
    }
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (int64_t i = bounds[0]; list && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]) && work->status == SL_OK;) {
        sl_chat_list_push(work, list, sl_chat_int(i));
        if (__builtin_add_overflow(i, bounds[2], &i)) {
            break;
        }
    }
    return sl_chat_list_value(SL_CHAT_LIST, list);
}

SL_CHAT_FN(call_strftime_now) {
    char format[64], text[256];
    if (!sl_chat_want_string(work, args[0], "strftime_now")) {
        return sl_chat_nothing();
    }
    size_t n = args[0].text.n_bytes;
    if (n >= sizeof(format)) {
        return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "strftime_now with a format of %zu bytes", n);
    }
    memcpy(format, n > 0 ? args[0].text.bytes : "", n);
    format[n] = '\0';
    for (const char *at = strchr(format, '%'); at; at = strchr(at + (*at != '\0'), '%')) {
        at += at[1] == '-' ? 2 : 1;
        if (*at == '\0' || !strchr("aAbBdeHIjmMpSyY%", *at)) {
            return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "strftime_now with the format '%s'", format);
        }
    }
    time_t now = (time_t)(work->time_ms / 1000);
    struct tm local;
    size_t n_bytes = localtime_r(&now, &local) ? strftime(text, sizeof(text), format, &local) : 0;
    struct sl_chat_buffer buffer = {0};
    sl_chat_append(work, &buffer, (struct sl_chat_text){text, n_bytes});
    return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
}

const struct sl_chat_builtin sl_chat_functions[] = {
    {.name = "namespace"}, // has its own node: chat_operand.c
    {.name = "raise_exception", .parameters = {"message"}, .n_required = 1, .fn = call_raise_exception},
    {.name = "range", .parameters = {"start", "stop", "step"}, .n_required = 1, .fn = call_range},
    {.name = "strftime_now", .parameters = {"format"}, .n_required = 1, .fn = call_strftime_now},
    {.name = NULL},
};

// ---- methods --------------------------------------------------------------------------------------------------------

SL_CHAT_FN(method_replace) {
    int64_t count = -1;
    if (!sl_chat_want_string(work, args[0], "replace") || !sl_chat_want_string(work, args[1], "replace") ||
        (args[2].kind != SL_CHAT_ABSENT && !sl_chat_want_int(work, args[2], "replace", &count))) {
        return sl_chat_nothing();
    }
    return sl_chat_replace(work, subject.text, args[0].text, args[1].text, count);
}

SL_CHAT_FN(method_join) {
    return sl_chat_join(work, args[0], subject.text, true);
}

SL_CHAT_FN(method_get) {
    const struct sl_chat_value *found = NULL;
    if (args[0].kind == SL_CHAT_LIST || args[0].kind == SL_CHAT_DICT) {
        sl_chat_fail(work, SL_ERR_INVALID, "looks for %s among keys", sl_chat_kind_name(args[0].kind));
    }
    if (args[0].kind == SL_CHAT_STRING && sl_chat_step_lookup(work, subject.dict, args[0].text)) {
        found = sl_chat_dict_get(subject.dict, args[0].text);
    }
    return found ? *found : args[1].kind == SL_CHAT_ABSENT ? (struct sl_chat_value){.kind = SL_CHAT_NONE} : args[1];
}

// keys(), values() and items() return lists, so indexing them is not an error, unlike in Python.
SL_CHAT_FN(method_keys) {
    return sl_chat_list_value(SL_CHAT_LIST, sl_chat_iterate(work, subject));
}

SL_CHAT_FN(method_values) {
    struct sl_chat_list *list = sl_chat_list_create(work, subject.dict->n);
    for (size_t i = 0; i < subject.dict->n; i++) {
        sl_chat_list_push(work, list, subject.dict->pairs[i].value);
    }
    return sl_chat_list_value(SL_CHAT_LIST, list);
}

SL_CHAT_FN(method_items) {
    struct sl_chat_value items = sl_chat_pairs(work, row, subject, args);
    return items.kind == SL_CHAT_ITERATOR ? sl_chat_list_value(SL_CHAT_LIST, items.list) : items;
}

#define STRING .of = SL_CHAT_STRING
#define DICT   .of = SL_CHAT_DICT

const struct sl_chat_builtin sl_chat_methods[] = {
    {.name = "capitalize", STRING, .fn = sl_chat_change_case, .variant = SL_CHAT_CAPITALIZE},
    {.name = "endswith", STRING, .parameters = {"suffix"}, .n_required = 1, .fn = sl_chat_matches, .variant = 1},
    {.name = "find", STRING, .parameters = {"sub"}, .n_required = 1, .fn = sl_chat_find_in},
    {.name = "join", STRING, .parameters = {"iterable"}, .n_required = 1, .fn = method_join},
    {.name = "lower", STRING, .fn = sl_chat_change_case, .variant = SL_CHAT_LOWER},
    {.name = "lstrip", STRING, .parameters = {"chars"}, .fn = sl_chat_strip_by, .variant = SL_CHAT_LEFT},
    {.name = "replace", STRING, .parameters = {"old", "new", "count"}, .n_required = 2, .fn = method_replace},
    {.name = "rstrip", STRING, .parameters = {"chars"}, .fn = sl_chat_strip_by, .variant = SL_CHAT_RIGHT},
    {.name = "split", STRING, .parameters = {"sep", "maxsplit"}, .fn = sl_chat_split},
    {.name = "startswith", STRING, .parameters = {"prefix"}, .n_required = 1, .fn = sl_chat_matches},
    {.name = "strip", STRING, .parameters = {"chars"}, .fn = sl_chat_strip_by, .variant = SL_CHAT_BOTH},
    {.name = "title", STRING, .fn = sl_chat_change_case, .variant = SL_CHAT_TITLE},
    {.name = "upper", STRING, .fn = sl_chat_change_case, .variant = SL_CHAT_UPPER},
    {.name = "get", DICT, .parameters = {"key", "default"}, .n_required = 1, .fn = method_get},
    {.name = "items", DICT, .fn = method_items},
    {.name = "keys", DICT, .fn = method_keys},
    {.name = "values", DICT, .fn = method_values},
    {.name = NULL},
};

// ---- finding them ---------------------------------------------------------------------------------------------------

const struct sl_chat_builtin *sl_chat_find_builtin(const struct sl_chat_builtin *table, struct sl_chat_text name) {
    while (table->name && !sl_chat_text_is(name, table->name)) {
        table++;
    }
    return table->name ? table : NULL;
}

const struct sl_chat_builtin *sl_chat_find_method(enum sl_chat_kind kind, struct sl_chat_text name) {
    const struct sl_chat_builtin *method = sl_chat_find_builtin(sl_chat_methods, name); // names are those of one kind
    return method && method->of == kind ? method : NULL;
}

int sl_chat_parameter(const struct sl_chat_builtin *builtin, struct sl_chat_text keyword) {
    for (int i = 0; i < SL_CHAT_MAX_ARGS && builtin->parameters[i]; i++) {
        if (sl_chat_text_is(keyword, builtin->parameters[i])) {
            return i;
        }
    }
    return -1;
}
