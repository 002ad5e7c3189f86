// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the functions, filters, tests and methods that templates may use. See chat_internal.h.
 *
 * To add one: a row in its table, with the names of its parameters as Jinja or Python has them, and a case in
 * tools/golden_chat.py, which records what Jinja makes of it.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "engine/chat_methods.h"

#define FN(name)                                                                                                       \
    static struct sl_chat_value name(struct sl_chat_work *work, struct sl_chat_value subject,                          \
                                     const struct sl_chat_value *args)

// ---- functions ------------------------------------------------------------------------------------------------------

FN(call_raise_exception) {
    (void)subject;
    struct sl_chat_text text = sl_chat_str(work, args[0]);
    if (work->status == SL_OK) { // the template's own words, without a line
        size_t n = text.n_bytes < 256 ? text.n_bytes : 256;
        while (n > 0 && n < text.n_bytes && ((unsigned char)text.bytes[n] & 0xc0) == 0x80) {
            n--;
        }
        work->status = sl_fail(work->err, SL_ERR_INVALID, "%.*s", (int)n, text.bytes ? text.bytes : "");
    }
    return sl_chat_nothing();
}

FN(call_range) {
    (void)subject;
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

FN(call_strftime_now) {
    (void)subject;
    char format[64], text[256];
    if (!sl_chat_want_string(work, args[0], "strftime_now")) {
        return sl_chat_nothing();
    }
    size_t n = args[0].text.n_bytes;
    if (n >= sizeof(format)) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "strftime_now with a format of %zu bytes", n);
        return sl_chat_nothing();
    }
    memcpy(format, n > 0 ? args[0].text.bytes : "", n);
    format[n] = '\0';
    for (const char *at = strchr(format, '%'); at; at = strchr(at + (*at != '\0'), '%')) {
        at += at[1] == '-' ? 2 : 1;
        if (*at == '\0' || !strchr("aAbBdeHIjmMpSyY%", *at)) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "strftime_now with the format '%s'", format);
            return sl_chat_nothing();
        }
    }
    time_t now = (time_t)(work->time_ms / 1000);
    struct tm local;
    size_t n_bytes = localtime_r(&now, &local) ? strftime(text, sizeof(text), format, &local) : 0;
    struct sl_chat_buffer buffer = {0};
    sl_chat_append(work, &buffer, (struct sl_chat_text){text, n_bytes});
    return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
}

static const struct sl_chat_builtin functions[] = {
    {.name = "namespace"}, // has a node of its own: chat_expression.c
    {.name = "raise_exception", .parameters = {"message"}, .n_required = 1, .fn = call_raise_exception},
    {.name = "range", .parameters = {"start", "stop", "step"}, .n_required = 1, .fn = call_range},
    {.name = "strftime_now", .parameters = {"format"}, .n_required = 1, .fn = call_strftime_now},
};

// ---- filters --------------------------------------------------------------------------------------------------------

FN(filter_trim) {
    return sl_chat_strip_by(work, sl_chat_str(work, subject), args[0], SL_CHAT_BOTH);
}

FN(filter_length) {
    (void)args;
    return sl_chat_int((int64_t)sl_chat_length(work, subject));
}

FN(filter_upper) {
    (void)args;
    return sl_chat_change_case(work, sl_chat_str(work, subject), SL_CHAT_UPPER);
}

FN(filter_lower) {
    (void)args;
    return sl_chat_change_case(work, sl_chat_str(work, subject), SL_CHAT_LOWER);
}

FN(filter_capitalize) {
    (void)args;
    return sl_chat_change_case(work, sl_chat_str(work, subject), SL_CHAT_CAPITALIZE);
}

FN(filter_title) {
    (void)args;
    return sl_chat_change_case(work, sl_chat_str(work, subject), SL_CHAT_WORDS);
}

FN(filter_tojson) { // ensure_ascii, indent, separators, sort_keys
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

FN(filter_join) {
    return sl_chat_join(work, subject, sl_chat_str(work, args[0]), false);
}

FN(filter_default) {
    bool wanted =
        subject.kind == SL_CHAT_UNDEFINED || (sl_chat_is_true(work, args[1]) && !sl_chat_is_true(work, subject));
    return !wanted ? subject : args[0].kind == SL_CHAT_ABSENT ? sl_chat_string(SL_CHAT_TEXT("")) : args[0];
}

FN(filter_first) {
    (void)args;
    struct sl_chat_list *list = subject.kind == SL_CHAT_ITERATOR ? subject.list : sl_chat_iterate(work, subject);
    if (!list || list->n == 0) {
        return sl_chat_nothing();
    }
    struct sl_chat_value first = list->items[0];
    if (subject.kind == SL_CHAT_ITERATOR) { // the rest can still be read
        list->items++;
        list->n--;
        list->capacity--;
    }
    return first;
}

FN(filter_last) {
    (void)args;
    if (subject.kind == SL_CHAT_ITERATOR) {
        sl_chat_fail(work, SL_ERR_INVALID, "last of an iterator; put \"| list\" before it");
        return sl_chat_nothing();
    }
    const struct sl_chat_list *list = sl_chat_iterate(work, subject);
    return list && list->n > 0 ? list->items[list->n - 1] : sl_chat_nothing();
}

FN(filter_replace) {
    int64_t count = -1;
    if (sl_chat_given(args[2]) && !sl_chat_want_int(work, args[2], "replace", &count)) {
        return sl_chat_nothing();
    }
    return sl_chat_replace(work, sl_chat_str(work, subject), sl_chat_str(work, args[0]), sl_chat_str(work, args[1]),
                           count);
}

FN(filter_list) {
    (void)args;
    return sl_chat_list_value(SL_CHAT_LIST, sl_chat_iterate(work, subject));
}

FN(filter_string) {
    (void)args;
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

FN(filter_int) {
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
    struct sl_chat_text text = sl_chat_strip(subject.text, NULL, SL_CHAT_BOTH);
    size_t n_plain = 0;
    while (n_plain < text.n_bytes && strchr("0123456789+-.eE", text.bytes[n_plain])) {
        n_plain++;
    }
    bool unsure = !sl_chat_is_ascii(text) || memchr(text.bytes ? text.bytes : "", '_', text.n_bytes);
    if (unsure || text.n_bytes >= 18) { // Python knows other digits, and numbers of any length
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "int of this string");
        return otherwise;
    }
    if (n_plain < text.n_bytes || text.n_bytes == 0) {
        return otherwise; // also what Python takes for infinity and for no number
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

FN(filter_items) {
    (void)args;
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

FN(filter_reverse) {
    (void)args;
    const struct sl_chat_list *list = sl_chat_iterate(work, subject);
    struct sl_chat_list *reversed = sl_chat_list_create(work, list ? list->n : 0);
    for (size_t i = list ? list->n : 0; i > 0 && work->status == SL_OK; i--) {
        sl_chat_list_push(work, reversed, list->items[i - 1]);
    }
    struct sl_chat_value value = sl_chat_list_value(SL_CHAT_ITERATOR, reversed);
    return subject.kind == SL_CHAT_STRING ? sl_chat_join(work, value, SL_CHAT_TEXT(""), false) : value;
}

// The attribute of an item by its name, as filters take it.
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

// The items that pass a test, or whose attribute passes it. args: the test's name and its argument; without a test, the
// items that are true. attribute: NULL for the item itself.
static struct sl_chat_value select_items(struct sl_chat_work *work, struct sl_chat_value subject,
                                         const struct sl_chat_value *attribute, const struct sl_chat_value *args,
                                         bool reject) {
    const struct sl_chat_builtin *test = NULL;
    if (args[0].kind != SL_CHAT_ABSENT && sl_chat_want_string(work, args[0], "the name of a test")) {
        test = sl_chat_find_builtin(SL_CHAT_TESTS, args[0].text);
        if (!test || test->n_required > (args[1].kind != SL_CHAT_ABSENT)) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "selects items by this test with these arguments");
        }
    }
    const struct sl_chat_list *items = sl_chat_iterate(work, subject);
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (size_t i = 0; items && list && i < items->n && work->status == SL_OK; i++) {
        struct sl_chat_value value = attribute ? attribute_of(work, items->items[i], *attribute) : items->items[i];
        if (test) {
            value = test->fn(work, value, args + 1);
        }
        if (sl_chat_is_true(work, value) != reject) {
            sl_chat_list_push(work, list, items->items[i]);
        }
    }
    return sl_chat_list_value(SL_CHAT_ITERATOR, list);
}

FN(filter_select) {
    return select_items(work, subject, NULL, args, false);
}

FN(filter_reject) {
    return select_items(work, subject, NULL, args, true);
}

FN(filter_selectattr) {
    return select_items(work, subject, &args[0], args + 1, false);
}

FN(filter_rejectattr) {
    return select_items(work, subject, &args[0], args + 1, true);
}

FN(filter_map) { // filter, attribute, default
    static const struct sl_chat_value absent[SL_CHAT_MAX_ARGS];
    const struct sl_chat_builtin *filter = NULL;
    if (args[0].kind != SL_CHAT_ABSENT && sl_chat_want_string(work, args[0], "map")) {
        filter = sl_chat_find_builtin(SL_CHAT_FILTERS, args[0].text);
    }
    if ((args[0].kind == SL_CHAT_ABSENT) == (args[1].kind == SL_CHAT_ABSENT) ||
        (args[0].kind != SL_CHAT_ABSENT && (!filter || filter->n_required > 0 || filter->fn == filter_map))) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "map with anything but an attribute or a filter without arguments");
    }
    const struct sl_chat_list *items = work->status == SL_OK ? sl_chat_iterate(work, subject) : NULL;
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (size_t i = 0; items && list && i < items->n && work->status == SL_OK; i++) {
        struct sl_chat_value value =
            filter ? filter->fn(work, items->items[i], absent) : attribute_of(work, items->items[i], args[1]);
        bool missing = !filter && value.kind == SL_CHAT_UNDEFINED && args[2].kind != SL_CHAT_ABSENT;
        sl_chat_list_push(work, list, missing ? args[2] : value);
    }
    return sl_chat_list_value(SL_CHAT_ITERATOR, list);
}

static const struct sl_chat_builtin filters[] = {
    {.name = "capitalize", .fn = filter_capitalize},
    {.name = "count", .fn = filter_length},
    {.name = "d", .parameters = {"default_value", "boolean"}, .fn = filter_default},
    {.name = "default", .parameters = {"default_value", "boolean"}, .fn = filter_default},
    {.name = "first", .fn = filter_first},
    {.name = "int", .parameters = {"default"}, .fn = filter_int},
    {.name = "items", .fn = filter_items},
    {.name = "join", .parameters = {"d"}, .fn = filter_join},
    {.name = "last", .fn = filter_last},
    {.name = "length", .fn = filter_length},
    {.name = "list", .fn = filter_list},
    {.name = "lower", .fn = filter_lower},
    {.name = "map", .parameters = {"filter", "attribute", "default"}, .fn = filter_map},
    {.name = "reject", .parameters = {"test", "value"}, .fn = filter_reject, .test_name = 1},
    {.name = "rejectattr",
     .parameters = {"attribute", "test", "value"},
     .n_required = 1,
     .fn = filter_rejectattr,
     .test_name = 2},
    {.name = "replace", .parameters = {"old", "new", "count"}, .n_required = 2, .fn = filter_replace},
    {.name = "reverse", .fn = filter_reverse},
    {.name = "select", .parameters = {"test", "value"}, .fn = filter_select, .test_name = 1},
    {.name = "selectattr",
     .parameters = {"attribute", "test", "value"},
     .n_required = 1,
     .fn = filter_selectattr,
     .test_name = 2},
    {.name = "string", .fn = filter_string},
    {.name = "title", .fn = filter_title},
    {.name = "tojson", .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}, .fn = filter_tojson},
    {.name = "trim", .parameters = {"chars"}, .fn = filter_trim},
    {.name = "upper", .fn = filter_upper},
};

// ---- tests ----------------------------------------------------------------------------------------------------------

// True of the kinds whose bits are in `kinds`.
static struct sl_chat_value is_kind(struct sl_chat_value value, unsigned kinds) {
    return sl_chat_bool(kinds >> value.kind & 1);
}

#define KIND(kind) (1u << SL_CHAT_##kind)
#define TEST_OF_KIND(name, kinds)                                                                                      \
    FN(name) {                                                                                                         \
        (void)work;                                                                                                    \
        (void)args;                                                                                                    \
        return is_kind(subject, kinds);                                                                                \
    }

TEST_OF_KIND(test_undefined, KIND(UNDEFINED))
TEST_OF_KIND(test_defined, ~KIND(UNDEFINED))
TEST_OF_KIND(test_none, KIND(NONE))
TEST_OF_KIND(test_boolean, KIND(BOOL))
TEST_OF_KIND(test_integer, KIND(INT))
TEST_OF_KIND(test_float, KIND(FLOAT))
TEST_OF_KIND(test_number, KIND(BOOL) | KIND(INT) | KIND(FLOAT))
TEST_OF_KIND(test_string, KIND(STRING))
TEST_OF_KIND(test_mapping, KIND(DICT))
// Of undefined values Python finds the methods that it asks for, though they fail.
TEST_OF_KIND(test_sequence, KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(DICT))
TEST_OF_KIND(test_iterable,
             KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(ITERATOR) | KIND(DICT) | KIND(LOOP))
TEST_OF_KIND(test_callable, KIND(FUNCTION))

FN(test_true) {
    (void)work;
    (void)args;
    return sl_chat_bool(subject.kind == SL_CHAT_BOOL && subject.truth);
}

FN(test_false) {
    (void)work;
    (void)args;
    return sl_chat_bool(subject.kind == SL_CHAT_BOOL && !subject.truth);
}

FN(test_eq) {
    return sl_chat_bool(sl_chat_equal(work, subject, args[0]));
}

FN(test_ne) {
    return sl_chat_bool(!sl_chat_equal(work, subject, args[0]));
}

FN(test_lt) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) < 0);
}

FN(test_gt) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) > 0);
}

FN(test_in) {
    return sl_chat_bool(sl_chat_contains(work, args[0], subject));
}

static struct sl_chat_value remainder_is(struct sl_chat_work *work, struct sl_chat_value value,
                                         struct sl_chat_value divisor, int64_t remainder) {
    return sl_chat_bool(sl_chat_equal(work, sl_chat_arithmetic(work, "%", value, divisor), sl_chat_int(remainder)));
}

FN(test_divisibleby) {
    return remainder_is(work, subject, args[0], 0);
}

FN(test_even) {
    (void)args;
    return remainder_is(work, subject, sl_chat_int(2), 0);
}

FN(test_odd) {
    (void)args;
    return remainder_is(work, subject, sl_chat_int(2), 1);
}

static const struct sl_chat_builtin tests[] = {
    {.name = "==", .parameters = {"value"}, .n_required = 1, .fn = test_eq},
    {.name = "!=", .parameters = {"value"}, .n_required = 1, .fn = test_ne},
    {.name = "boolean", .fn = test_boolean},
    {.name = "callable", .fn = test_callable},
    {.name = "defined", .fn = test_defined},
    {.name = "divisibleby", .parameters = {"num"}, .n_required = 1, .fn = test_divisibleby},
    {.name = "eq", .parameters = {"value"}, .n_required = 1, .fn = test_eq},
    {.name = "equalto", .parameters = {"value"}, .n_required = 1, .fn = test_eq},
    {.name = "even", .fn = test_even},
    {.name = "false", .fn = test_false},
    {.name = "float", .fn = test_float},
    {.name = "greaterthan", .parameters = {"value"}, .n_required = 1, .fn = test_gt},
    {.name = "gt", .parameters = {"value"}, .n_required = 1, .fn = test_gt},
    {.name = "in", .parameters = {"seq"}, .n_required = 1, .fn = test_in},
    {.name = "integer", .fn = test_integer},
    {.name = "iterable", .fn = test_iterable},
    {.name = "lessthan", .parameters = {"value"}, .n_required = 1, .fn = test_lt},
    {.name = "lt", .parameters = {"value"}, .n_required = 1, .fn = test_lt},
    {.name = "mapping", .fn = test_mapping},
    {.name = "ne", .parameters = {"value"}, .n_required = 1, .fn = test_ne},
    {.name = "none", .fn = test_none},
    {.name = "number", .fn = test_number},
    {.name = "odd", .fn = test_odd},
    {.name = "sequence", .fn = test_sequence},
    {.name = "string", .fn = test_string},
    {.name = "true", .fn = test_true},
    {.name = "undefined", .fn = test_undefined},
};

// ---- methods --------------------------------------------------------------------------------------------------------

FN(method_strip) {
    return sl_chat_strip_by(work, subject.text, args[0], SL_CHAT_BOTH);
}

FN(method_lstrip) {
    return sl_chat_strip_by(work, subject.text, args[0], SL_CHAT_LEFT);
}

FN(method_rstrip) {
    return sl_chat_strip_by(work, subject.text, args[0], SL_CHAT_RIGHT);
}

FN(method_title) {
    (void)args;
    return sl_chat_change_case(work, subject.text, SL_CHAT_TITLE);
}

FN(method_replace) {
    int64_t count = -1;
    if (!sl_chat_want_string(work, args[0], "replace") || !sl_chat_want_string(work, args[1], "replace") ||
        (args[2].kind != SL_CHAT_ABSENT && !sl_chat_want_int(work, args[2], "replace", &count))) {
        return sl_chat_nothing();
    }
    return sl_chat_replace(work, subject.text, args[0].text, args[1].text, count);
}

FN(method_join) {
    return sl_chat_join(work, args[0], subject.text, true);
}

FN(method_get) {
    const struct sl_chat_value *found = NULL;
    if (args[0].kind == SL_CHAT_LIST || args[0].kind == SL_CHAT_DICT) {
        sl_chat_fail(work, SL_ERR_INVALID, "looks for %s among keys", sl_chat_kind_name(args[0].kind));
    }
    if (args[0].kind == SL_CHAT_STRING && sl_chat_step(work, subject.dict->n * SL_CHAT_STEP_BYTES)) {
        found = sl_chat_dict_get(subject.dict, args[0].text);
    }
    return found ? *found : args[1].kind == SL_CHAT_ABSENT ? (struct sl_chat_value){.kind = SL_CHAT_NONE} : args[1];
}

// keys(), values() and items() give lists, so indexing them is no error, as it is in Python.
FN(method_keys) {
    (void)args;
    return sl_chat_list_value(SL_CHAT_LIST, sl_chat_iterate(work, subject));
}

FN(method_values) {
    (void)args;
    struct sl_chat_list *list = sl_chat_list_create(work, subject.dict->n);
    for (size_t i = 0; i < subject.dict->n; i++) {
        sl_chat_list_push(work, list, subject.dict->pairs[i].value);
    }
    return sl_chat_list_value(SL_CHAT_LIST, list);
}

FN(method_items) {
    struct sl_chat_value items = filter_items(work, subject, args);
    return items.kind == SL_CHAT_ITERATOR ? sl_chat_list_value(SL_CHAT_LIST, items.list) : items;
}

#define STRING .of = SL_CHAT_STRING
#define DICT   .of = SL_CHAT_DICT

static const struct sl_chat_builtin methods[] = {
    {.name = "capitalize", STRING, .fn = filter_capitalize},
    {.name = "endswith", STRING, .parameters = {"suffix"}, .n_required = 1, .fn = sl_chat_endswith},
    {.name = "find", STRING, .parameters = {"sub"}, .n_required = 1, .fn = sl_chat_find_in},
    {.name = "join", STRING, .parameters = {"iterable"}, .n_required = 1, .fn = method_join},
    {.name = "lower", STRING, .fn = filter_lower},
    {.name = "lstrip", STRING, .parameters = {"chars"}, .fn = method_lstrip},
    {.name = "replace", STRING, .parameters = {"old", "new", "count"}, .n_required = 2, .fn = method_replace},
    {.name = "rstrip", STRING, .parameters = {"chars"}, .fn = method_rstrip},
    {.name = "split", STRING, .parameters = {"sep", "maxsplit"}, .fn = sl_chat_split},
    {.name = "startswith", STRING, .parameters = {"prefix"}, .n_required = 1, .fn = sl_chat_startswith},
    {.name = "strip", STRING, .parameters = {"chars"}, .fn = method_strip},
    {.name = "title", STRING, .fn = method_title},
    {.name = "upper", STRING, .fn = filter_upper},
    {.name = "get", DICT, .parameters = {"key", "default"}, .n_required = 1, .fn = method_get},
    {.name = "items", DICT, .fn = method_items},
    {.name = "keys", DICT, .fn = method_keys},
    {.name = "values", DICT, .fn = method_values},
};

// ---- finding them ---------------------------------------------------------------------------------------------------

#define ROWS(table)                                                                                                    \
    { table, sizeof(table) / sizeof(*(table)) }

static const struct {
    const struct sl_chat_builtin *rows;
    size_t n_rows;
} tables[] = {
    [SL_CHAT_FUNCTIONS] = ROWS(functions),
    [SL_CHAT_FILTERS] = ROWS(filters),
    [SL_CHAT_TESTS] = ROWS(tests),
    [SL_CHAT_METHODS] = ROWS(methods),
};

const struct sl_chat_builtin *sl_chat_find_builtin(enum sl_chat_table table, struct sl_chat_text name) {
    for (size_t i = 0; i < tables[table].n_rows; i++) {
        if (sl_chat_text_is(name, tables[table].rows[i].name)) {
            return &tables[table].rows[i];
        }
    }
    return NULL;
}

const struct sl_chat_builtin *sl_chat_find_method(enum sl_chat_kind kind, struct sl_chat_text name) {
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++) {
        if (methods[i].of == kind && sl_chat_text_is(name, methods[i].name)) {
            return &methods[i];
        }
    }
    return NULL;
}

int sl_chat_parameter(const struct sl_chat_builtin *builtin, struct sl_chat_text keyword) {
    for (int i = 0; i < SL_CHAT_MAX_ARGS && builtin->parameters[i]; i++) {
        if (sl_chat_text_is(keyword, builtin->parameters[i])) {
            return i;
        }
    }
    return -1;
}
