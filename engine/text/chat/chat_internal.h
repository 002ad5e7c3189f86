// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the parts of chat templates.
 *
 *      source --chat_lexer.c--> tokens --chat_parser.c, chat_expression.c, chat_operand.c--> tree
 *      tree --chat_render.c, chat_eval.c--> text
 *                            |
 *             chat_builtins.c, chat_filters.c, chat_tests.c over chat_methods.c, chat_value.c, chat_text.c, chat_json.c
 *
 * The supported language, from Jinja 3.1 with trim_blocks and lstrip_blocks:
 *
 *      {{ }} {% %} {# #} with - and +; if, for (unpacking, `if`, else, loop.*), set (also namespace attributes and
 *      blocks), break, continue, generation; literals; every operator but **; x if y else z; attributes, items, slices;
 *      the functions, filters, tests and methods in the tables of chat_builtins.c, chat_filters.c, chat_tests.c
 *
 * Semantics are Python's and Jinja's: truth, int and float; undefined values render as nothing and their attributes
 * are errors; a variable set in a loop's body ends with the iteration; iterators can be read once.
 *
 * Invariants: every object lives in the arena of its `struct sl_chat_work` and is freed with it, so values are passed
 *             by value and never freed one by one. The work keeps the first failure. Code that runs after a failure
 *             works on undefined values. It ends soon, because every loop calls sl_chat_step(), and its result is
 *             discarded. A tree is at most SL_CHAT_MAX_DEPTH deep, and so is every recursion over one; recursion over
 *             values has the same bound.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "engine/text/chat/chat_template.h"

#define SL_CHAT_MAX_TEMPLATE_BYTES ((size_t)256 << 10)
#define SL_CHAT_MAX_DEPTH          150
#define SL_CHAT_MAX_ARGS           5
// Limits of one rendering. A step is a node of the tree, or SL_CHAT_STEP_BYTES of text that an operation processes.
#define SL_CHAT_MAX_STEPS    (INT64_C(16) << 20)
#define SL_CHAT_STEP_BYTES   64
#define SL_CHAT_KEY_BYTES    8 // a key that a lookup compares counts as its own bytes and these
#define SL_CHAT_MAX_MEMORY   ((size_t)256 << 20)
#define SL_CHAT_MAX_TEXT     ((size_t)64 << 20) // of any one string, including the output
#define SL_CHAT_PARSE_MEMORY ((size_t)64 << 20)

// ---- one parse, or one rendering ------------------------------------------------------------------------------------

struct sl_chat_chunk;

struct sl_chat_work {
    struct sl_chat_chunk *chunks;
    size_t n_bytes, max_bytes; // allocated in chunks
    int64_t steps_left;
    int line; // the current line of the template, for errors
    enum sl_status status;
    struct sl_error *err;
    int64_t time_ms;
};

void sl_chat_work_cleanup(struct sl_chat_work *work);
// Returns zeroed memory, aligned for any type. NULL if the work has failed, possibly in this call.
void *sl_chat_alloc(struct sl_chat_work *work, size_t n_bytes);
// Returns `items`, or where they have no room for `needed`, larger memory that begins with the first n. NULL as above.
void *sl_chat_grow(struct sl_chat_work *work, void *items, size_t n, size_t needed, size_t item_bytes,
                   size_t *capacity_inout);
// Counts work before it is done; returns false if the work has failed. n_bytes: text that will be processed.
bool sl_chat_step(struct sl_chat_work *work, size_t n_bytes);

// ---- values ---------------------------------------------------------------------------------------------------------

struct sl_chat_text { // UTF-8, not terminated, never changed: parts of a text point into it
    const char *bytes;
    size_t n_bytes;
};

enum sl_chat_kind {
    SL_CHAT_ABSENT, // an argument that was not given; used for nothing else
    SL_CHAT_UNDEFINED,
    SL_CHAT_NONE,
    SL_CHAT_BOOL,
    SL_CHAT_INT,
    SL_CHAT_FLOAT,
    SL_CHAT_STRING,
    SL_CHAT_LIST,
    SL_CHAT_TUPLE,
    SL_CHAT_ITERATOR, // result of filters like selectattr: can only be read, once
    SL_CHAT_DICT,
    SL_CHAT_NAMESPACE, // the only mutable value
    SL_CHAT_LOOP,
    SL_CHAT_FUNCTION,
};

struct sl_chat_value {
    enum sl_chat_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        struct sl_chat_text text;  // STRING; UNDEFINED: the name that was not found
        struct sl_chat_list *list; // LIST, TUPLE, ITERATOR
        struct sl_chat_dict *dict; // DICT, NAMESPACE
        struct sl_chat_loop *loop;
    };
};

struct sl_chat_list {
    size_t n, capacity;
    struct sl_chat_value *items; // [capacity]
};

struct sl_chat_pair {
    struct sl_chat_text key;
    struct sl_chat_value value;
};

struct sl_chat_dict { // in the order of insertion
    size_t n, capacity;
    struct sl_chat_pair *pairs; // [capacity]
};

struct sl_chat_loop {
    const struct sl_chat_list *items;
    size_t at;
};

// Makes a text from a literal: SL_CHAT_TEXT("role").
#define SL_CHAT_TEXT(literal) ((struct sl_chat_text){literal, sizeof(literal) - 1})
struct sl_chat_text sl_chat_text_of(const char *string);
bool sl_chat_text_is(struct sl_chat_text a, const char *string);
bool sl_chat_text_equal(struct sl_chat_text a, struct sl_chat_text b);
static inline struct sl_chat_text sl_chat_text_from(struct sl_chat_text text, size_t begin) { // the rest of it
    return (struct sl_chat_text){text.bytes + begin, text.n_bytes - begin};
}
bool sl_chat_text_among(struct sl_chat_text a, const char *const *strings); // up to a NULL

struct sl_chat_value sl_chat_undefined(struct sl_chat_text name);
static inline struct sl_chat_value sl_chat_nothing(void) { // result of a failed operation
    return (struct sl_chat_value){.kind = SL_CHAT_UNDEFINED, .text = SL_CHAT_TEXT("")};
}
// Keeps the first failure, prefixed with the line; returns sl_chat_nothing().
struct sl_chat_value sl_chat_fail(struct sl_chat_work *work, enum sl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct sl_chat_value sl_chat_bool(bool truth);
struct sl_chat_value sl_chat_int(int64_t integer);
struct sl_chat_value sl_chat_string(struct sl_chat_text text);
struct sl_chat_value sl_chat_list_value(enum sl_chat_kind kind, struct sl_chat_list *list); // undefined for NULL
const char *sl_chat_kind_name(enum sl_chat_kind kind);                                      // "a string"

// Returns the integer of a number; a truth value is one.
static inline int64_t sl_chat_integer_of(struct sl_chat_value value) { // not of a float
    return value.kind == SL_CHAT_BOOL ? value.truth : value.integer;
}
static inline double sl_chat_real_of(struct sl_chat_value value) {
    return value.kind == SL_CHAT_FLOAT ? value.real : (double)sl_chat_integer_of(value);
}

struct sl_chat_list *sl_chat_list_create(struct sl_chat_work *work, size_t capacity);
void sl_chat_list_push(struct sl_chat_work *work, struct sl_chat_list *list, struct sl_chat_value value);
struct sl_chat_dict *sl_chat_dict_create(struct sl_chat_work *work);
void sl_chat_dict_set(struct sl_chat_work *work, struct sl_chat_dict *dict, struct sl_chat_text key,
                      struct sl_chat_value value);
const struct sl_chat_value *sl_chat_dict_get(const struct sl_chat_dict *dict, struct sl_chat_text key); // or NULL
// Counts a lookup before it is done, as sl_chat_step() does: keys are compared one after the other.
bool sl_chat_step_lookup(struct sl_chat_work *work, const struct sl_chat_dict *dict, struct sl_chat_text key);

bool sl_chat_is_true(struct sl_chat_work *work, struct sl_chat_value value);
struct sl_chat_text sl_chat_str(struct sl_chat_work *work, struct sl_chat_value value); // Python's str()
size_t sl_chat_length(struct sl_chat_work *work, struct sl_chat_value value);           // Python's len()
// Returns the items that a loop over the value yields. NULL on failure. An iterator is empty afterwards.
struct sl_chat_list *sl_chat_iterate(struct sl_chat_work *work, struct sl_chat_value value);
bool sl_chat_equal(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b);
int sl_chat_compare(struct sl_chat_work *work, struct sl_chat_value a, struct sl_chat_value b); // <0, 0, >0
bool sl_chat_contains(struct sl_chat_work *work, struct sl_chat_value container, struct sl_chat_value item);
// Applies the operator op as written: + - * / // %
struct sl_chat_value sl_chat_arithmetic(struct sl_chat_work *work, const char *op, struct sl_chat_value a,
                                        struct sl_chat_value b);
struct sl_chat_value sl_chat_negate(struct sl_chat_work *work, struct sl_chat_value value);
// object[key] and object.name; chat_access.c has the order of lookups.
struct sl_chat_value sl_chat_item(struct sl_chat_work *work, struct sl_chat_value object, struct sl_chat_value key);
struct sl_chat_value sl_chat_attribute(struct sl_chat_work *work, struct sl_chat_value object,
                                       struct sl_chat_text name);
// bounds[3]: start, stop, step; none or absent if not given.
struct sl_chat_value sl_chat_slice(struct sl_chat_work *work, struct sl_chat_value object,
                                   const struct sl_chat_value bounds[3]);

// ---- text -----------------------------------------------------------------------------------------------------------

struct sl_chat_buffer { // growing text, in the arena
    char *bytes;
    size_t n_bytes, capacity;
};

void sl_chat_append(struct sl_chat_work *work, struct sl_chat_buffer *buffer, struct sl_chat_text text);
struct sl_chat_text sl_chat_concat(struct sl_chat_work *work, struct sl_chat_text a, struct sl_chat_text b);
size_t sl_chat_char_bytes(struct sl_chat_text text); // bytes of its first character; text is not empty
size_t sl_chat_count_chars(struct sl_chat_text text);
size_t sl_chat_space_bytes(struct sl_chat_text text); // bytes of its first character if white space, or 0
enum sl_chat_sides { SL_CHAT_LEFT = 1, SL_CHAT_RIGHT = 2, SL_CHAT_BOTH = 3 };
// chars: the characters to strip; NULL for white space.
struct sl_chat_text sl_chat_strip(struct sl_chat_text text, const struct sl_chat_text *chars, enum sl_chat_sides sides);
// Returns where b begins in a, or a.n_bytes + 1 if b is not in a. (memmem of an empty b is 0.)
size_t sl_chat_find(struct sl_chat_text a, struct sl_chat_text b);
bool sl_chat_is_ascii(struct sl_chat_text text);
// Returns how many bytes of a text to show in an error: at most 40, whole characters. For "%.*s".
int sl_chat_excerpt(struct sl_chat_text text);

struct sl_chat_text sl_chat_to_json(struct sl_chat_work *work, struct sl_chat_value value, int indent); // -1: one line

// ---- the tree -------------------------------------------------------------------------------------------------------

enum sl_chat_op {
    // expressions
    SL_CHAT_OP_CONST,     // value
    SL_CHAT_OP_NAME,      // text
    SL_CHAT_OP_LIST,      // list
    SL_CHAT_OP_TUPLE,     // list
    SL_CHAT_OP_DICT,      // list: keys and values, alternating
    SL_CHAT_OP_NAMESPACE, // list of KEYWORD
    SL_CHAT_OP_KEYWORD,   // text = a
    SL_CHAT_OP_ATTRIBUTE, // a.text
    SL_CHAT_OP_ITEM,      // a[b]
    SL_CHAT_OP_SLICE,     // a[list]: three nodes
    SL_CHAT_OP_CALL,      // builtin(list)
    SL_CHAT_OP_METHOD,    // a.text(list)
    SL_CHAT_OP_FILTER,    // a | builtin(list)
    SL_CHAT_OP_TEST,      // a is builtin(list)
    SL_CHAT_OP_NOT,       // not a
    SL_CHAT_OP_NEGATE,    // -a
    SL_CHAT_OP_POSITIVE,  // +a
    SL_CHAT_OP_MATH,      // a text b
    SL_CHAT_OP_CONCAT,    // a ~ b
    SL_CHAT_OP_AND,       // a and b
    SL_CHAT_OP_OR,        // a or b
    SL_CHAT_OP_COMPARE,   // a, then a list of COMPARAND: 1 < x <= 3
    SL_CHAT_OP_COMPARAND, // text a
    SL_CHAT_OP_CHOICE,    // b if a else c; c may be NULL
    // statements
    SL_CHAT_OP_TEXT,      // value
    SL_CHAT_OP_OUTPUT,    // a
    SL_CHAT_OP_IF,        // a, body, otherwise
    SL_CHAT_OP_FOR,       // list of NAMEs in a, if b; body, otherwise
    SL_CHAT_OP_SET,       // list of NAMEs, or one ATTRIBUTE of a NAME, = a
    SL_CHAT_OP_SET_BLOCK, // list as above; body; a: NULL, or filters over the NAME ""
    SL_CHAT_OP_SCOPE,     // body
    SL_CHAT_OP_BREAK,
    SL_CHAT_OP_CONTINUE,
};

struct sl_chat_builtin;

struct sl_chat_node {
    enum sl_chat_op op;
    int line, depth;           // depth of the tree below, including this node
    struct sl_chat_node *next; // next node of the list that contains it
    struct sl_chat_node *a, *b, *c, *list, *body, *otherwise;
    struct sl_chat_text text;
    struct sl_chat_value value;
    const struct sl_chat_builtin *builtin;
};

// ---- tokens ---------------------------------------------------------------------------------------------------------

enum sl_chat_token_type {
    SL_CHAT_TOKEN_END,
    SL_CHAT_TOKEN_TEXT, // between tags, white space already trimmed
    SL_CHAT_TOKEN_BLOCK_BEGIN,
    SL_CHAT_TOKEN_BLOCK_END,
    SL_CHAT_TOKEN_OUTPUT_BEGIN,
    SL_CHAT_TOKEN_OUTPUT_END,
    SL_CHAT_TOKEN_NAME,
    SL_CHAT_TOKEN_STRING, // text with escapes resolved
    SL_CHAT_TOKEN_NUMBER, // value
    SL_CHAT_TOKEN_OPERATOR,
};

struct sl_chat_token {
    enum sl_chat_token_type type;
    int line;
    struct sl_chat_text text;
    struct sl_chat_value value;
};

// Returns the tokens of a source whose lines end with \n; the last is an END. NULL on failure.
struct sl_chat_token *sl_chat_lex(struct sl_chat_work *work, struct sl_chat_text source);

// ---- the parser -----------------------------------------------------------------------------------------------------

struct sl_chat_parser {
    struct sl_chat_work *work;
    const struct sl_chat_token *token; // the next one
    int depth;                         // of recursion
    int n_loops;                       // number of enclosing loops, for break and continue
    bool is_joined;             // in the right operand of an operator that joins texts, which "safe" would escape
    struct sl_chat_node failed; // stands for every node that there is no memory for, and for what is wrong
};

struct sl_chat_node *sl_chat_parse(struct sl_chat_work *work, struct sl_chat_text source); // a list of statements

/*
 * chat_expression.c: operators; chat_operand.c: operands. Once the work has failed, nodes may be parser->failed, which
 * then is its own child or neighbor: lists are read only while the work has not failed.
 */
struct sl_chat_node *sl_chat_parse_expression(struct sl_chat_parser *parser, bool with_choice);
struct sl_chat_node *sl_chat_parse_tuple(struct sl_chat_parser *parser, bool with_choice);
struct sl_chat_node *sl_chat_parse_filters(struct sl_chat_parser *parser, struct sl_chat_node *node);
struct sl_chat_node *sl_chat_parse_primary(struct sl_chat_parser *parser);
struct sl_chat_node *sl_chat_parse_postfix(struct sl_chat_parser *parser, struct sl_chat_node *node); // . [] ()
bool sl_chat_begins_value(const struct sl_chat_parser *parser);

// chat_nodes.c: tokens and nodes, for chat_parser.c (statements) and these two.
struct sl_chat_node *sl_chat_node(struct sl_chat_parser *parser, enum sl_chat_op op);
struct sl_chat_node *sl_chat_binary(struct sl_chat_parser *parser, enum sl_chat_op op, struct sl_chat_node *a,
                                    struct sl_chat_node *b);
struct sl_chat_node *sl_chat_finish(struct sl_chat_parser *parser, struct sl_chat_node *node); // sets and checks depth
bool sl_chat_peek_operator(const struct sl_chat_parser *parser, const char *op);
bool sl_chat_peek_name(const struct sl_chat_parser *parser, const char *name);
bool sl_chat_skip_operator(struct sl_chat_parser *parser, const char *op);
bool sl_chat_skip_name(struct sl_chat_parser *parser, const char *name);
void sl_chat_expect_operator(struct sl_chat_parser *parser, const char *op);
void sl_chat_next_token(struct sl_chat_parser *parser);
bool sl_chat_enter(struct sl_chat_parser *parser); // one level deeper; pairs with sl_chat_leave() even when false
void sl_chat_leave(struct sl_chat_parser *parser);
// Fail the work, and return parser->failed.
struct sl_chat_node *sl_chat_unexpected(struct sl_chat_parser *parser, const char *expected);
struct sl_chat_node *sl_chat_unsupported(struct sl_chat_parser *parser, const char *what, struct sl_chat_text name);

// ---- builtins -------------------------------------------------------------------------------------------------------

/*
 * A row of a table. The function gets the row, its subject (undefined for functions) and its arguments bound to
 * parameters; missing ones are ABSENT.
 */
struct sl_chat_builtin {
    const char *name;
    const char *parameters[SL_CHAT_MAX_ARGS];
    int n_required;
    struct sl_chat_value (*fn)(struct sl_chat_work *work, const struct sl_chat_builtin *row,
                               struct sl_chat_value subject, const struct sl_chat_value *args);
    unsigned variant;     // of a function of several rows: what this one does
    enum sl_chat_kind of; // methods: the kind of the subject
    int test_name;        // index from 1 of the argument that names a test; 0: none
};

// The tables, which end with a row without a name.
extern const struct sl_chat_builtin sl_chat_functions[], sl_chat_filters[], sl_chat_tests[], sl_chat_methods[];
const struct sl_chat_builtin *sl_chat_find_builtin(const struct sl_chat_builtin *table,
                                                   struct sl_chat_text name); // or NULL
// Returns a method of this kind of value. NULL also for Python's methods that are not supported.
const struct sl_chat_builtin *sl_chat_find_method(enum sl_chat_kind kind, struct sl_chat_text name);
// Checks that these arguments fit; fails the work if not. list: expressions and KEYWORDs.
bool sl_chat_check_arguments(struct sl_chat_work *work, const struct sl_chat_builtin *builtin,
                             const struct sl_chat_node *list);
// Returns the index of the parameter that a keyword names, or -1.
int sl_chat_parameter(const struct sl_chat_builtin *builtin, struct sl_chat_text keyword);

// ---- evaluation -----------------------------------------------------------------------------------------------------

struct sl_chat_scope {
    struct sl_chat_scope *parent;
    struct sl_chat_dict *variables;
};

struct sl_chat_value sl_chat_eval(struct sl_chat_work *work, const struct sl_chat_scope *scope,
                                  const struct sl_chat_node *node);
struct sl_chat_text sl_chat_render(struct sl_chat_work *work, const struct sl_chat_node *statements,
                                   struct sl_chat_dict *variables);

// Does what sl_chat_template_load() does, from the source itself, without special tokens. For tests.
enum sl_status sl_chat_template_parse(const char *source, struct sl_chat_template **chat_template_out,
                                      struct sl_error *err);
