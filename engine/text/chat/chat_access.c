// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: object.name, object[key] and object[a:b:c]. See chat_internal.h.
 *
 * Design: Jinja looks for object.name among Python's attributes first and then as an item, and for object[key] in the
 *         opposite order. A name found in neither is undefined; that is an error only if the object itself is
 *         undefined. Python's own attributes are methods, which are supported only in calls: elsewhere they are
 *         rejected.
 */
#include "engine/text/chat/chat_internal.h"

static struct sl_chat_value undefined_object(struct sl_chat_work *work, struct sl_chat_value object) {
    int n = sl_chat_excerpt(object.text);
    return sl_chat_fail(work, SL_ERR_INVALID, "'%.*s' is undefined, and so has nothing in it", n, object.text.bytes);
}

// Returns whether a name is an attribute of Python's own objects.
static bool is_python_attribute(enum sl_chat_kind kind, struct sl_chat_text name) {
    static const char *const of_strings[] = {
        "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
        "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
        "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
        "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
        "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
        "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
        "swapcase",   "title",        "translate",    "upper",   "zfill",      NULL};
    static const char *const of_lists[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                           "insert", "pop",   "remove", "reverse", "sort",   NULL};
    static const char *const of_tuples[] = {"count", "index", NULL};
    static const char *const of_dicts[] = {"clear", "copy",    "fromkeys",   "get",    "items",  "keys",
                                           "pop",   "popitem", "setdefault", "update", "values", NULL};
    static const char *const of_numbers[] = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
                                             "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
                                             "numerator",        "real",      "to_bytes",   NULL};
    static const char *const of_loops[] = {"changed", "cycle", NULL};
    static const char *const none[] = {NULL};
    const char *const *names = kind == SL_CHAT_STRING                                                 ? of_strings
                               : kind == SL_CHAT_LIST                                                 ? of_lists
                               : kind == SL_CHAT_TUPLE                                                ? of_tuples
                               : kind == SL_CHAT_DICT                                                 ? of_dicts
                               : kind == SL_CHAT_BOOL || kind == SL_CHAT_INT || kind == SL_CHAT_FLOAT ? of_numbers
                               : kind == SL_CHAT_LOOP                                                 ? of_loops
                                                                                                      : none;
    return sl_chat_text_among(name, names);
}

static struct sl_chat_value loop_attribute(const struct sl_chat_loop *loop, struct sl_chat_text name) {
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->items->n;
    const struct { // depth: of recursive loops, which are not supported
        const char *name;
        struct sl_chat_value value;
    } attributes[] = {
        {"index", sl_chat_int(at + 1)},    {"index0", sl_chat_int(at)},
        {"revindex", sl_chat_int(n - at)}, {"revindex0", sl_chat_int(n - at - 1)},
        {"first", sl_chat_bool(at == 0)},  {"last", sl_chat_bool(at == n - 1)},
        {"length", sl_chat_int(n)},        {"depth", sl_chat_int(1)},
        {"depth0", sl_chat_int(0)},
    };
    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
        if (sl_chat_text_is(name, attributes[i].name)) {
            return attributes[i].value;
        }
    }
    if (sl_chat_text_is(name, "previtem") && at > 0) {
        return loop->items->items[at - 1];
    }
    if (sl_chat_text_is(name, "nextitem") && at + 1 < n) {
        return loop->items->items[at + 1];
    }
    return sl_chat_undefined(name);
}

// Returns what Python's getattr() would find, or undefined.
static struct sl_chat_value own_attribute(struct sl_chat_work *work, struct sl_chat_value object,
                                          struct sl_chat_text name) {
    if (is_python_attribute(object.kind, name)) {
        return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "uses the attribute %.*s of %s without calling it",
                            sl_chat_excerpt(name), name.bytes, sl_chat_kind_name(object.kind));
    }
    if (object.kind == SL_CHAT_LOOP) {
        return loop_attribute(object.loop, name);
    }
    const struct sl_chat_value *found = object.kind == SL_CHAT_NAMESPACE && sl_chat_step_lookup(work, object.dict, name)
                                            ? sl_chat_dict_get(object.dict, name)
                                            : NULL;
    return found ? *found : sl_chat_undefined(name);
}

static const struct sl_chat_value *find_key(struct sl_chat_work *work, struct sl_chat_value object,
                                            struct sl_chat_text name) {
    return object.kind == SL_CHAT_DICT && sl_chat_step_lookup(work, object.dict, name)
               ? sl_chat_dict_get(object.dict, name)
               : NULL;
}

struct sl_chat_value sl_chat_attribute(struct sl_chat_work *work, struct sl_chat_value object,
                                       struct sl_chat_text name) {
    if (object.kind == SL_CHAT_UNDEFINED) {
        return undefined_object(work, object);
    }
    struct sl_chat_value own = own_attribute(work, object, name);
    const struct sl_chat_value *found = own.kind == SL_CHAT_UNDEFINED ? find_key(work, object, name) : NULL;
    return found ? *found : own;
}

static struct sl_chat_value character(struct sl_chat_work *work, struct sl_chat_text text, int64_t at) {
    if (at == INT64_MAX) {
        return sl_chat_nothing();
    }
    struct sl_chat_value bounds[3] = {{.kind = SL_CHAT_INT, .integer = at},
                                      {.kind = at == -1 ? SL_CHAT_NONE : SL_CHAT_INT, .integer = at + 1},
                                      {.kind = SL_CHAT_NONE}};
    struct sl_chat_value found = sl_chat_slice(work, sl_chat_string(text), bounds);
    return found.kind == SL_CHAT_STRING && found.text.n_bytes > 0 ? found : sl_chat_nothing();
}

struct sl_chat_value sl_chat_item(struct sl_chat_work *work, struct sl_chat_value object, struct sl_chat_value key) {
    if (object.kind == SL_CHAT_UNDEFINED) {
        return undefined_object(work, object);
    }
    if (key.kind == SL_CHAT_STRING) {
        const struct sl_chat_value *found = find_key(work, object, key.text);
        return found ? *found : own_attribute(work, object, key.text);
    }
    if (key.kind == SL_CHAT_INT || key.kind == SL_CHAT_BOOL) {
        int64_t at = key.kind == SL_CHAT_INT ? key.integer : key.truth;
        if (object.kind == SL_CHAT_STRING) {
            return character(work, object.text, at);
        }
        if (object.kind == SL_CHAT_LIST || object.kind == SL_CHAT_TUPLE) {
            int64_t n = (int64_t)object.list->n;
            at += at < 0 ? n : 0;
            return at >= 0 && at < n ? object.list->items[at] : sl_chat_nothing();
        }
    }
    return sl_chat_nothing(); // undefined in Jinja, not an error
}

// ---- slices ---------------------------------------------------------------------------------------------------------

// Adjusts one bound of a slice over n items, as PySlice_AdjustIndices() does.
static int64_t adjust(const struct sl_chat_value *bound, int64_t n, bool backwards, bool is_stop) {
    if (bound->kind == SL_CHAT_NONE || bound->kind == SL_CHAT_ABSENT) {
        return backwards == is_stop ? (backwards ? -1 : 0) : (backwards ? n - 1 : n);
    }
    int64_t at = bound->kind == SL_CHAT_BOOL ? bound->truth : bound->integer;
    if (at < 0) {
        at = at < -n ? -1 : at + n; // at + n cannot overflow
        return at < 0 ? (backwards ? -1 : 0) : at;
    }
    return at < n ? at : (backwards ? n - 1 : n);
}

static struct sl_chat_text skip_chars(struct sl_chat_text text, int64_t n) {
    for (; n > 0 && text.n_bytes > 0; n--) {
        text = sl_chat_text_from(text, sl_chat_char_bytes(text));
    }
    return text;
}

static struct sl_chat_value slice_text(struct sl_chat_work *work, struct sl_chat_text text, int64_t start, int64_t stop,
                                       int64_t step) {
    if (step == 1) {
        struct sl_chat_text from = skip_chars(text, start);
        struct sl_chat_text behind = stop > start ? skip_chars(from, stop - start) : from;
        return sl_chat_string((struct sl_chat_text){from.bytes, from.n_bytes - behind.n_bytes});
    }
    const struct sl_chat_list *chars = sl_chat_iterate(work, sl_chat_string(text));
    struct sl_chat_buffer buffer = {0};
    while (chars && (step > 0 ? start < stop : start > stop) && work->status == SL_OK) {
        sl_chat_append(work, &buffer, chars->items[start].text);
        if (__builtin_add_overflow(start, step, &start)) {
            break;
        }
    }
    return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
}

static struct sl_chat_value slice_list(struct sl_chat_work *work, struct sl_chat_value object, int64_t start,
                                       int64_t stop, int64_t step) {
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    while (list && (step > 0 ? start < stop : start > stop) && work->status == SL_OK) {
        sl_chat_list_push(work, list, object.list->items[start]);
        if (__builtin_add_overflow(start, step, &start)) {
            break;
        }
    }
    return sl_chat_list_value(object.kind, list);
}

struct sl_chat_value sl_chat_slice(struct sl_chat_work *work, struct sl_chat_value object,
                                   const struct sl_chat_value bounds[3]) {
    if (object.kind != SL_CHAT_STRING && object.kind != SL_CHAT_LIST && object.kind != SL_CHAT_TUPLE) {
        return sl_chat_fail(work, SL_ERR_INVALID, "cuts a slice out of %s", sl_chat_kind_name(object.kind));
    }
    for (int i = 0; i < 3; i++) {
        if (bounds[i].kind != SL_CHAT_ABSENT && bounds[i].kind != SL_CHAT_NONE && bounds[i].kind != SL_CHAT_INT &&
            bounds[i].kind != SL_CHAT_BOOL) {
            return sl_chat_fail(work, SL_ERR_INVALID, "cuts a slice at %s", sl_chat_kind_name(bounds[i].kind));
        }
    }
    int64_t step = bounds[2].kind == SL_CHAT_INT    ? bounds[2].integer
                   : bounds[2].kind == SL_CHAT_BOOL ? bounds[2].truth
                                                    : 1;
    if (step == 0) {
        return sl_chat_fail(work, SL_ERR_INVALID, "cuts a slice with a step of 0");
    }
    int64_t n = (int64_t)sl_chat_length(work, object);
    int64_t start = adjust(&bounds[0], n, step < 0, false), stop = adjust(&bounds[1], n, step < 0, true);
    if (!sl_chat_step(work, object.kind == SL_CHAT_STRING ? object.text.n_bytes : 0)) {
        return sl_chat_nothing();
    }
    return object.kind == SL_CHAT_STRING ? slice_text(work, object.text, start, stop, step)
                                         : slice_list(work, object, start, stop, step);
}
