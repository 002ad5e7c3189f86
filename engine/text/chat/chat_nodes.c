// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the parser's files: the next token, and nodes of the tree. See chat_internal.h.
#include "engine/text/chat/chat_internal.h"

// ---- tokens ---------------------------------------------------------------------------------------------------------

void sl_chat_next_token(struct sl_chat_parser *parser) {
    if (parser->token->type != SL_CHAT_TOKEN_END) {
        parser->token++;
        parser->work->line = parser->token->line;
    }
}

bool sl_chat_peek_operator(const struct sl_chat_parser *parser, const char *op) {
    return parser->token->type == SL_CHAT_TOKEN_OPERATOR && sl_chat_text_is(parser->token->text, op);
}

bool sl_chat_peek_name(const struct sl_chat_parser *parser, const char *name) {
    return parser->token->type == SL_CHAT_TOKEN_NAME && sl_chat_text_is(parser->token->text, name);
}

static bool skip_if(struct sl_chat_parser *parser, bool there) {
    if (there) {
        sl_chat_next_token(parser);
    }
    return there;
}

bool sl_chat_skip_operator(struct sl_chat_parser *parser, const char *op) {
    return skip_if(parser, sl_chat_peek_operator(parser, op));
}

bool sl_chat_skip_name(struct sl_chat_parser *parser, const char *name) {
    return skip_if(parser, sl_chat_peek_name(parser, name));
}

struct sl_chat_node *sl_chat_unexpected(struct sl_chat_parser *parser, const char *expected) {
    const struct sl_chat_token *token = parser->token;
    int n = sl_chat_excerpt(token->text);
    sl_chat_fail(parser->work, SL_ERR_INVALID, "expected %s before '%.*s'", expected, n, token->text.bytes);
    return &parser->failed;
}

void sl_chat_expect_operator(struct sl_chat_parser *parser, const char *op) {
    if (!sl_chat_skip_operator(parser, op)) {
        sl_chat_unexpected(parser, op);
    }
}

// ---- nodes ----------------------------------------------------------------------------------------------------------

bool sl_chat_enter(struct sl_chat_parser *parser) {
    if (++parser->depth > SL_CHAT_MAX_DEPTH) {
        sl_chat_fail(parser->work, SL_ERR_EXHAUSTED, "nested deeper than %d", SL_CHAT_MAX_DEPTH);
    }
    return parser->work->status == SL_OK;
}

void sl_chat_leave(struct sl_chat_parser *parser) {
    parser->depth--;
}

struct sl_chat_node *sl_chat_node(struct sl_chat_parser *parser, enum sl_chat_op op) {
    struct sl_chat_node *node = sl_chat_alloc(parser->work, sizeof(*node));
    node = node ? node : &parser->failed;
    *node = (struct sl_chat_node){.op = op, .line = parser->token->line, .depth = 1};
    return node;
}

static int depth_of(const struct sl_chat_node *list) {
    int depth = 0;
    for (; list; list = list->next) {
        depth = list->depth > depth ? list->depth : depth;
    }
    return depth;
}

struct sl_chat_node *sl_chat_finish(struct sl_chat_parser *parser, struct sl_chat_node *node) {
    if (parser->work->status != SL_OK) {
        return node;
    }
    const struct sl_chat_node *below[] = {node->a, node->b, node->c, node->list, node->body, node->otherwise};
    for (size_t i = 0; i < sizeof(below) / sizeof(*below); i++) {
        int depth = 1 + depth_of(i < 3 && below[i] ? &(struct sl_chat_node){.depth = below[i]->depth} : below[i]);
        node->depth = depth > node->depth ? depth : node->depth;
    }
    if (node->depth > SL_CHAT_MAX_DEPTH) {
        sl_chat_fail(parser->work, SL_ERR_EXHAUSTED, "nested deeper than %d", SL_CHAT_MAX_DEPTH);
    }
    return node;
}

struct sl_chat_node *sl_chat_binary(struct sl_chat_parser *parser, enum sl_chat_op op, struct sl_chat_node *a,
                                    struct sl_chat_node *b) {
    struct sl_chat_node *node = sl_chat_node(parser, op);
    node->a = a;
    node->b = b;
    node->line = a->line;
    return sl_chat_finish(parser, node);
}

struct sl_chat_node *sl_chat_unsupported(struct sl_chat_parser *parser, const char *what, struct sl_chat_text name) {
    sl_chat_fail(parser->work, SL_ERR_UNSUPPORTED, "%s '%.*s'", what, sl_chat_excerpt(name), name.bytes);
    return &parser->failed;
}
