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
                              const struct sl_chat_builtin *row __attribute__((unused)),                               \
                              struct sl_chat_value subject __attribute__((unused)),                                    \
                              const struct sl_chat_value *args __attribute__((unused)))
#define SL_CHAT_FN(name) static SL_CHAT_ROW_FN(name)

bool sl_chat_given(struct sl_chat_value arg); // given, and not none
bool sl_chat_want_string(struct sl_chat_work *work, struct sl_chat_value value, const char *what);
bool sl_chat_want_int(struct sl_chat_work *work, struct sl_chat_value value, const char *what, int64_t *out);

// max_count: the most replacements; negative: all.
struct sl_chat_value sl_chat_replace(struct sl_chat_work *work, struct sl_chat_text text, struct sl_chat_text old,
                                     struct sl_chat_text new, int64_t max_count);
struct sl_chat_value sl_chat_join(struct sl_chat_work *work, struct sl_chat_value items, struct sl_chat_text between,
                                  bool only_strings);

// Filters and methods, as rows of the tables call them.
SL_CHAT_ROW_FN(sl_chat_strip_by); // variant: enum sl_chat_sides
// TITLE: str.title(), every letter after a character that is not a letter; WORDS: Jinja's filter, letters after
// blanks and brackets.
enum sl_chat_case { SL_CHAT_UPPER, SL_CHAT_LOWER, SL_CHAT_CAPITALIZE, SL_CHAT_TITLE, SL_CHAT_WORDS };
SL_CHAT_ROW_FN(sl_chat_change_case); // variant: enum sl_chat_case
SL_CHAT_ROW_FN(sl_chat_pairs);       // Jinja's "items": an iterator
// Methods of strings.
SL_CHAT_ROW_FN(sl_chat_split);
SL_CHAT_ROW_FN(sl_chat_find_in);
SL_CHAT_ROW_FN(sl_chat_matches); // startswith, or with variant 1 endswith
