// SPDX-License-Identifier: Apache-2.0
// Purpose: Python's + - * / // % on numbers, texts and lists. See chat_internal.h.
#include <math.h>

#include "engine/text/chat/chat_internal.h"

static bool is_integer(struct sl_chat_value value) {
    return value.kind == SL_CHAT_INT || value.kind == SL_CHAT_BOOL;
}

static struct sl_chat_value real(double value) {
    return (struct sl_chat_value){.kind = SL_CHAT_FLOAT, .real = value};
}

static struct sl_chat_value wrong_operands(struct sl_chat_work *work, const char *op, struct sl_chat_value a,
                                           struct sl_chat_value b) {
    const struct sl_chat_value *undefined = a.kind == SL_CHAT_UNDEFINED ? &a : b.kind == SL_CHAT_UNDEFINED ? &b : NULL;
    return undefined ? sl_chat_fail(work, SL_ERR_INVALID, "'%.*s' is undefined, and cannot be an operand of %s",
                                    sl_chat_excerpt(undefined->text), undefined->text.bytes, op)
                     : sl_chat_fail(work, SL_ERR_INVALID, "%s cannot be applied to %s and %s", op,
                                    sl_chat_kind_name(a.kind), sl_chat_kind_name(b.kind));
}

// Divides: quotients are rounded down, and remainders have the divisor's sign.
static struct sl_chat_value divide_reals(struct sl_chat_work *work, char op, double a, double b) {
    if (b == 0) {
        return sl_chat_fail(work, SL_ERR_INVALID, "divides by zero");
    }
    if (op == '/') {
        return real(a / b);
    }
    double remainder = fmod(a, b);
    double quotient = (a - remainder) / b;
    if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
        quotient -= 1;
    }
    if (op == '%') {
        return real(remainder != 0 ? remainder : copysign(0, b));
    }
    double down = floor(quotient);
    return real(quotient == 0 ? copysign(0, a / b) : quotient - down > 0.5 ? down + 1 : down);
}

static struct sl_chat_value divide_integers(struct sl_chat_work *work, char op, int64_t a, int64_t b) {
    if (b == 0) {
        return sl_chat_fail(work, SL_ERR_INVALID, "divides by zero");
    }
    if (b == -1) { // only division by -1 can overflow
        return op == '%' ? sl_chat_int(0) : sl_chat_arithmetic(work, "-", sl_chat_int(0), sl_chat_int(a));
    }
    bool down = a % b != 0 && (a % b < 0) != (b < 0);
    return sl_chat_int(op == '%' ? a % b + (down ? b : 0) : a / b - down);
}

static struct sl_chat_value integers(struct sl_chat_work *work, char op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = op == '+'   ? __builtin_add_overflow(a, b, &result)
                    : op == '-' ? __builtin_sub_overflow(a, b, &result)
                                : __builtin_mul_overflow(a, b, &result);
    if (overflow) {
        sl_chat_fail(work, SL_ERR_UNSUPPORTED, "makes an integer of more than 64 bits");
    }
    return sl_chat_int(result);
}

static struct sl_chat_value numbers(struct sl_chat_work *work, char op, struct sl_chat_value a,
                                    struct sl_chat_value b) {
    bool exact = is_integer(a) && is_integer(b);
    switch (op) {
    case '+':
    case '-':
    case '*':
        if (exact) {
            return integers(work, op, sl_chat_integer_of(a), sl_chat_integer_of(b));
        }
        return real(op == '+'   ? sl_chat_real_of(a) + sl_chat_real_of(b)
                    : op == '-' ? sl_chat_real_of(a) - sl_chat_real_of(b)
                                : sl_chat_real_of(a) * sl_chat_real_of(b));
    case '/':
        return divide_reals(work, op, sl_chat_real_of(a), sl_chat_real_of(b));
    default: // 'q' is //
        return exact ? divide_integers(work, op, sl_chat_integer_of(a), sl_chat_integer_of(b))
                     : divide_reals(work, op, sl_chat_real_of(a), sl_chat_real_of(b));
    }
}

static struct sl_chat_value concat_lists(struct sl_chat_work *work, enum sl_chat_kind kind,
                                         const struct sl_chat_list *a, const struct sl_chat_list *b) {
    struct sl_chat_list *list = sl_chat_list_create(work, a->n + b->n);
    for (size_t i = 0; list && i < a->n + b->n && work->status == SL_OK; i++) {
        sl_chat_list_push(work, list, i < a->n ? a->items[i] : b->items[i - a->n]);
    }
    return sl_chat_list_value(kind, list);
}

static struct sl_chat_value repeat(struct sl_chat_work *work, struct sl_chat_value value, int64_t times) {
    if (value.kind == SL_CHAT_STRING) {
        struct sl_chat_buffer buffer = {0};
        for (int64_t i = 0; i < times && value.text.n_bytes > 0 && work->status == SL_OK; i++) {
            sl_chat_append(work, &buffer, value.text);
        }
        return sl_chat_string((struct sl_chat_text){buffer.bytes, buffer.n_bytes});
    }
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (int64_t i = 0; list && i < times && value.list->n > 0 && work->status == SL_OK; i++) {
        for (size_t k = 0; k < value.list->n; k++) {
            sl_chat_list_push(work, list, value.list->items[k]);
        }
    }
    return sl_chat_list_value(value.kind, list);
}

struct sl_chat_value sl_chat_arithmetic(struct sl_chat_work *work, const char *op, struct sl_chat_value a,
                                        struct sl_chat_value b) {
    bool a_number = is_integer(a) || a.kind == SL_CHAT_FLOAT, b_number = is_integer(b) || b.kind == SL_CHAT_FLOAT;
    if (a_number && b_number) {
        return numbers(work, op[1] == '/' ? 'q' : op[0], a, b);
    }
    bool a_repeats = a.kind == SL_CHAT_STRING || a.kind == SL_CHAT_LIST || a.kind == SL_CHAT_TUPLE;
    bool b_repeats = b.kind == SL_CHAT_STRING || b.kind == SL_CHAT_LIST || b.kind == SL_CHAT_TUPLE;
    if (op[0] == '+' && a_repeats && a.kind == b.kind) {
        return a.kind == SL_CHAT_STRING ? sl_chat_string(sl_chat_concat(work, a.text, b.text))
                                        : concat_lists(work, a.kind, a.list, b.list);
    }
    if (op[0] == '*' && ((a_repeats && is_integer(b)) || (is_integer(a) && b_repeats))) {
        return a_repeats ? repeat(work, a, sl_chat_integer_of(b)) : repeat(work, b, sl_chat_integer_of(a));
    }
    if (op[0] == '%' && a.kind == SL_CHAT_STRING) {
        return sl_chat_fail(work, SL_ERR_UNSUPPORTED, "formats text with %%; \"~\" is supported");
    }
    return wrong_operands(work, op, a, b);
}

struct sl_chat_value sl_chat_negate(struct sl_chat_work *work, struct sl_chat_value value) {
    return value.kind == SL_CHAT_FLOAT ? real(-value.real)
           : is_integer(value)         ? integers(work, '-', 0, sl_chat_integer_of(value))
                                       : wrong_operands(work, "unary - or +", value, value);
}
