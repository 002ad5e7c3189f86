// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: values of recipes that are words, and the arguments after a word.
 *
 *     one of     score=aas, evicted=merge:0.7     an enum, and the argument of the word that was chosen
 *     flags      when=chunk+step                  words or-ed
 *     parts      scope=sinks:4+recent:0.5         only the words' arguments are stored
 *     part       place=offload/1-                 the same for one word
 */
#include <stdio.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"

static bool has_text(const struct sl_word *word) {
    return word->argument.kind != NULL && word->argument.kind->separator != '\0';
}

static int *number_at(const struct sl_field *field, const struct sl_recipe *recipe) {
    return (int *)((char *)recipe + field->at);
}

// Returns the number of a word: its enum value, or its bit.
static int number_of(const struct sl_field *field, const struct sl_word *word) {
    int i = (int)(word - field->words);
    return field->kind == &sl_kind_flags ? 1 << i : i;
}

static bool is_said(const struct sl_field *field, const struct sl_word *word, const struct sl_recipe *recipe) {
    if (field->kind == &sl_kind_one_of) {
        return *number_at(field, recipe) == number_of(field, word);
    }
    return field->kind == &sl_kind_flags ? (*number_at(field, recipe) & number_of(field, word)) != 0
                                         : has_text(word) && !sl_field_is_default(&word->argument, recipe);
}

// --- reading -----------------------------------------------------------------------------------------------------

// Parses "name", "name:argument" or "name/argument".
static enum sl_status parse_word(const struct sl_field *field, const char *what, const char *text,
                                 struct sl_recipe *recipe, struct sl_error *err) {
    size_t length = strcspn(text, ":/");
    const struct sl_word *word = field->words, *end = field->words + field->n_words;
    while (word < end && !(strlen(word->name) == length && strncmp(word->name, text, length) == 0)) {
        word++;
    }
    if (word == end) {
        char names[160];
        struct sl_text_buffer all = {names, sizeof names, 0};
        for (word = field->words; word < end; word++) {
            sl_text_buffer_join(&all, ", ", word->name);
        }
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s%.40s is unknown; values: %s", what, text, names);
    }
    const char *argument = text[length] == '\0' ? NULL : text + length + 1;
    char separator = has_text(word) ? word->argument.kind->separator : '\0';
    SL_FAIL_IF(separator != '\0' && argument == NULL && !(word->flags & SL_MAY_LACK), err, SL_ERR_INVALID,
               "recipe: %s%.40s: expected %s%c%s", what, text, word->name, separator,
               separator == '/' ? "LAYERS, e.g. offload/1- or offload/sparse" : "NUMBER");
    SL_FAIL_IF(argument != NULL && text[length] != separator, err, SL_ERR_INVALID,
               "recipe: %s%.40s: %c may not follow %s", what, text, text[length], word->name);
    if (field->kind == &sl_kind_one_of) {
        *number_at(field, recipe) = number_of(field, word);
    } else if (field->kind == &sl_kind_flags) {
        *number_at(field, recipe) |= number_of(field, word);
    }
    if (argument == NULL && (word->argument.kind == NULL || has_text(word))) {
        return SL_OK;
    }
    char full[40];
    snprintf(full, sizeof full, "%s%s%c", what, word->name, separator);
    return word->argument.kind->parse(&word->argument, full, argument, recipe, err);
}

static enum sl_status parse_words(const struct sl_field *field, const char *what, const char *text,
                                  struct sl_recipe *recipe, struct sl_error *err) {
    char copy[SL_RECIPE_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    sl_field_copy(field, recipe, &sl_recipe_default);
    enum sl_status status = SL_OK;
    bool joined = field->kind == &sl_kind_flags || field->kind == &sl_kind_parts;
    for (char *rest = copy; status == SL_OK && rest != NULL;) {
        status = parse_word(field, what, strsep(&rest, joined ? "+" : ""), recipe, err);
    }
    for (int i = 0; i < field->n_words && field->kind == &sl_kind_flags; i++) {
        *number_at(field, recipe) &= is_said(field, &field->words[i], recipe) ? ~field->words[i].covers : -1;
    }
    return status;
}

// --- writing -----------------------------------------------------------------------------------------------------

static void put_words(const struct sl_field *field, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    const char *before = "", *none = field->kind == &sl_kind_one_of ? "?" : "";
    for (const struct sl_word *word = field->words; word < field->words + field->n_words; word++) {
        if (!is_said(field, word, recipe)) {
            // For parts, the word without an argument means that there are none.
            none = field->kind == &sl_kind_part && !has_text(word) ? word->name : none;
            continue;
        }
        sl_text_buffer_put(out, "%s%s", before, word->name);
        before = "+";
        if (has_text(word) && !(word->flags & SL_MAY_LACK && sl_field_is_default(&word->argument, recipe))) {
            sl_text_buffer_put(out, "%c", word->argument.kind->separator);
            word->argument.kind->put(&word->argument, recipe, out);
        }
    }
    sl_text_buffer_put(out, "%s", *before == '\0' ? none : "");
}

// --- bounds ------------------------------------------------------------------------------------------------------

const struct sl_kind sl_kind_one_of = {"", ':', parse_words, put_words};
const struct sl_kind sl_kind_flags = {"", ':', parse_words, put_words};
const struct sl_kind sl_kind_parts = {"", ':', parse_words, put_words};
const struct sl_kind sl_kind_part = {"", ':', parse_words, put_words};
