// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the filters that templates may use. See chat_internal.h.
 *
 * To add one: a row in the table at the end, with Jinja's parameter names, and a case in tools/golden_chat.py, which
 * records Jinja's result.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/text/chat/chat_methods.h"

SL_CHAT_FN(filter_length) {
    return sl_chat_int((int64_t)sl_chat_length(work, subject));
}

SL_CHAT_FN(filter_tojson) { // ensure_ascii, indent, separators, sort_keys
    int64_t indent = -1;
    for (int i = 0; i < 4; i++) {
        if (i != 1 && sl_chat_is_true(work, args[i])) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "tojson with more than an indent");
        }
    }
    if (sl_chat_given(args[1]) && (!sl_chat_want_int(work, args[1], "tojson", &indent) || indent < 0 || indent > 64)) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "tojson with an indent that is not 0 to 64");
    }
    return sl_chat_string(sl_chat_to_json(work, subject, (int)indent));
}

SL_CHAT_FN(filter_join) {
    return sl_chat_join(work, subject, sl_chat_str(work, args[0]), false);
}

SL_CHAT_FN(filter_default) {
    bool wanted =
        subject.kind == SL_CHAT_UNDEFINED || (sl_chat_is_true(work, args[1]) && !sl_chat_is_true(work, subject));
    return !wanted ? subject : args[0].kind == SL_CHAT_ABSENT ? sl_chat_string(SL_CHAT_TEXT("")) : args[0];
}

SL_CHAT_FN(filter_first) {
    struct sl_chat_list *list = subject.kind == SL_CHAT_ITERATOR ? subject.list : sl_chat_iterate(work, subject);
    if (!list || list->n == 0) {
        return sl_chat_nothing();
    }
    struct sl_chat_value first = list->items[0];
    if (subject.kind == SL_CHAT_ITERATOR) { // the remaining items can still be read
        list->items++;
        list->n--;
        list->capacity--;
    }
    return first;
}

SL_CHAT_FN(filter_last) {
    if (subject.kind == SL_CHAT_ITERATOR) {
        return sl_chat_fail(work, SL_ERR_INVALID, "last of an iterator; put \"| list\" before it");
    }
    const struct sl_chat_list *list = sl_chat_iterate(work, subject);
    return list && list->n > 0 ? list->items[list->n - 1] : sl_chat_nothing();
}

SL_CHAT_FN(filter_replace) {
    int64_t count = -1;
    if (sl_chat_given(args[2]) && !sl_chat_want_int(work, args[2], "replace", &count)) {
        return sl_chat_nothing();
    }
    return sl_chat_replace(work, sl_chat_str(work, subject), sl_chat_str(work, args[0]), sl_chat_str(work, args[1]),
                           count);
}

SL_CHAT_FN(filter_list) {
    return sl_chat_list_value(SL_CHAT_LIST, sl_chat_iterate(work, subject));
}

SL_CHAT_FN(filter_string) {
    return sl_chat_string(sl_chat_str(work, subject));
}

static struct sl_chat_value truncated(struct sl_chat_work *work, double value, struct sl_chat_value otherwise) {
    if (!isfinite(value)) {
        return otherwise;
    }
    if (fabs(value) >= 9e18) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "makes an integer of more than 64 bits");
        return otherwise;
    }
    return sl_chat_int((int64_t)value);
}

SL_CHAT_FN(filter_int) {
    char digits[64], *end;
    struct sl_chat_value otherwise = args[0].kind == SL_CHAT_ABSENT ? sl_chat_int(0) : args[0];
    if (subject.kind == SL_CHAT_UNDEFINED) {
        sl_chat_fail(work, SL_ERR_INVALID, "int of an undefined value");
    }
    if (subject.kind != SL_CHAT_STRING) {
        return subject.kind == SL_CHAT_INT     ? subject
               : subject.kind == SL_CHAT_BOOL  ? sl_chat_int(subject.truth)
               : subject.kind == SL_CHAT_FLOAT ? truncated(work, subject.real, otherwise)
                                               : otherwise;
    }
    if (!sl_chat_step(work, subject.text.n_bytes * 4)) { // as sl_chat_strip_by() counts white space
        return otherwise;
    }
    struct sl_chat_text text = sl_chat_strip(subject.text, NULL, SL_CHAT_BOTH);
    size_t n_plain = 0;
    while (n_plain < text.n_bytes && strchr("0123456789+-.eE", text.bytes[n_plain])) {
        n_plain++;
    }
    bool unsure = !sl_chat_is_ascii(text) || memchr(text.bytes ? text.bytes : "", '_', text.n_bytes);
    if (unsure || text.n_bytes >= 18) { // Python accepts other digits, and numbers of any length
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "int of this string");
        return otherwise;
    }
    if (n_plain < text.n_bytes || text.n_bytes == 0) {
        return otherwise; // also for Python's infinity and NaN
    }
    memcpy(digits, text.bytes, text.n_bytes);
    digits[text.n_bytes] = '\0';
    long long whole = strtoll(digits, &end, 10);
    if (*end == '\0') {
        return sl_chat_int(whole);
    }
    double real = strtod(digits, &end);
    return *end == '\0' ? truncated(work, real, otherwise) : otherwise;
}

SL_CHAT_FN(filter_reverse) {
    const struct sl_chat_list *list = sl_chat_iterate(work, subject);
    struct sl_chat_list *reversed = sl_chat_list_create(work, list ? list->n : 0);
    for (size_t i = list ? list->n : 0; i > 0 && work->status == SL_OK; i--) {
        sl_chat_list_push(work, reversed, list->items[i - 1]);
    }
    struct sl_chat_value value = sl_chat_list_value(SL_CHAT_ITERATOR, reversed);
    return subject.kind == SL_CHAT_STRING ? sl_chat_join(work, value, SL_CHAT_TEXT(""), false) : value;
}

// Returns the attribute of an item by its name, with the rules of filters.
static struct sl_chat_value attribute_of(struct sl_chat_work *work, struct sl_chat_value item,
                                         struct sl_chat_value name) {
    if (!sl_chat_want_string(work, name, "an attribute's name")) {
        return sl_chat_nothing();
    }
    for (size_t i = 0; i < name.text.n_bytes; i++) {
        if (name.text.bytes[i] == '.' || (name.text.bytes[i] >= '0' && name.text.bytes[i] <= '9')) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "an attribute's name with dots or digits");
        }
    }
    return sl_chat_item(work, item, name);
}

enum { SELECT, REJECT };

// Returns the items that pass a test, or do not, or whose attribute does. args: the attribute's name if the row has one,
// the test's name and its argument; without a test, the true items.
SL_CHAT_FN(filter_select) {
    const struct sl_chat_value *attribute = row->test_name == 2 ? args++ : NULL;
    const struct sl_chat_builtin *test = NULL;
    if (args[0].kind != SL_CHAT_ABSENT && sl_chat_want_string(work, args[0], "the name of a test")) {
        test = sl_chat_find_builtin(sl_chat_tests, args[0].text);
        if (!test || test->n_required > (args[1].kind != SL_CHAT_ABSENT)) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "selects items by this test with these arguments");
        }
    }
    const struct sl_chat_list *items = sl_chat_iterate(work, subject);
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (size_t i = 0; items && list && i < items->n && work->status == SL_OK; i++) {
        struct sl_chat_value value = attribute ? attribute_of(work, items->items[i], *attribute) : items->items[i];
        if (test) {
            value = test->fn(work, test, value, args + 1);
        }
        if (sl_chat_is_true(work, value) != (row->variant == REJECT)) {
            sl_chat_list_push(work, list, items->items[i]);
        }
    }
    return sl_chat_list_value(SL_CHAT_ITERATOR, list);
}

SL_CHAT_FN(filter_map) { // filter, attribute, default
    static const struct sl_chat_value absent[SL_CHAT_MAX_ARGS];
    const struct sl_chat_builtin *filter = NULL;
    if (args[0].kind != SL_CHAT_ABSENT && sl_chat_want_string(work, args[0], "map")) {
        filter = sl_chat_find_builtin(sl_chat_filters, args[0].text);
    }
    if ((args[0].kind == SL_CHAT_ABSENT) == (args[1].kind == SL_CHAT_ABSENT) ||
        (args[0].kind != SL_CHAT_ABSENT && (!filter || filter->n_required > 0 || filter->fn == filter_map))) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "map with anything but an attribute or a filter without arguments");
    }
    const struct sl_chat_list *items = work->status == SL_OK ? sl_chat_iterate(work, subject) : NULL;
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (size_t i = 0; items && list && i < items->n && work->status == SL_OK; i++) {
        struct sl_chat_value value =
            filter ? filter->fn(work, filter, items->items[i], absent) : attribute_of(work, items->items[i], args[1]);
        bool missing = !filter && value.kind == SL_CHAT_UNDEFINED && args[2].kind != SL_CHAT_ABSENT;
        sl_chat_list_push(work, list, missing ? args[2] : value);
    }
    return sl_chat_list_value(SL_CHAT_ITERATOR, list);
}

const struct sl_chat_builtin sl_chat_filters[] = {
    {.name = "capitalize", .fn = sl_chat_change_case, .variant = SL_CHAT_CAPITALIZE},
    {.name = "count", .fn = filter_length},
    {.name = "d", .parameters = {"default_value", "boolean"}, .fn = filter_default},
    {.name = "default", .parameters = {"default_value", "boolean"}, .fn = filter_default},
    {.name = "first", .fn = filter_first},
    {.name = "int", .parameters = {"default"}, .fn = filter_int},
    {.name = "items", .fn = sl_chat_pairs},
    {.name = "join", .parameters = {"d"}, .fn = filter_join},
    {.name = "last", .fn = filter_last},
    {.name = "length", .fn = filter_length},
    {.name = "list", .fn = filter_list},
    {.name = "lower", .fn = sl_chat_change_case, .variant = SL_CHAT_LOWER},
    {.name = "map", .parameters = {"filter", "attribute", "default"}, .fn = filter_map},
    {.name = "reject", .parameters = {"test", "value"}, .fn = filter_select, .variant = REJECT, .test_name = 1},
    {.name = "rejectattr",
     .parameters = {"attribute", "test", "value"},
     .n_required = 1,
     .fn = filter_select,
     .variant = REJECT,
     .test_name = 2},
    {.name = "replace", .parameters = {"old", "new", "count"}, .n_required = 2, .fn = filter_replace},
    {.name = "reverse", .fn = filter_reverse},
    {.name = "select", .parameters = {"test", "value"}, .fn = filter_select, .variant = SELECT, .test_name = 1},
    {.name = "selectattr",
     .parameters = {"attribute", "test", "value"},
     .n_required = 1,
     .fn = filter_select,
     .variant = SELECT,
     .test_name = 2},
    {.name = "string", .fn = filter_string},
    {.name = "title", .fn = sl_chat_change_case, .variant = SL_CHAT_WORDS},
    {.name = "tojson", .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}, .fn = filter_tojson},
    {.name = "trim", .parameters = {"chars"}, .fn = sl_chat_strip_by, .variant = SL_CHAT_BOTH},
    {.name = "upper", .fn = sl_chat_change_case, .variant = SL_CHAT_UPPER},
    {.name = NULL},
};
