// SPDX-License-Identifier: Apache-2.0
// Purpose: the value of an expression. See chat_internal.h. Recursion is over the tree, whose depth is bounded.
#include "engine/text/chat/chat_internal.h"

static struct sl_chat_value eval_name(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                      struct sl_chat_text name) {
    for (; scope && sl_chat_step_lookup(work, scope->variables, name); scope = scope->parent) {
        const struct sl_chat_value *found = sl_chat_dict_get(scope->variables, name);
        if (found) {
            return *found;
        }
    }
    return sl_chat_find_builtin(sl_chat_functions, name) ? (struct sl_chat_value){.kind = SL_CHAT_FUNCTION}
                                                         : sl_chat_undefined(name);
}

// ---- lists, tuples, dictionaries, namespaces ------------------------------------------------------------------------

static struct sl_chat_value eval_list(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                      const struct sl_chat_node *node) {
    struct sl_chat_list *list = sl_chat_list_create(work, 0);
    for (const struct sl_chat_node *item = node->list; item && work->status == SL_OK; item = item->next) {
        sl_chat_list_push(work, list, sl_chat_eval(work, scope, item));
    }
    return sl_chat_list_value(node->op == SL_CHAT_OP_TUPLE ? SL_CHAT_TUPLE : SL_CHAT_LIST, list);
}

static struct sl_chat_value eval_dict(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                      const struct sl_chat_node *node) {
    struct sl_chat_value dict = {.kind = SL_CHAT_DICT, .dict = sl_chat_dict_create(work)};
    for (const struct sl_chat_node *key = node->list; key && work->status == SL_OK; key = key->next->next) {
        struct sl_chat_value name = sl_chat_eval(work, scope, key);
        struct sl_chat_value value = sl_chat_eval(work, scope, key->next);
        if (name.kind != SL_CHAT_STRING) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "%s as a key", sl_chat_kind_name(name.kind));
            break;
        }
        sl_chat_dict_set(work, dict.dict, name.text, value);
    }
    return work->status == SL_OK ? dict : sl_chat_nothing();
}

static struct sl_chat_value eval_namespace(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                           const struct sl_chat_node *node) {
    struct sl_chat_value namespace = {.kind = SL_CHAT_NAMESPACE, .dict = sl_chat_dict_create(work)};
    for (const struct sl_chat_node *arg = node->list; arg && work->status == SL_OK; arg = arg->next) {
        sl_chat_dict_set(work, namespace.dict, arg->text, sl_chat_eval(work, scope, arg->a));
    }
    return work->status == SL_OK ? namespace : sl_chat_nothing();
}

// ---- calls ----------------------------------------------------------------------------------------------------------

// Checks the number of arguments and their names.
bool sl_chat_check_arguments(struct sl_chat_work *work, const struct sl_chat_builtin *builtin,
                             const struct sl_chat_node *list) {
    bool given[SL_CHAT_MAX_ARGS] = {0};
    int n = 0;
    for (const struct sl_chat_node *arg = list; arg && work->status == SL_OK; arg = arg->next) {
        int at = arg->op == SL_CHAT_OP_KEYWORD ? sl_chat_parameter(builtin, arg->text) : n++;
        if (at < 0) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "%s with the argument '%.*s'", builtin->name,
                         sl_chat_excerpt(arg->text), arg->text.bytes);
        } else if (at >= SL_CHAT_MAX_ARGS || !builtin->parameters[at]) {
            sl_chat_fail(work, SL_ERR_UNSUPPORTED, "%s with %d arguments", builtin->name, n);
        } else if (given[at]) {
            sl_chat_fail(work, SL_ERR_INVALID, "%s is given '%s' twice", builtin->name, builtin->parameters[at]);
        } else {
            given[at] = true;
        }
    }
    for (int i = 0; i < builtin->n_required; i++) {
        if (!given[i]) {
            sl_chat_fail(work, SL_ERR_INVALID, "%s needs the argument '%s'", builtin->name, builtin->parameters[i]);
        }
    }
    return work->status == SL_OK;
}

// Calls a builtin. Arguments were checked when the template was loaded; the caller checks a method's, which depend on
// the value.
static struct sl_chat_value call(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                 const struct sl_chat_node *node, const struct sl_chat_builtin *builtin,
                                 struct sl_chat_value subject) {
    struct sl_chat_value args[SL_CHAT_MAX_ARGS] = {0};
    int n = 0;
    for (const struct sl_chat_node *arg = node->list; arg && work->status == SL_OK; arg = arg->next) {
        bool keyword = arg->op == SL_CHAT_OP_KEYWORD;
        int at = keyword ? sl_chat_parameter(builtin, arg->text) : n++;
        args[at] = sl_chat_eval(work, scope, keyword ? arg->a : arg);
    }
    work->line = node->line;
    return work->status == SL_OK ? builtin->fn(work, builtin, subject, args) : sl_chat_nothing();
}

static struct sl_chat_value call_method(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                        const struct sl_chat_node *node) {
    struct sl_chat_value object = sl_chat_eval(work, scope, node->a);
    work->line = node->line;
    const struct sl_chat_builtin *method = sl_chat_find_method(object.kind, node->text);
    if (!method) {
        return object.kind == SL_CHAT_UNDEFINED
                   ? sl_chat_fail(work, SL_ERR_INVALID, "'%.*s' is undefined, and has no method %s",
                                  sl_chat_excerpt(object.text), object.text.bytes, node->builtin->name)
                   : sl_chat_fail(work, SL_ERR_INVALID, "%s has no method %s", sl_chat_kind_name(object.kind),
                                  node->builtin->name);
    }
    return sl_chat_check_arguments(work, method, node->list) ? call(work, scope, node, method, object)
                                                             : sl_chat_nothing();
}

// ---- operators ------------------------------------------------------------------------------------------------------

static bool compare(struct sl_chat_work *work, struct sl_chat_text op, struct sl_chat_value a, struct sl_chat_value b) {
    switch (op.bytes[0]) {
    case '=':
        return sl_chat_equal(work, a, b);
    case '!':
        return !sl_chat_equal(work, a, b);
    case '<':
        return op.n_bytes == 1 ? sl_chat_compare(work, a, b) < 0 : sl_chat_compare(work, a, b) <= 0;
    case '>':
        return op.n_bytes == 1 ? sl_chat_compare(work, a, b) > 0 : sl_chat_compare(work, a, b) >= 0;
    case 'i':
        return sl_chat_contains(work, b, a);
    default: // not in
        return !sl_chat_contains(work, b, a);
    }
}

static struct sl_chat_value eval_compare(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                         const struct sl_chat_node *node) {
    struct sl_chat_value a = sl_chat_eval(work, scope, node->a);
    bool holds = true;
    for (const struct sl_chat_node *next = node->list; next && holds && work->status == SL_OK; next = next->next) {
        struct sl_chat_value b = sl_chat_eval(work, scope, next->a);
        work->line = next->line;
        holds = compare(work, next->text, a, b);
        a = b;
    }
    return sl_chat_bool(holds);
}

static struct sl_chat_value eval_slice(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                       const struct sl_chat_node *node) {
    struct sl_chat_value object = sl_chat_eval(work, scope, node->a), bounds[3] = {0};
    int n = 0;
    for (const struct sl_chat_node *bound = node->list; bound; bound = bound->next) {
        bounds[n++] = sl_chat_eval(work, scope, bound);
    }
    work->line = node->line;
    return sl_chat_slice(work, object, bounds);
}

static struct sl_chat_value eval_choice(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                        const struct sl_chat_node *node) {
    const struct sl_chat_node *chosen = sl_chat_is_true(work, sl_chat_eval(work, scope, node->a)) ? node->b : node->c;
    return chosen ? sl_chat_eval(work, scope, chosen) : sl_chat_nothing(); // without else: undefined
}

// Evaluates both operands, then sets the line that errors report.
static void eval_pair(struct sl_chat_work *work, const struct sl_chat_scope *scope, const struct sl_chat_node *node,
                      struct sl_chat_value pair[2]) {
    pair[0] = sl_chat_eval(work, scope, node->a);
    pair[1] = node->b ? sl_chat_eval(work, scope, node->b) : sl_chat_nothing();
    work->line = node->line;
}

static struct sl_chat_value eval_operator(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                          const struct sl_chat_node *node) {
    struct sl_chat_value pair[2];
    eval_pair(work, scope, node, pair);
    switch (node->op) {
    case SL_CHAT_OP_ATTRIBUTE:
        return sl_chat_attribute(work, pair[0], node->text);
    case SL_CHAT_OP_ITEM:
        return sl_chat_item(work, pair[0], pair[1]);
    case SL_CHAT_OP_NOT:
        return sl_chat_bool(!sl_chat_is_true(work, pair[0]));
    case SL_CHAT_OP_NEGATE:
        return sl_chat_negate(work, pair[0]);
    case SL_CHAT_OP_POSITIVE:
        return sl_chat_negate(work, sl_chat_negate(work, pair[0]));
    case SL_CHAT_OP_MATH:
        return sl_chat_arithmetic(work, node->text.bytes, pair[0], pair[1]);
    default: // CONCAT
        return sl_chat_string(sl_chat_concat(work, sl_chat_str(work, pair[0]), sl_chat_str(work, pair[1])));
    }
}

struct sl_chat_value sl_chat_eval(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                  const struct sl_chat_node *node) {
    if (!sl_chat_step(work, 0)) {
        return sl_chat_nothing();
    }
    work->line = node->line;
    switch (node->op) {
    case SL_CHAT_OP_CONST:
        return node->value;
    case SL_CHAT_OP_NAME:
        return eval_name(work, scope, node->text);
    case SL_CHAT_OP_LIST:
    case SL_CHAT_OP_TUPLE:
        return eval_list(work, scope, node);
    case SL_CHAT_OP_DICT:
        return eval_dict(work, scope, node);
    case SL_CHAT_OP_NAMESPACE:
        return eval_namespace(work, scope, node);
    case SL_CHAT_OP_SLICE:
        return eval_slice(work, scope, node);
    case SL_CHAT_OP_CALL:
        return call(work, scope, node, node->builtin, sl_chat_nothing());
    case SL_CHAT_OP_METHOD:
        return call_method(work, scope, node);
    case SL_CHAT_OP_FILTER:
    case SL_CHAT_OP_TEST:
        return call(work, scope, node, node->builtin, sl_chat_eval(work, scope, node->a));
    case SL_CHAT_OP_COMPARE:
        return eval_compare(work, scope, node);
    case SL_CHAT_OP_CHOICE:
        return eval_choice(work, scope, node);
    case SL_CHAT_OP_AND:
    case SL_CHAT_OP_OR: {
        struct sl_chat_value value = sl_chat_eval(work, scope, node->a);
        bool decided = sl_chat_is_true(work, value) == (node->op == SL_CHAT_OP_OR);
        return decided ? value : sl_chat_eval(work, scope, node->b);
    }
    default:
        return eval_operator(work, scope, node);
    }
}
