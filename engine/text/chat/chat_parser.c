// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: statements of a template: the contents of {% %}, and the text and {{ }} between. See chat_internal.h.
 * Design: recursive descent; a body ends before a tag whose name is in its statement's list.
 */
#include "engine/text/chat/chat_internal.h"

// ---- statements -----------------------------------------------------------------------------------------------------

static struct sl_chat_node *parse_statements(struct sl_chat_parser *parser, const char *const *ends);

static void expect_block_end(struct sl_chat_parser *parser) {
    if (parser->token->type != SL_CHAT_TOKEN_BLOCK_END) {
        sl_chat_unexpected(parser, "%}");
    }
    sl_chat_next_token(parser);
}

// Parses the statements up to one of `ends`, whose name becomes the next token.
static struct sl_chat_node *parse_body(struct sl_chat_parser *parser, const char *const *ends) {
    expect_block_end(parser);
    return parse_statements(parser, ends);
}

static struct sl_chat_node *parse_if(struct sl_chat_parser *parser) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_IF);
    if (!sl_chat_enter(parser)) { // elif after elif would go deeper all the same
        sl_chat_leave(parser);
        return node;
    }
    node->a = sl_chat_parse_tuple(parser, false);
    node->body = parse_body(parser, ends);
    if (sl_chat_skip_name(parser, "elif")) {
        node->otherwise = parse_if(parser); // which also consumes the endif
    } else {
        if (sl_chat_skip_name(parser, "else")) {
            node->otherwise = parse_body(parser, last);
        }
        sl_chat_next_token(parser); // endif
    }
    sl_chat_leave(parser);
    return sl_chat_finish(parser, node);
}

static struct sl_chat_node *parse_target_name(struct sl_chat_parser *parser, bool of_loop) {
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None", "and", "or",   "not",
                                           "in",   "is",    "if",   "else", "elif",  "for",  "set", "loop", NULL};
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_NAME);
    if (parser->token->type != SL_CHAT_TOKEN_NAME) {
        return sl_chat_unexpected(parser, "the name of a variable");
    }
    node->text = parser->token->text;
    if (sl_chat_text_among(node->text, reserved)) {
        sl_chat_unexpected(parser, of_loop ? "a variable for the loop" : "a variable to set");
    }
    if (sl_chat_find_builtin(sl_chat_functions, node->text)) {
        sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "a variable with the name of the function %.*s",
                     sl_chat_excerpt(node->text), node->text.bytes);
    }
    sl_chat_next_token(parser);
    return node;
}

// Parses a, b or (a, b).
static struct sl_chat_node *parse_targets(struct sl_chat_parser *parser, bool of_loop) {
    bool bracket = sl_chat_skip_operator(parser, "(");
    struct sl_chat_node *first = parse_target_name(parser, of_loop), *last = first;
    while (sl_chat_skip_operator(parser, ",")) {
        last->next = parse_target_name(parser, of_loop);
        last = last->next;
    }
    if (bracket) {
        sl_chat_expect_operator(parser, ")");
    }
    return first;
}

static struct sl_chat_node *parse_for(struct sl_chat_parser *parser) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_FOR);
    sl_chat_enter(parser);
    node->list = parse_targets(parser, true);
    if (!sl_chat_skip_name(parser, "in")) {
        sl_chat_unexpected(parser, "in");
    }
    node->a = sl_chat_parse_tuple(parser, false);
    if (sl_chat_skip_name(parser, "if")) {
        node->b = sl_chat_parse_expression(parser, true);
    }
    if (sl_chat_peek_name(parser, "recursive")) {
        sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "a recursive loop");
    }
    parser->n_loops++;
    node->body = parse_body(parser, ends);
    parser->n_loops--;
    if (sl_chat_skip_name(parser, "else")) {
        node->otherwise = parse_body(parser, last);
    }
    sl_chat_next_token(parser); // endfor
    sl_chat_leave(parser);
    return sl_chat_finish(parser, node);
}

// Parses the statements of a block that has its own variables; break and continue cannot leave it.
static struct sl_chat_node *parse_closed_body(struct sl_chat_parser *parser, const char *end) {
    const char *const ends[] = {end, NULL};
    int n_loops = parser->n_loops;
    parser->n_loops = 0;
    struct sl_chat_node *body = sl_chat_enter(parser) ? parse_body(parser, ends) : NULL;
    sl_chat_leave(parser);
    parser->n_loops = n_loops;
    sl_chat_next_token(parser);
    return body;
}

static struct sl_chat_node *parse_set(struct sl_chat_parser *parser) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_SET);
    struct sl_chat_node *target = parse_targets(parser, false);
    if (!target->next && sl_chat_skip_operator(parser, ".")) {
        struct sl_chat_node *attribute = sl_chat_node(parser, SL_CHAT_OP_ATTRIBUTE);
        if (parser->token->type != SL_CHAT_TOKEN_NAME) {
            return sl_chat_unexpected(parser, "an attribute");
        }
        attribute->a = target;
        attribute->text = parser->token->text;
        if (attribute->text.bytes[0] == '_') {
            sl_chat_unexpected(parser, "an attribute without _ in front");
        }
        sl_chat_next_token(parser);
        target = sl_chat_finish(parser, attribute);
    }
    node->list = target;
    if (sl_chat_skip_operator(parser, "=")) {
        node->a = sl_chat_parse_tuple(parser, true);
        return sl_chat_finish(parser, node);
    }
    node->op = SL_CHAT_OP_SET_BLOCK;
    if (target->next) {
        sl_chat_unexpected(parser, "=");
    }
    if (sl_chat_peek_operator(parser, "|")) {
        node->a = sl_chat_parse_filters(parser, sl_chat_node(parser, SL_CHAT_OP_NAME));
    }
    node->body = parse_closed_body(parser, "endset");
    return sl_chat_finish(parser, node);
}

static struct sl_chat_node *parse_jump(struct sl_chat_parser *parser, enum sl_chat_op op) {
    if (parser->n_loops == 0) {
        sl_chat_fail(parser->work, SL_ERR_INVALID, "%s outside of a loop",
                     op == SL_CHAT_OP_BREAK ? "break" : "continue");
    }
    return sl_chat_node(parser, op);
}

static struct sl_chat_node *parse_statement(struct sl_chat_parser *parser) {
    struct sl_chat_node *node;
    if (sl_chat_skip_name(parser, "if")) {
        node = parse_if(parser);
    } else if (sl_chat_skip_name(parser, "for")) {
        node = parse_for(parser);
    } else if (sl_chat_skip_name(parser, "set")) {
        node = parse_set(parser);
    } else if (sl_chat_skip_name(parser, "break")) {
        node = parse_jump(parser, SL_CHAT_OP_BREAK);
    } else if (sl_chat_skip_name(parser, "continue")) {
        node = parse_jump(parser, SL_CHAT_OP_CONTINUE);
    } else if (sl_chat_skip_name(parser, "generation")) { // marks the model's text, for training
        node = sl_chat_node(parser, SL_CHAT_OP_SCOPE);
        node->body = parse_closed_body(parser, "endgeneration");
        sl_chat_finish(parser, node);
    } else {
        int n = sl_chat_excerpt(parser->token->text);
        node = &parser->failed;
        sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "the tag {%% %.*s %%}", n, parser->token->text.bytes);
    }
    if (parser->work->status == SL_OK) {
        expect_block_end(parser);
    }
    return node;
}

static struct sl_chat_node *parse_output(struct sl_chat_parser *parser) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_OUTPUT);
    node->a = sl_chat_parse_tuple(parser, true);
    if (parser->token->type != SL_CHAT_TOKEN_OUTPUT_END) {
        sl_chat_unexpected(parser, "}}");
    }
    sl_chat_next_token(parser);
    return sl_chat_finish(parser, node);
}

static struct sl_chat_node *parse_text(struct sl_chat_parser *parser) {
    struct sl_chat_node *node = sl_chat_node(parser, SL_CHAT_OP_TEXT);
    node->text = parser->token->text;
    sl_chat_next_token(parser);
    return node;
}

// Parses statements; ends: NULL for the whole template.
static struct sl_chat_node *parse_statements(struct sl_chat_parser *parser, const char *const *ends) {
    struct sl_chat_node *first = NULL, **link = &first;
    while (parser->work->status == SL_OK) {
        if (parser->token->type == SL_CHAT_TOKEN_END) {
            if (ends) {
                sl_chat_fail(parser->work, SL_ERR_INVALID, "expected {%% %s %%} before the end", ends[0]);
            }
            break;
        }
        if (parser->token->type == SL_CHAT_TOKEN_BLOCK_BEGIN) {
            sl_chat_next_token(parser);
            if (ends && parser->token->type == SL_CHAT_TOKEN_NAME && sl_chat_text_among(parser->token->text, ends)) {
                break;
            }
            *link = parse_statement(parser);
        } else if (parser->token->type == SL_CHAT_TOKEN_OUTPUT_BEGIN) {
            sl_chat_next_token(parser);
            *link = parse_output(parser);
        } else {
            *link = parse_text(parser);
        }
        link = &(*link)->next;
    }
    return first;
}

struct sl_chat_node *sl_chat_parse(struct sl_chat_work *work, struct sl_chat_text source) {
    struct sl_chat_parser parser = {.work = work, .token = sl_chat_lex(work, source)};
    if (!parser.token) {
        return NULL;
    }
    work->line = parser.token->line;
    return parse_statements(&parser, NULL);
}
