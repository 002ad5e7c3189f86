// SPDX-License-Identifier: Apache-2.0
// Purpose: values and Python's operations on them: truth, str(), len(), ==, <, in, iteration. See chat_internal.h.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/chat/chat_internal.h"

// ---- making them ----------------------------------------------------------------------------------------------------

struct sl_chat_value sl_chat_undefined(struct sl_chat_text name) {
    return (struct sl_chat_value){.kind = SL_CHAT_UNDEFINED, .text = name};
}

struct sl_chat_value sl_chat_bool(bool truth) {
    return (struct sl_chat_value){.kind = SL_CHAT_BOOL, .truth = truth};
}

struct sl_chat_value sl_chat_int(int64_t integer) {
    return (struct sl_chat_value){.kind = SL_CHAT_INT, .integer = integer};
}

struct sl_chat_value sl_chat_string(struct sl_chat_text text) {
    return (struct sl_chat_value){.kind = SL_CHAT_STRING, .text = text};
}

struct sl_chat_value sl_chat_list_value(enum sl_chat_kind kind, struct sl_chat_list *list) {
    return list ? (struct sl_chat_value){.kind = kind, .list = list} : sl_chat_undefined(SL_CHAT_TEXT(""));
}

const char *sl_chat_kind_name(enum sl_chat_kind kind) {
    static const char *const names[] = {
        [SL_CHAT_ABSENT] = "nothing",     [SL_CHAT_UNDEFINED] = "an undefined value",
        [SL_CHAT_NONE] = "none",          [SL_CHAT_BOOL] = "a boolean",
        [SL_CHAT_INT] = "an integer",     [SL_CHAT_FLOAT] = "a float",
        [SL_CHAT_STRING] = "a string",    [SL_CHAT_LIST] = "a list",
        [SL_CHAT_TUPLE] = "a tuple",      [SL_CHAT_ITERATOR] = "an iterator",
        [SL_CHAT_DICT] = "a dictionary",  [SL_CHAT_NAMESPACE] = "a namespace",
        [SL_CHAT_LOOP] = "a loop object", [SL_CHAT_FUNCTION] = "a function",
    };
    return names[kind];
}

struct sl_chat_list *sl_chat_list_create(struct sl_chat_work *work, size_t capacity) {
    struct sl_chat_list *list = sl_chat_alloc(work, sizeof(*list));
    if (list && capacity > 0) {
        list->items = sl_chat_alloc(work, capacity * sizeof(*list->items));
        list->capacity = capacity;
    }
    return work->status == SL_OK ? list : NULL;
}

void sl_chat_list_push(struct sl_chat_work *work, struct sl_chat_list *list, struct sl_chat_value value) {
    if (!list || !sl_chat_step(work, 0)) {
        return;
    }
    struct sl_chat_value *items =
        sl_chat_grow(work, list->items, list->n, list->n + 1, sizeof(*items), &list->capacity);
    if (items) {
        list->items = items;
        list->items[list->n++] = value;
    }
}

struct sl_chat_dict *sl_chat_dict_create(struct sl_chat_work *work) {
    return sl_chat_alloc(work, sizeof(struct sl_chat_dict));
}

static struct sl_chat_pair *find_pair(const struct sl_chat_dict *dict, struct sl_chat_text key) {
    for (size_t i = 0; i < dict->n; i++) {
        if (sl_chat_text_equal(dict->pairs[i].key, key)) {
            return &dict->pairs[i];
        }
    }
    return NULL;
}

const struct sl_chat_value *sl_chat_dict_get(const struct sl_chat_dict *dict, struct sl_chat_text key) {
    const struct sl_chat_pair *pair = find_pair(dict, key);
    return pair ? &pair->value : NULL;
}

bool sl_chat_step_lookup(struct sl_chat_work *work, const struct sl_chat_dict *dict, struct sl_chat_text key) {
    return sl_chat_step(work, dict->n * (SL_CHAT_KEY_BYTES + key.n_bytes));
}

void sl_chat_dict_set(struct sl_chat_work *work, struct sl_chat_dict *dict, struct sl_chat_text key,
                      struct sl_chat_value value) {
    if (!dict || !sl_chat_step_lookup(work, dict, key)) {
        return;
    }
    struct sl_chat_pair *pair = find_pair(dict, key);
    if (pair) {
        pair->value = value;
        return;
    }
    struct sl_chat_pair *pairs = sl_chat_grow(work, dict->pairs, dict->n, dict->n + 1, sizeof(*pairs), &dict->capacity);
    if (pairs) {
        dict->pairs = pairs;
        dict->pairs[dict->n++] = (struct sl_chat_pair){key, value};
    }
}

// ---- what they are taken for ----------------------------------------------------------------------------------------

bool sl_chat_is_true(struct sl_chat_work *work, struct sl_chat_value value) {
    switch (value.kind) {
    case SL_CHAT_ABSENT:
    case SL_CHAT_UNDEFINED:
    case SL_CHAT_NONE:
        return false;
    case SL_CHAT_BOOL:
        return value.truth;
    case SL_CHAT_INT:
        return value.integer != 0;
    case SL_CHAT_FLOAT:
        return value.real != 0;
    case SL_CHAT_STRING:
        return value.text.n_bytes > 0;
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        return value.list->n > 0;
    case SL_CHAT_DICT:
        return value.dict->n > 0;
    case SL_CHAT_ITERATOR: // in Python even empty ones are true, which no author intends
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "asks whether an iterator is true; put \"| list\" behind the filter");
        return false;
    case SL_CHAT_NAMESPACE:
    case SL_CHAT_LOOP:
    case SL_CHAT_FUNCTION:
        return true;
    }
    return false;
}

// Implements repr(): the shortest decimal that parses to the same number; exponents from 1e16 and below 1e-4.
static struct sl_chat_text float_text(struct sl_chat_work *work, double real) {
    char text[48];
    if (!isfinite(real)) {
        return isnan(real) ? SL_CHAT_TEXT("nan") : real > 0 ? SL_CHAT_TEXT("inf") : SL_CHAT_TEXT("-inf");
    }
    int n_digits = 0;
    do {
        snprintf(text, sizeof(text), "%.*e", n_digits++, real);
    } while (strtod(text, NULL) != real && n_digits < 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = n_digits - 1 - exponent;
        snprintf(text, sizeof(text), "%.*f", decimals > 0 ? decimals : 1, real);
    }
    return sl_chat_concat(work, SL_CHAT_TEXT("+"), sl_chat_text_of(text)); // a copy, after a sign
}

struct sl_chat_text sl_chat_str(struct sl_chat_work *work, struct sl_chat_value value) {
    struct sl_chat_buffer buffer = {0};
    char digits[24];
    switch (value.kind) {
    case SL_CHAT_ABSENT:
    case SL_CHAT_UNDEFINED:
        return SL_CHAT_TEXT("");
    case SL_CHAT_NONE:
        return SL_CHAT_TEXT("None");
    case SL_CHAT_BOOL:
        return value.truth ? SL_CHAT_TEXT("True") : SL_CHAT_TEXT("False");
    case SL_CHAT_INT:
        snprintf(digits, sizeof(digits), "%" PRId64, value.integer);
        sl_chat_append(work, &buffer, sl_chat_text_of(digits));
        return (struct sl_chat_text){buffer.bytes, buffer.n_bytes};
    case SL_CHAT_FLOAT: {
        struct sl_chat_text text = float_text(work, value.real);
        return text.n_bytes > 0 && text.bytes[0] == '+' ? (struct sl_chat_text){text.bytes + 1, text.n_bytes - 1}
                                                        : text;
    }
    case SL_CHAT_STRING:
        return value.text;
    default:
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "writes %s as text; \"| tojson\" and \"| join\" are supported",
                     sl_chat_kind_name(value.kind));
        return SL_CHAT_TEXT("");
    }
}

size_t sl_chat_length(struct sl_chat_work *work, struct sl_chat_value value) {
    switch (value.kind) {
    case SL_CHAT_UNDEFINED:
        return 0;
    case SL_CHAT_STRING:
        return sl_chat_step(work, value.text.n_bytes) ? sl_chat_count_chars(value.text) : 0;
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        return value.list->n;
    case SL_CHAT_DICT:
        return value.dict->n;
    default:
        sl_chat_fail(work, SL_ERR_INVALID, "takes the length of %s", sl_chat_kind_name(value.kind));
        return 0;
    }
}

static struct sl_chat_list *characters(struct sl_chat_work *work, struct sl_chat_text text) {
    struct sl_chat_list *list = sl_chat_list_create(work, sl_chat_count_chars(text));
    while (list && text.n_bytes > 0 && work->status == SL_OK) {
        size_t n = sl_chat_char_bytes(text);
        sl_chat_list_push(work, list, sl_chat_string((struct sl_chat_text){text.bytes, n}));
        text = sl_chat_text_from(text, n);
    }
    return list;
}

static struct sl_chat_list *keys(struct sl_chat_work *work, const struct sl_chat_dict *dict) {
    struct sl_chat_list *list = sl_chat_list_create(work, dict->n);
    for (size_t i = 0; i < dict->n; i++) {
        sl_chat_list_push(work, list, sl_chat_string(dict->pairs[i].key));
    }
    return list;
}

struct sl_chat_list *sl_chat_iterate(struct sl_chat_work *work, struct sl_chat_value value) {
    switch (value.kind) {
    case SL_CHAT_UNDEFINED:
        return sl_chat_list_create(work, 0);
    case SL_CHAT_STRING:
        return sl_chat_step(work, value.text.n_bytes) ? characters(work, value.text) : NULL;
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        return value.list;
    case SL_CHAT_ITERATOR: {
        struct sl_chat_list *list = sl_chat_list_create(work, 0);
        if (list) {
            *list = *value.list;
            *value.list = (struct sl_chat_list){0};
        }
        return list;
    }
    case SL_CHAT_DICT:
        return keys(work, value.dict);
    default:
        sl_chat_fail(work, SL_ERR_INVALID, "goes through %s as if it were a list", sl_chat_kind_name(value.kind));
        return NULL;
    }
}

// ---- comparing ------------------------------------------------------------------------------------------------------

static bool is_number(struct sl_chat_value value) {
    return value.kind == SL_CHAT_BOOL || value.kind == SL_CHAT_INT || value.kind == SL_CHAT_FLOAT;
}

static bool is_list(struct sl_chat_value value) {
    return value.kind == SL_CHAT_LIST || value.kind == SL_CHAT_TUPLE;
}

static bool equal_numbers(struct sl_chat_value a, struct sl_chat_value b) {
    return a.kind == SL_CHAT_FLOAT || b.kind == SL_CHAT_FLOAT ? sl_chat_real_of(a) == sl_chat_real_of(b)
                                                              : sl_chat_integer_of(a) == sl_chat_integer_of(b);
}

static bool equal_to_depth(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b, int depth);

static bool equal_lists(struct sl_chat_work *work, const struct sl_chat_list *a, const struct sl_chat_list *b,
                        int depth) {
    bool equal = a->n == b->n;
    for (size_t i = 0; equal && i < a->n; i++) {
        equal = equal_to_depth(work, a->items[i], b->items[i], depth);
    }
    return equal;
}

static bool equal_dicts(struct sl_chat_work *work, const struct sl_chat_dict *a, const struct sl_chat_dict *b,
                        int depth) {
    bool equal = a->n == b->n;
    for (size_t i = 0; equal && i < a->n; i++) {
        const struct sl_chat_value *other =
            sl_chat_step_lookup(work, b, a->pairs[i].key) ? sl_chat_dict_get(b, a->pairs[i].key) : NULL;
        equal = other && equal_to_depth(work, a->pairs[i].value, *other, depth);
    }
    return equal;
}

static bool equal_to_depth(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b, int depth) {
    if (depth == 0) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "compares values nested deeper than %d", SL_CHAT_MAX_DEPTH);
    }
    if (!sl_chat_step(work, a.kind == SL_CHAT_STRING ? a.text.n_bytes : 0)) {
        return false;
    }
    if (is_number(a) && is_number(b)) {
        return equal_numbers(a, b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case SL_CHAT_UNDEFINED:
    case SL_CHAT_NONE:
        return true;
    case SL_CHAT_STRING:
        return sl_chat_text_equal(a.text, b.text);
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        return equal_lists(work, a.list, b.list, depth - 1);
    case SL_CHAT_DICT:
        return equal_dicts(work, a.dict, b.dict, depth - 1);
    case SL_CHAT_NAMESPACE:
        return a.dict == b.dict;
    default:
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "compares %s", sl_chat_kind_name(a.kind));
        return false;
    }
}

bool sl_chat_equal(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b) {
    return equal_to_depth(work, a, b, SL_CHAT_MAX_DEPTH);
}

int sl_chat_compare(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b) {
    if (is_number(a) && is_number(b)) {
        if (a.kind == SL_CHAT_FLOAT || b.kind == SL_CHAT_FLOAT) {
            return (sl_chat_real_of(a) > sl_chat_real_of(b)) - (sl_chat_real_of(a) < sl_chat_real_of(b));
        }
        return (sl_chat_integer_of(a) > sl_chat_integer_of(b)) - (sl_chat_integer_of(a) < sl_chat_integer_of(b));
    }
    if (a.kind == SL_CHAT_STRING && b.kind == SL_CHAT_STRING) { // UTF-8 sorts like its characters
        size_t n = a.text.n_bytes < b.text.n_bytes ? a.text.n_bytes : b.text.n_bytes;
        int order = n > 0 && sl_chat_step(work, n) ? memcmp(a.text.bytes, b.text.bytes, n) : 0;
        return order != 0 ? order : (a.text.n_bytes > b.text.n_bytes) - (a.text.n_bytes < b.text.n_bytes);
    }
    bool lists = is_list(a) && a.kind == b.kind; // Python orders lists and tuples
    sl_chat_fail(work, lists ? SL_ERR_UNSUPPORTED : SL_ERR_INVALID, "asks which is less, %s or %s",
                 sl_chat_kind_name(a.kind), sl_chat_kind_name(b.kind));
    return 0;
}

bool sl_chat_contains(struct sl_chat_work *work, struct sl_chat_value container, struct sl_chat_value item) {
    switch (container.kind) {
    case SL_CHAT_UNDEFINED:
        return false;
    case SL_CHAT_STRING:
        if (item.kind == SL_CHAT_STRING) {
            return sl_chat_step(work, container.text.n_bytes) &&
                   sl_chat_find(container.text, item.text) <= container.text.n_bytes;
        }
        sl_chat_fail(work, SL_ERR_INVALID, "looks for %s in a string", sl_chat_kind_name(item.kind));
        return false;
    case SL_CHAT_LIST:
    case SL_CHAT_TUPLE:
        for (size_t i = 0; i < container.list->n && work->status == SL_OK; i++) {
            if (sl_chat_equal(work, container.list->items[i], item)) {
                return true;
            }
        }
        return false;
    case SL_CHAT_DICT:
        if (is_list(item) || item.kind == SL_CHAT_DICT) {
            sl_chat_fail(work, SL_ERR_INVALID, "looks for %s among keys", sl_chat_kind_name(item.kind));
        }
        return item.kind == SL_CHAT_STRING && sl_chat_step_lookup(work, container.dict, item.text) &&
               sl_chat_dict_get(container.dict, item.text);
    default:
        sl_chat_fail(work, container.kind == SL_CHAT_ITERATOR ? SL_ERR_UNSUPPORTED : SL_ERR_INVALID,
                     "looks for something in %s", sl_chat_kind_name(container.kind));
        return false;
    }
}
