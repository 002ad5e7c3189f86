// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the tables of builtins (chat_builtins.c, chat_filters.c, chat_tests.c): how rows are written,
 *          and operations on values that take more than a line. Engine-internal.
 */
#pragma once

#include "engine/text/chat/chat_internal.h"

// The signature of a row's function; it need not use all of its arguments.
#define SL_CHAT_ROW_FN(name)                                                                                           \
    struct sl_chat_value name(struct sl_chat_work *work __attribute__((unused)),                                       \
                              struct sl_chat_value subject __attribute__((unused)),                                    \
                              const struct sl_chat_value *args __attribute__((unused)))
#define SL_CHAT_FN(name) static SL_CHAT_ROW_FN(name)

struct sl_chat_rows {
    const struct sl_chat_builtin *rows; // [n]
    size_t n;
};
extern const struct sl_chat_rows sl_chat_filters, sl_chat_tests;
const struct sl_chat_builtin *sl_chat_find_row(const struct sl_chat_rows *rows, struct sl_chat_text name); // or NULL

bool sl_chat_given(struct sl_chat_value arg); // given, and not none
bool sl_chat_want_string(struct sl_chat_work *work, struct sl_chat_value value, const char *what);
bool sl_chat_want_int(struct sl_chat_work *work, struct sl_chat_value value, const char *what, int64_t *out);

struct sl_chat_value sl_chat_strip_by(struct sl_chat_work *work, struct sl_chat_text text, struct sl_chat_value chars,
                                      enum sl_chat_sides sides);
// max_count: the most replacements; negative: all.
struct sl_chat_value sl_chat_replace(struct sl_chat_work *work, struct sl_chat_text text, struct sl_chat_text old,
                                     struct sl_chat_text new, int64_t max_count);
struct sl_chat_value sl_chat_join(struct sl_chat_work *work, struct sl_chat_value items, struct sl_chat_text between,
                                  bool only_strings);
// TITLE: str.title(), every letter after a character that is not a letter; WORDS: Jinja's filter, letters after
// blanks and brackets.
enum sl_chat_case { SL_CHAT_UPPER, SL_CHAT_LOWER, SL_CHAT_CAPITALIZE, SL_CHAT_TITLE, SL_CHAT_WORDS };
struct sl_chat_value sl_chat_change_case(struct sl_chat_work *work, struct sl_chat_text text, enum sl_chat_case form);

// Filters and methods, as rows of the tables call them.
SL_CHAT_ROW_FN(sl_chat_upper);
SL_CHAT_ROW_FN(sl_chat_lower);
SL_CHAT_ROW_FN(sl_chat_capitalize);
SL_CHAT_ROW_FN(sl_chat_pairs); // Jinja's "items": an iterator
// Methods of strings.
SL_CHAT_ROW_FN(sl_chat_split);
SL_CHAT_ROW_FN(sl_chat_find_in);
SL_CHAT_ROW_FN(sl_chat_startswith);
SL_CHAT_ROW_FN(sl_chat_endswith);
