// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the fields of OpenAI's requests, and of other servers', that Sluice does not use.
 *
 * Design: a field is accepted if its value asks for nothing that could change an answer: null and empty values of any field,
 *         and the neutral values in the tables (unused.c). The reply names these fields in the header x-sluice-ignored.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

// Places of fields in a request.
enum sl_openai_place { SL_OPENAI_TOP, SL_OPENAI_MESSAGE, SL_OPENAI_PART, SL_OPENAI_STREAM_OPTIONS, SL_OPENAI_N_PLACES };

// Returns true if the value is null or has nothing in it: every field may have it.
bool sl_openai_is_empty(const json_t *value);

// Returns true if the field asks for nothing. *is_known_out: it is in the tables, so that its value is the reason.
bool sl_openai_asks_nothing(enum sl_openai_place place, const char *name, const json_t *value, bool *is_known_out);

// Adds the name of an ignored field to the list "a, messages.b" in list[n_bytes], once, with characters that a header may have.
// A list that is full ends with "...".
void sl_openai_note_ignored(enum sl_openai_place place, const char *name, char *list, size_t n_bytes);
