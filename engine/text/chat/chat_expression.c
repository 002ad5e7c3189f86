// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: expressions of a template: operators, over the operands of chat_operand.c. See chat_internal.h.
 *
 * Design: one level of precedence after the other, from the weakest, as in Jinja's parser:
 *
 *      a if b else c;  or;  and;  not;  == != < <= > >= in;  + -;  ~;  * / // %;  unary - +;  . [] () | is
 */
#include "engine/text/chat/chat_internal.h"

static struct sl_chat_node *parse_unary(struct sl_chat_parser *parser, bool with_filters);

static struct sl_chat_node *parse_sign(struct sl_chat_parser *parser, enum sl_chat_op op) {
    sl_chat_next_token(parser);
    struct sl_chat_node *operand = sl_chat_enter(parser) ? parse_unary(parser, false) : &parser->failed;
    sl_chat_leave(parser);
    return sl_chat_binary(parser, op, operand, NULL);
}

static struct sl_chat_node *parse_unary(struct sl_chat_parser *parser, bool with_filters) {
    struct sl_chat_node *node;
    if (sl_chat_peek_operator(parser, "-")) {
        node = parse_sign(parser, SL_CHAT_OP_NEGATE);
    } else if (sl_chat_peek_operator(parser, "+")) {
        node = parse_sign(parser, SL_CHAT_OP_POSITIVE);
    } else {
        node = sl_chat_parse_primary(parser);
    }
    node = sl_chat_parse_postfix(parser, node);
    if (with_filters) {
        node = sl_chat_parse_filters(parser, node);
    }
    if (sl_chat_peek_operator(parser, "**")) {
        sl_chat_unsupported(parser, "the operator", parser->token->text);
    }
    return node;
}

// Takes the next token if it is an operator of `ops`, and returns it; else NULL.
static const char *skip_one_of(struct sl_chat_parser *parser, const char *const *ops) {
    while (*ops && !sl_chat_skip_operator(parser, *ops)) {
        ops++;
    }
    return *ops;
}

// The operators of a level from the strongest on, of which an operand has those of the level before.
static const struct level {
    enum sl_chat_op op;
    const char *operators[5];
} levels[] = {
    {SL_CHAT_OP_MATH, {"*", "//", "/", "%"}},
    {SL_CHAT_OP_CONCAT, {"~"}},
    {SL_CHAT_OP_MATH, {"+", "-"}},
};

// Parses operands that operators of levels[level] and stronger ones join.
static struct sl_chat_node *parse_level(struct sl_chat_parser *parser, int level) {
    if (level < 0) {
        return parse_unary(parser, true);
    }
    struct sl_chat_node *node = parse_level(parser, level - 1);
    const char *op;
    while (parser->work->status == SL_OK && (op = skip_one_of(parser, levels[level].operators))) {
        bool is_joined = parser->is_joined;
        parser->is_joined = true;
        node = sl_chat_binary(parser, levels[level].op, node, parse_level(parser, level - 1));
        node->text = sl_chat_text_of(op);
        parser->is_joined = is_joined;
    }
    return node;
}

static struct sl_chat_node *parse_sums(struct sl_chat_parser *parser) {
    return parse_level(parser, sizeof levels / sizeof levels[0] - 1);
}

static const char *skip_comparison(struct sl_chat_parser *parser) {
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">", NULL};
    if (sl_chat_skip_name(parser, "in")) {
        return "in";
    }
    if (sl_chat_peek_name(parser, "not") && parser->token[1].type == SL_CHAT_TOKEN_NAME &&
        sl_chat_text_is(parser->token[1].text, "in")) {
        sl_chat_next_token(parser);
        sl_chat_next_token(parser);
        return "not in";
    }
    return skip_one_of(parser, ops);
}

static struct sl_chat_node *parse_comparisons(struct sl_chat_parser *parser) {
    struct sl_chat_node *first = parse_sums(parser), *comparands = NULL, **link = &comparands;
    const char *op;
    while (parser->work->status == SL_OK && (op = skip_comparison(parser))) {
        *link = sl_chat_binary(parser, SL_CHAT_OP_COMPARAND, parse_sums(parser), NULL);
        (*link)->text = sl_chat_text_of(op);
        link = &(*link)->next;
    }
    if (!comparands) {
        return first;
    }
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_COMPARE);
    node->a = first;
    node->list = comparands;
    return sl_chat_finish(parser, node);
}

static struct sl_chat_node *parse_not(struct sl_chat_parser *parser) {
    if (!sl_chat_skip_name(parser, "not")) {
        return parse_comparisons(parser);
    }
    struct sl_chat_node *operand = sl_chat_enter(parser) ? parse_not(parser) : &parser->failed;
    sl_chat_leave(parser);
    return sl_chat_binary(parser, SL_CHAT_OP_NOT, operand, NULL);
}

// Parses a and b, or above that a or b.
static struct sl_chat_node *parse_joined(struct sl_chat_parser *parser, bool by_or) {
    struct sl_chat_node *node = by_or ? parse_joined(parser, false) : parse_not(parser);
    while (parser->work->status == SL_OK && sl_chat_skip_name(parser, by_or ? "or" : "and")) {
        struct sl_chat_node *next = by_or ? parse_joined(parser, false) : parse_not(parser);
        node = sl_chat_binary(parser, by_or ? SL_CHAT_OP_OR : SL_CHAT_OP_AND, node, next);
    }
    return node;
}

static struct sl_chat_node *parse_choice(struct sl_chat_parser *parser) {
    struct sl_chat_node *node = parse_joined(parser, true);
    while (parser->work->status == SL_OK && sl_chat_skip_name(parser, "if")) {
        struct sl_chat_node *choice = sl_chat_binary(parser, SL_CHAT_OP_CHOICE, parse_joined(parser, true), node);
        if (sl_chat_skip_name(parser, "else")) {
            choice->c = sl_chat_parse_expression(parser, true);
        }
        node = sl_chat_finish(parser, choice);
    }
    return node;
}

struct sl_chat_node *sl_chat_parse_expression(struct sl_chat_parser *parser, bool with_choice) {
    struct sl_chat_node *node = &parser->failed;
    if (sl_chat_enter(parser)) {
        node = with_choice ? parse_choice(parser) : parse_joined(parser, true);
    }
    sl_chat_leave(parser);
    return node;
}

// Parses a; or a, b without brackets, which is a tuple.
struct sl_chat_node *sl_chat_parse_tuple(struct sl_chat_parser *parser, bool with_choice) {
    struct sl_chat_node *first = sl_chat_parse_expression(parser, with_choice), *last = first;
    if (!sl_chat_peek_operator(parser, ",")) {
        return first;
    }
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_TUPLE);
    while (sl_chat_skip_operator(parser, ",")) {
        if (!sl_chat_begins_value(parser) && !sl_chat_peek_operator(parser, "-") &&
            !sl_chat_peek_operator(parser, "+")) {
            break;
        }
        last->next = sl_chat_parse_expression(parser, with_choice);
        last = last->next;
    }
    node->list = first;
    return sl_chat_finish(parser, node);
}
