// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tests that templates may use, as in "x is defined". See chat_internal.h.
 *
 * To add one: a row in the table at the end, with Jinja's parameter names, and a case in tools/golden_chat.py, which
 * records Jinja's result.
 */
#include "engine/text/chat/chat_methods.h"

#define KIND(kind) (1u << SL_CHAT_##kind)

SL_CHAT_FN(test_kind) { // variant: the bits of the kinds that pass
    return sl_chat_bool(row->variant >> subject.kind & 1);
}

SL_CHAT_FN(test_truth) {
    return sl_chat_bool(subject.kind == SL_CHAT_BOOL && subject.truth == row->variant);
}

SL_CHAT_FN(test_equal) {
    return sl_chat_bool(sl_chat_equal(work, subject, args[0]) == row->variant);
}

SL_CHAT_FN(test_less) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) < 0);
}

SL_CHAT_FN(test_greater) {
    return sl_chat_bool(sl_chat_compare(work, subject, args[0]) > 0);
}

SL_CHAT_FN(test_in) {
    return sl_chat_bool(sl_chat_contains(work, args[0], subject));
}

SL_CHAT_FN(test_remainder) { // variant: the remainder of a division by the argument, or by 2
    struct sl_chat_value divisor = row->n_required > 0 ? args[0] : sl_chat_int(2);
    return sl_chat_bool(
        sl_chat_equal(work, sl_chat_arithmetic(work, "%", subject, divisor), sl_chat_int((int64_t)row->variant)));
}

// Undefined values pass: Python finds the methods that the test looks for, though they would fail.
#define SEQUENCES (KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(DICT))

const struct sl_chat_builtin sl_chat_tests[] = {
    {.name = "==", .parameters = {"value"}, .n_required = 1, .fn = test_equal, .variant = true},
    {.name = "!=", .parameters = {"value"}, .n_required = 1, .fn = test_equal, .variant = false},
    {.name = "boolean", .fn = test_kind, .variant = KIND(BOOL)},
    {.name = "callable", .fn = test_kind, .variant = KIND(FUNCTION)},
    {.name = "defined", .fn = test_kind, .variant = ~KIND(UNDEFINED)},
    {.name = "divisibleby", .parameters = {"num"}, .n_required = 1, .fn = test_remainder, .variant = 0},
    {.name = "eq", .parameters = {"value"}, .n_required = 1, .fn = test_equal, .variant = true},
    {.name = "equalto", .parameters = {"value"}, .n_required = 1, .fn = test_equal, .variant = true},
    {.name = "even", .fn = test_remainder, .variant = 0},
    {.name = "false", .fn = test_truth, .variant = false},
    {.name = "float", .fn = test_kind, .variant = KIND(FLOAT)},
    {.name = "greaterthan", .parameters = {"value"}, .n_required = 1, .fn = test_greater},
    {.name = "gt", .parameters = {"value"}, .n_required = 1, .fn = test_greater},
    {.name = "in", .parameters = {"seq"}, .n_required = 1, .fn = test_in},
    {.name = "integer", .fn = test_kind, .variant = KIND(INT)},
    {.name = "iterable", .fn = test_kind, .variant = SEQUENCES | KIND(ITERATOR) | KIND(LOOP)},
    {.name = "lessthan", .parameters = {"value"}, .n_required = 1, .fn = test_less},
    {.name = "lt", .parameters = {"value"}, .n_required = 1, .fn = test_less},
    {.name = "mapping", .fn = test_kind, .variant = KIND(DICT)},
    {.name = "ne", .parameters = {"value"}, .n_required = 1, .fn = test_equal, .variant = false},
    {.name = "none", .fn = test_kind, .variant = KIND(NONE)},
    {.name = "number", .fn = test_kind, .variant = KIND(BOOL) | KIND(INT) | KIND(FLOAT)},
    {.name = "odd", .fn = test_remainder, .variant = 1},
    {.name = "sequence", .fn = test_kind, .variant = SEQUENCES},
    {.name = "string", .fn = test_kind, .variant = KIND(STRING)},
    {.name = "true", .fn = test_truth, .variant = true},
    {.name = "undefined", .fn = test_kind, .variant = KIND(UNDEFINED)},
    {.name = NULL},
};
