// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: runs the statements of a template and collects their output. See chat_internal.h.
 * Design: each iteration of a loop and each block has a scope; variables set in it end with it. A conditional has
 *         none.
 */
#include "engine/text/chat/chat_internal.h"

enum jump { NO_JUMP, JUMP_BREAK, JUMP_CONTINUE };

struct render {
    struct sl_chat_work *work;
    struct sl_chat_buffer *out; // output of the template, or of the block that is being set
    enum jump jump;
};

static void run(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *statements);

static void put_text(struct render *render, struct sl_chat_text text) {
    sl_chat_append(render->work, render->out, text);
}

// ---- set ------------------------------------------------------------------------------------------------------------

// Assigns: one name takes the value, several take its items.
static void assign(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *targets,
                   struct sl_chat_value value) {
    if (!targets->next) {
        sl_chat_dict_set(render->work, scope->variables, targets->text, value);
        return;
    }
    const struct sl_chat_list *items = sl_chat_iterate(render->work, value);
    size_t n = 0;
    for (const struct sl_chat_node *target = targets; items && target; target = target->next, n++) {
        if (n < items->n) {
            sl_chat_dict_set(render->work, scope->variables, target->text, items->items[n]);
        }
    }
    if (items && n != items->n) {
        sl_chat_fail(render->work, SL_ERR_INVALID, "unpacks %zu values into %zu variables", items->n, n);
    }
}

static void run_set(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node,
                    struct sl_chat_value value) {
    const struct sl_chat_node *target = node->list;
    render->work->line = node->line;
    if (target->op != SL_CHAT_OP_ATTRIBUTE) {
        assign(render, scope, target, value);
        return;
    }
    struct sl_chat_value namespace = sl_chat_eval(render->work, scope, target->a);
    if (namespace.kind != SL_CHAT_NAMESPACE) {
        sl_chat_fail(render->work, SL_ERR_INVALID, "sets an attribute of %s, which is not a namespace",
                     sl_chat_kind_name(namespace.kind));
        return;
    }
    sl_chat_dict_set(render->work, namespace.dict, target->text, value);
}

static void run_in_own_scope(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *body) {
    struct sl_chat_scope inner = {.parent = scope, .variables = sl_chat_dict_create(render->work)};
    if (inner.variables) {
        run(render, &inner, body);
    }
}

static void run_set_block(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node) {
    struct sl_chat_buffer block = {0}, *out = render->out;
    render->out = &block;
    run_in_own_scope(render, scope, node->body);
    render->out = out;
    struct sl_chat_value value = sl_chat_string((struct sl_chat_text){block.bytes, block.n_bytes});
    struct sl_chat_scope filtered = {.parent = scope, .variables = sl_chat_dict_create(render->work)};
    if (node->a && filtered.variables) { // filters apply to the variable without a name
        sl_chat_dict_set(render->work, filtered.variables, SL_CHAT_TEXT(""), value);
        value = sl_chat_eval(render->work, &filtered, node->a);
    }
    run_set(render, scope, node, value);
}

// ---- for ------------------------------------------------------------------------------------------------------------

// Returns the items that pass the loop's `if`.
static struct sl_chat_list *filter_items(struct render *render, struct sl_chat_scope *scope,
                                         const struct sl_chat_node *node, const struct sl_chat_list *items) {
    struct sl_chat_list *list = sl_chat_list_create(render->work, 0);
    struct sl_chat_scope inner = {.parent = scope, .variables = sl_chat_dict_create(render->work)};
    for (size_t i = 0; list && i < items->n && render->work->status == SL_OK; i++) {
        inner.variables->n = 0;
        assign(render, &inner, node->list, items->items[i]);
        if (sl_chat_is_true(render->work, sl_chat_eval(render->work, &inner, node->b))) {
            sl_chat_list_push(render->work, list, items->items[i]);
        }
    }
    return list;
}

static void run_turns(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node,
                      const struct sl_chat_list *items) {
    struct sl_chat_work *work = render->work;
    struct sl_chat_loop *loop = sl_chat_alloc(work, sizeof(*loop));
    struct sl_chat_scope inner = {.parent = scope, .variables = sl_chat_dict_create(work)};
    if (!loop || !inner.variables) {
        return;
    }
    *loop = (struct sl_chat_loop){.items = items};
    for (; loop->at < items->n && work->status == SL_OK && render->jump != JUMP_BREAK; loop->at++) {
        render->jump = NO_JUMP;
        inner.variables->n = 0;
        work->line = node->line;
        assign(render, &inner, node->list, items->items[loop->at]);
        sl_chat_dict_set(work, inner.variables, SL_CHAT_TEXT("loop"),
                         (struct sl_chat_value){.kind = SL_CHAT_LOOP, .loop = loop});
        run(render, &inner, node->body);
    }
    render->jump = NO_JUMP;
}

static void run_for(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node) {
    struct sl_chat_value value = sl_chat_eval(render->work, scope, node->a);
    render->work->line = node->line;
    const struct sl_chat_list *items = sl_chat_iterate(render->work, value);
    if (items && node->b) {
        items = filter_items(render, scope, node, items);
    }
    if (!items) {
        return;
    }
    if (items->n > 0) {
        run_turns(render, scope, node, items);
    } else {
        run_in_own_scope(render, scope, node->otherwise);
    }
}

// ---- statements -----------------------------------------------------------------------------------------------------

static void run_if(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node) {
    bool holds = sl_chat_is_true(render->work, sl_chat_eval(render->work, scope, node->a));
    run(render, scope, holds ? node->body : node->otherwise);
}

static void run_one(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *node) {
    switch (node->op) {
    case SL_CHAT_OP_TEXT:
        put_text(render, node->text);
        break;
    case SL_CHAT_OP_OUTPUT:
        put_text(render, sl_chat_str(render->work, sl_chat_eval(render->work, scope, node->a)));
        break;
    case SL_CHAT_OP_IF:
        run_if(render, scope, node);
        break;
    case SL_CHAT_OP_FOR:
        run_for(render, scope, node);
        break;
    case SL_CHAT_OP_SET:
        run_set(render, scope, node, sl_chat_eval(render->work, scope, node->a));
        break;
    case SL_CHAT_OP_SET_BLOCK:
        run_set_block(render, scope, node);
        break;
    case SL_CHAT_OP_SCOPE:
        run_in_own_scope(render, scope, node->body);
        break;
    case SL_CHAT_OP_BREAK:
        render->jump = JUMP_BREAK;
        break;
    default:
        render->jump = JUMP_CONTINUE;
    }
}

static void run(struct render *render, struct sl_chat_scope *scope, const struct sl_chat_node *statements) {
    for (const struct sl_chat_node *node = statements; node && render->jump == NO_JUMP; node = node->next) {
        if (!sl_chat_step(render->work, 0)) {
            return;
        }
        render->work->line = node->line;
        run_one(render, scope, node);
    }
}

struct sl_chat_text sl_chat_render(struct sl_chat_work *work, const struct sl_chat_node *statements,
                                   struct sl_chat_dict *variables) {
    struct sl_chat_buffer out = {0};
    struct render render = {.work = work, .out = &out};
    struct sl_chat_scope scope = {.variables = variables};
    run(&render, &scope, statements);
    return (struct sl_chat_text){out.bytes, out.n_bytes};
}
