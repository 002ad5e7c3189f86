// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: operands of expressions: names and literals, and the attributes, items, calls, filters and tests that
 *          follow them. See chat_internal.h.
 */
#include "engine/text/chat/chat_internal.h"

// ---- arguments ------------------------------------------------------------------------------------------------------

static struct sl_chat_node *parse_argument(struct sl_chat_parser *parser) {
    if (sl_chat_peek_operator(parser, "*") || sl_chat_peek_operator(parser, "**")) {
        sl_chat_unsupported(parser, "arguments by", parser->token->text);
    }
    if (parser->token->type == SL_CHAT_TOKEN_NAME && parser->token[1].type == SL_CHAT_TOKEN_OPERATOR &&
        sl_chat_text_is(parser->token[1].text, "=")) {
        struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_KEYWORD);
        node->text = parser->token->text;
        sl_chat_next_token(parser);
        sl_chat_next_token(parser);
        node->a = sl_chat_parse_expression(parser, true);
        return sl_chat_finish(parser, node);
    }
    return sl_chat_parse_expression(parser, true);
}

// Parses brackets around items that commas separate, and returns the items.
static struct sl_chat_node *parse_items(struct sl_chat_parser *parser, const char *open, const char *close,
                                        struct sl_chat_node *(*parse)(struct sl_chat_parser *parser)) {
    struct sl_chat_node *first = NULL, **link = &first;
    sl_chat_expect_operator(parser, open);
    while (parser->work->status == SL_OK && !sl_chat_peek_operator(parser, close)) {
        *link = parse(parser); // of a dictionary a key and its value
        while (parser->work->status == SL_OK && *link) {
            link = &(*link)->next;
        }
        if (!sl_chat_skip_operator(parser, ",")) {
            break;
        }
    }
    sl_chat_expect_operator(parser, close);
    return first;
}

// Parses (a, b, name=c).
static struct sl_chat_node *parse_arguments(struct sl_chat_parser *parser) {
    return parse_items(parser, "(", ")", parse_argument);
}

// ---- primaries ------------------------------------------------------------------------------------------------------

static struct sl_chat_node *constant(struct sl_chat_parser *parser, struct sl_chat_value value) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_CONST);
    node->value = value;
    return node;
}

static struct sl_chat_node *parse_name(struct sl_chat_parser *parser) {
    static const char *const reserved[] = {"and", "or", "not", "in", "is", "if", "else", "elif", "for", NULL};
    struct sl_chat_text name = parser->token->text;
    struct sl_chat_node *node;
    if (sl_chat_text_among(name, reserved)) {
        return sl_chat_unexpected(parser, "a value");
    }
    if (sl_chat_text_is(name, "true") || sl_chat_text_is(name, "True")) {
        node = constant(parser, sl_chat_bool(true));
    } else if (sl_chat_text_is(name, "false") || sl_chat_text_is(name, "False")) {
        node = constant(parser, sl_chat_bool(false));
    } else if (sl_chat_text_is(name, "none") || sl_chat_text_is(name, "None")) {
        node = constant(parser, (struct sl_chat_value){.kind = SL_CHAT_NONE});
    } else {
        node = sl_chat_node(parser, SL_CHAT_OP_NAME);
        node->text = name;
    }
    sl_chat_next_token(parser);
    return node;
}

static struct sl_chat_node *parse_string(struct sl_chat_parser *parser) { // 'a' 'b' is 'ab'
    struct sl_chat_text text = SL_CHAT_TEXT("");
    struct sl_chat_node *node = constant(parser, sl_chat_string(text));
    while (parser->token->type == SL_CHAT_TOKEN_STRING && sl_chat_step(parser->work, 0)) {
        text = sl_chat_concat(parser->work, text, parser->token->text);
        sl_chat_next_token(parser);
    }
    node->value = sl_chat_string(text);
    return node;
}

static struct sl_chat_node *parse_value(struct sl_chat_parser *parser) {
    return sl_chat_parse_expression(parser, true);
}

// Parses a: b.
static struct sl_chat_node *parse_pair(struct sl_chat_parser *parser) {
    struct sl_chat_node *key = parse_value(parser);
    sl_chat_expect_operator(parser, ":");
    key->next = parse_value(parser);
    return key;
}

// Parses [a, b], or {a: b, c: d}.
static struct sl_chat_node *parse_list(struct sl_chat_parser *parser, enum sl_chat_op op) {
    struct sl_chat_node *node = sl_chat_node(parser, op);
    node->list =
        op == SL_CHAT_OP_LIST ? parse_items(parser, "[", "]", parse_value) : parse_items(parser, "{", "}", parse_pair);
    return sl_chat_finish(parser, node);
}

static struct sl_chat_node *parse_brackets(struct sl_chat_parser *parser) {
    sl_chat_expect_operator(parser, "(");
    if (sl_chat_skip_operator(parser, ")")) {
        return sl_chat_node(parser, SL_CHAT_OP_TUPLE);
    }
    struct sl_chat_node *node = sl_chat_parse_tuple(parser, true);
    sl_chat_expect_operator(parser, ")");
    return node;
}

struct sl_chat_node *sl_chat_parse_primary(struct sl_chat_parser *parser) {
    const struct sl_chat_token *token = parser->token;
    if (token->type == SL_CHAT_TOKEN_NAME) {
        return parse_name(parser);
    }
    if (token->type == SL_CHAT_TOKEN_STRING) {
        return parse_string(parser);
    }
    if (token->type == SL_CHAT_TOKEN_NUMBER) {
        struct sl_chat_node *node = constant(parser, token->value);
        sl_chat_next_token(parser);
        return node;
    }
    return sl_chat_peek_operator(parser, "(")   ? parse_brackets(parser)
           : sl_chat_peek_operator(parser, "[") ? parse_list(parser, SL_CHAT_OP_LIST)
           : sl_chat_peek_operator(parser, "{") ? parse_list(parser, SL_CHAT_OP_DICT)
                                                : sl_chat_unexpected(parser, "a value");
}

// ---- what stands behind a value -------------------------------------------------------------------------------------

static struct sl_chat_node *parse_attribute(struct sl_chat_parser *parser, struct sl_chat_node *object) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_ATTRIBUTE);
    const struct sl_chat_token *token = parser->token;
    node->a = object;
    sl_chat_next_token(parser);
    if (token->type == SL_CHAT_TOKEN_NUMBER && token->value.kind == SL_CHAT_INT) { // items.0 is items[0]
        node->op = SL_CHAT_OP_ITEM;
        node->b = constant(parser, token->value);
    } else if (token->type != SL_CHAT_TOKEN_NAME) {
        sl_chat_fail(parser->work, SL_ERR_INVALID, "expected a name behind '.'");
    } else if (token->text.bytes[0] == '_') {
        sl_chat_unsupported(parser, "the attribute", token->text);
    }
    node->text = token->text;
    return sl_chat_finish(parser, node);
}

// Parses [a] or [a:b:c]; missing bounds are none.
static struct sl_chat_node *parse_item(struct sl_chat_parser *parser, struct sl_chat_node *object) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_SLICE), **link = &node->list;
    node->a = object;
    int n_colons = 0, n_bounds = 0;
    while (parser->work->status == SL_OK && n_colons <= 2) {
        bool given = !sl_chat_peek_operator(parser, ":") && !sl_chat_peek_operator(parser, "]");
        n_bounds += given;
        *link = given ? sl_chat_parse_expression(parser, true)
                      : constant(parser, (struct sl_chat_value){.kind = SL_CHAT_NONE});
        link = &(*link)->next;
        if (!sl_chat_skip_operator(parser, ":")) {
            break;
        }
        n_colons++;
    }
    if (n_colons == 0) {
        if (n_bounds == 0) {
            sl_chat_unexpected(parser, "an index");
        }
        node->op = SL_CHAT_OP_ITEM;
        node->b = node->list;
        node->list = NULL;
    }
    if (sl_chat_peek_operator(parser, ",")) {
        sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "an index of several values");
    }
    sl_chat_expect_operator(parser, "]");
    return sl_chat_finish(parser, node);
}

// Checks namespace(a=1): the only function that takes any argument, by name only.
static void check_namespace(struct sl_chat_parser *parser, const struct sl_chat_node *node) {
    for (const struct sl_chat_node *arg = node->list; arg; arg = arg->next) {
        if (arg->op != SL_CHAT_OP_KEYWORD || arg->text.bytes[0] == '_') {
            sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "namespace() with an argument that is not name=value");
        }
    }
}

static struct sl_chat_node *parse_call(struct sl_chat_parser *parser, struct sl_chat_node *callee) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_CALL);
    node->line = callee->line;
    node->list = parse_arguments(parser);
    node->text = callee->text;
    if (parser->work->status != SL_OK) {
        return node;
    }
    if (callee->op == SL_CHAT_OP_ATTRIBUTE) { // the method depends on the value
        node->op = SL_CHAT_OP_METHOD;
        node->a = callee->a;
        node->builtin = sl_chat_find_builtin(sl_chat_methods, callee->text);
        if (!node->builtin) {
            sl_chat_unsupported(parser, "the method", callee->text);
        }
        return sl_chat_finish(parser, node);
    }
    if (callee->op == SL_CHAT_OP_NAME && (sl_chat_text_is(callee->text, "namespace"))) {
        node->op = SL_CHAT_OP_NAMESPACE;
        check_namespace(parser, node);
        return sl_chat_finish(parser, node);
    }
    node->builtin = callee->op == SL_CHAT_OP_NAME ? sl_chat_find_builtin(sl_chat_functions, callee->text) : NULL;
    if (!node->builtin) {
        return sl_chat_unsupported(parser, "the function",
                                   callee->op == SL_CHAT_OP_NAME ? callee->text : SL_CHAT_TEXT("()"));
    }
    sl_chat_check_arguments(parser->work, node->builtin, node->list);
    return sl_chat_finish(parser, node);
}

struct sl_chat_node *sl_chat_parse_postfix(struct sl_chat_parser *parser, struct sl_chat_node *node) {
    while (parser->work->status == SL_OK) {
        if (sl_chat_skip_operator(parser, ".")) {
            node = parse_attribute(parser, node);
        } else if (sl_chat_skip_operator(parser, "[")) {
            node = parse_item(parser, node);
        } else if (sl_chat_peek_operator(parser, "(")) {
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}

// Checks the name of a test that is passed to a filter, if it is a literal.
static void check_test_name(struct sl_chat_parser *parser, const struct sl_chat_node *filter) {
    const struct sl_chat_node *arg = filter->builtin->test_name > 0 ? filter->list : NULL;
    for (int i = 1; arg && i < filter->builtin->test_name; i++) {
        arg = arg->next;
    }
    if (arg && arg->op == SL_CHAT_OP_CONST && arg->value.kind == SL_CHAT_STRING &&
        !sl_chat_find_builtin(sl_chat_tests, arg->value.text)) {
        sl_chat_unsupported(parser, "the test", arg->value.text);
    }
}

static struct sl_chat_node *parse_filter(struct sl_chat_parser *parser, struct sl_chat_node *subject) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_FILTER);
    if (parser->token->type != SL_CHAT_TOKEN_NAME) {
        return sl_chat_unexpected(parser, "the name of a filter");
    }
    struct sl_chat_text name = parser->token->text;
    node->a = subject;
    sl_chat_next_token(parser);
    if (sl_chat_peek_operator(parser, "(")) {
        node->list = parse_arguments(parser);
    }
    if (sl_chat_text_is(name, "safe") && !node->list) { // it would escape the text that it is joined with
        // {{ }} ends outside of brackets alone
        if (parser->is_joined || parser->token->type != SL_CHAT_TOKEN_OUTPUT_END) {
            sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "the filter 'safe' anywhere but at the end of {{ }}");
        }
        return subject;
    }
    node->builtin = sl_chat_find_builtin(sl_chat_filters, name);
    if (!node->builtin) {
        return sl_chat_unsupported(parser, "the filter", name);
    }
    sl_chat_check_arguments(parser->work, node->builtin, node->list);
    check_test_name(parser, node);
    return sl_chat_finish(parser, node);
}

bool sl_chat_begins_value(const struct sl_chat_parser *parser) {
    switch (parser->token->type) {
    case SL_CHAT_TOKEN_NAME:
        return !sl_chat_peek_name(parser, "else") && !sl_chat_peek_name(parser, "or") &&
               !sl_chat_peek_name(parser, "and");
    case SL_CHAT_TOKEN_STRING:
    case SL_CHAT_TOKEN_NUMBER:
        return true;
    default:
        return sl_chat_peek_operator(parser, "(") || sl_chat_peek_operator(parser, "[") ||
               sl_chat_peek_operator(parser, "{");
    }
}

// Parses a is test, a is not test, a is test argument, a is test(arguments).
static struct sl_chat_node *parse_test(struct sl_chat_parser *parser, struct sl_chat_node *subject) {
    bool negated = sl_chat_skip_name(parser, "not");
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_TEST);
    if (parser->token->type != SL_CHAT_TOKEN_NAME) {
        return sl_chat_unexpected(parser, "the name of a test");
    }
    struct sl_chat_text name = parser->token->text;
    node->a = subject;
    sl_chat_next_token(parser);
    node->builtin = sl_chat_find_builtin(sl_chat_tests, name);
    if (!node->builtin) {
        return sl_chat_unsupported(parser, "the test", name);
    }
    if (sl_chat_peek_operator(parser, "(")) {
        node->list = parse_arguments(parser);
    } else if (sl_chat_begins_value(parser)) {
        node->list = sl_chat_parse_postfix(parser, sl_chat_parse_primary(parser));
    }
    sl_chat_check_arguments(parser->work, node->builtin, node->list);
    node = sl_chat_finish(parser, node);
    return negated ? sl_chat_binary(parser, SL_CHAT_OP_NOT, node, NULL) : node;
}

struct sl_chat_node *sl_chat_parse_filters(struct sl_chat_parser *parser, struct sl_chat_node *node) {
    while (parser->work->status == SL_OK) {
        if (sl_chat_skip_operator(parser, "|")) {
            node = parse_filter(parser, node);
        } else if (sl_chat_skip_name(parser, "is")) {
            node = parse_test(parser, node);
        } else if (sl_chat_peek_operator(parser, "(")) {
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}
