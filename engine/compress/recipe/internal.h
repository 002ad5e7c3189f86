// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that only the files of engine/compress/recipe/ share. From the bottom up:
 *
 *     scores.c     properties of every score
 *     recipe.c     defaults, and values derived from a recipe alone
 *     numbers.c    values that are numbers
 *     layers.c     values that are layers
 *     formats.c    values that are formats
 *     words.c      values that are words, with values of the kinds above after a ':' or '/'
 *     axes.c       a row for every axis
 *     check.c      which axes fit each other
 *     resolve.c    replaces "dense", "sparse", "last" and open ends by layers of a model
 *     presets.c    presets
 *     text.c       parses text into a recipe
 *     canonical.c  writes a recipe as text; its preset and fingerprint
 */
#pragma once

#include <stddef.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"

#define SL_RECIPE_MAX_CHUNK        8192
#define SL_RECIPE_DEFAULT_TOPK     128
#define SL_RECIPE_DEFAULT_CHANNELS 8
#define SL_RECIPE_MAX_CHANNELS     512     // the largest head_dim that a page can have
#define SL_RECIPE_KEEP_TOPK        (-1)    // the recipe does not name keep
#define SL_RECIPE_MAX_ROWS         1048576 // topk + keep: SL_NEAR_MAX_PLACES

// --- recipe.c

extern const struct sl_recipe sl_recipe_default;

// --- values and their text

// Text that is truncated at the end of its buffer.
struct sl_text_buffer {
    char *buf;
    size_t bytes, length;
};
void sl_text_buffer_put(struct sl_text_buffer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void sl_text_buffer_join(struct sl_text_buffer *text, const char *separator, const char *item) {
    sl_text_buffer_put(text, "%s%s", text->length > 0 ? separator : "", item);
}

// A value: adjacent members of struct sl_recipe, and their bounds.
struct sl_field {
    const struct sl_kind *kind;
    size_t at, bytes;            // in struct sl_recipe
    uint64_t min, max;           // bounds of counts
    const struct sl_word *words; // [n_words]
    int n_words;
};

struct sl_kind {
    const char *form; // for help, e.g. "N"
    char separator;   // between a word and this value; 0: the value is implied by the word
    // `what` is the text before the value: "window=", "scope=sinks:".
    enum sl_status (*parse)(const struct sl_field *field, const char *what, const char *text, struct sl_recipe *recipe,
                            struct sl_error *err);
    // Writes text that parses to the same value; nothing if there is no value. NULL: it is written otherwise.
    void (*put)(const struct sl_field *field, const struct sl_recipe *recipe, struct sl_text_buffer *out);
};

enum sl_axis_flags {
    SL_MAY_LACK = 1,      // of a word: its argument may be left out and then has its default
    SL_NEEDS_BUDGET = 2,  // only has an effect if slots are evicted
    SL_NEEDS_OFFLOAD = 4, // only has an effect if layers are offloaded; never changes the cache
    SL_UNCACHED = 8,      // does not change the cache if nothing is evicted; then not in the fingerprint
    SL_ANY_METHOD = 16,   // presets do not set it, and it is written after a preset's name
};

struct sl_word {
    const char *name;
    struct sl_field argument; // of "name:argument"; kind NULL: no argument
    unsigned flags;
    int covers; // or-ed words: the others that this one includes
};

extern const struct sl_kind sl_kind_count,             // a whole number, in [min, max]
    sl_kind_odd, sl_kind_pages,                        // an odd count; a count of whole pages
    sl_kind_fixed,                                     // a count that equals `min`
    sl_kind_amount, sl_kind_budget,                    // slots, or a ratio below 1: struct sl_amount; "off" too
    sl_kind_ratio, sl_kind_weight,                     // above 0 and below 1; above 0 and up to 1
    sl_kind_exempt, sl_kind_resident, sl_kind_offload, // layers, with `last`; values of place
    sl_kind_format, sl_kind_bits,                      // struct sl_format_range
    sl_kind_one_of, sl_kind_flags,                     // words[enum]; words[bit], or-ed
    sl_kind_parts, sl_kind_part;                       // the arguments of several words; of one word

// The `at` and `bytes` of a field.
#define SL_AT(first, last)                                                                                             \
    offsetof(struct sl_recipe, first),                                                                                 \
        offsetof(struct sl_recipe, last) + sizeof(((struct sl_recipe *)0)->last) - offsetof(struct sl_recipe, first)

static inline void sl_field_copy(const struct sl_field *field, struct sl_recipe *to, const struct sl_recipe *from) {
    memcpy((char *)to + field->at, (const char *)from + field->at, field->bytes);
}
static inline bool sl_field_is_default(const struct sl_field *field, const struct sl_recipe *recipe) {
    return memcmp((const char *)recipe + field->at, (const char *)&sl_recipe_default + field->at, field->bytes) == 0;
}

// --- numbers.c, formats.c: for others that read them

bool sl_is_digits(const char *text);
// Parses a decimal integer in [min, max]; rejects anything else.
enum sl_status sl_parse_count(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *count_out,
                              struct sl_error *err);
// Parses FROM-TO, cut up in place at `dash`; either may be missing (then -1). `axis` is for messages.
enum sl_status sl_parse_range(const char *axis, char *text, char *dash, int *from_out, int *to_out,
                              struct sl_error *err);

// --- layers.c

int sl_layers_last(const struct sl_layers *layers); // -1 if empty

// --- axes.c

struct sl_axis {
    const char *name;
    struct sl_field field;
    unsigned flags;
    bool (*of_score)(const struct sl_score_traits *traits); // the scores that the axis applies to; NULL: all
    const char *help;
};
extern const struct sl_axis sl_axes[]; // ends with a NULL name

// Returns NULL if there is no such axis.
const struct sl_axis *sl_axis_find(const char *name);
// Writes the axis' value as text; returns buf. Two recipes have the same value exactly if they have the same text.
char *sl_axis_text(const struct sl_axis *axis, const struct sl_recipe *recipe, char *buf, size_t buf_bytes);
bool sl_axis_same(const struct sl_axis *axis, const struct sl_recipe *a, const struct sl_recipe *b);

// --- check.c

// Checks that the axes fit together, as far as possible without a model and a prompt; plan.c checks the rest.
enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err);

// --- canonical.c

// every_axis: also writes the axes that have their default value.
char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes);
