// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tests that templates may use, as in "x is defined". See chat_internal.h.
 *
 * To add one: a row in the table at the end, with Jinja's parameter names, and a case in tools/golden_chat.py, which
 * records Jinja's result.
 */
#include "engine/text/chat/chat_methods.h"

// Returns true for the kinds whose bits are in `kinds`.
static struct sl_chat_value is_kind(struct sl_chat_value value, unsigned kinds) {
    return sl_chat_bool(kinds >> value.kind & 1);
}

#define KIND(kind) (1u << SL_CHAT_##kind)
#define TEST_OF_KIND(name, kinds)                                                                                      \
    SL_CHAT_FN(name) {                                                                                                 \
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
// Undefined values pass: Python finds the methods that the test looks for, though they would fail.
TEST_OF_KIND(test_sequence, KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(DICT))
TEST_OF_KIND(test_iterable,
             KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(ITERATOR) | KIND(DICT) | KIND(LOOP))
TEST_OF_KIND(test_callable, KIND(FUNCTION))

SL_CHAT_FN(test_true) {
    return sl_chat_bool(subject.kind == SL_CHAT_BOOL && subject.truth);
}

SL_CHAT_FN(test_false) {
    return sl_chat_bool(subject.kind == SL_CHAT_BOOL && !subject.truth);
}

SL_CHAT_FN(test_eq) {
    return sl_chat_bool(sl_chat_equal(work, subject, args[0]));
}

SL_CHAT_FN(test_ne) {
    return sl_chat_bool(!sl_chat_equal(work, subject, args[0]));
}

SL_CHAT_FN(test_lt) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) < 0);
}

SL_CHAT_FN(test_gt) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) > 0);
}

SL_CHAT_FN(test_in) {
    return sl_chat_bool(sl_chat_contains(work, args[0], subject));
}

static struct sl_chat_value remainder_is(struct sl_chat_work *work, struct sl_chat_value value,
                                         struct sl_chat_value divisor, int64_t remainder) {
    return sl_chat_bool(sl_chat_equal(work, sl_chat_arithmetic(work, "%", value, divisor), sl_chat_int(remainder)));
}

SL_CHAT_FN(test_divisibleby) {
    return remainder_is(work, subject, args[0], 0);
}

SL_CHAT_FN(test_even) {
    return remainder_is(work, subject, sl_chat_int(2), 0);
}

SL_CHAT_FN(test_odd) {
    return remainder_is(work, subject, sl_chat_int(2), 1);
}

static const struct sl_chat_builtin rows[] = {
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

const struct sl_chat_rows sl_chat_tests = {rows, sizeof(rows) / sizeof(*rows)};
