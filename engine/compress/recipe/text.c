// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: parses recipes from text: words, presets, axes.
 *
 * Design: unknown names are rejected with the list of known ones.
 * Trust: text comes from clients. It is checked for length and printable characters before anything else reads it.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/similar.h"
#include "engine/compress/recipe/internal.h"

// Writes " (did you mean h2o?)".
static const char *ask(const struct sl_similar *meant, char hint_out[48]) {
    hint_out[0] = '\0';
    if (meant->name) {
        snprintf(hint_out, 48, " (did you mean %.24s?)", meant->name);
    }
    return hint_out;
}

static enum sl_status apply_axis(struct sl_recipe *recipe, const char *name, const char *text, struct sl_error *err) {
    const struct sl_axis *axis = sl_axis_find(name);
    if (axis != NULL) {
        char what[24];
        snprintf(what, sizeof what, "%s=", name);
        return axis->field.kind->parse(&axis->field, what, text, recipe, err);
    }
    char names[256], hint[48];
    struct sl_text_buffer all = {names, sizeof names, 0};
    struct sl_similar meant = {.word = name};
    for (axis = sl_axes; axis->name != NULL; axis++) {
        sl_text_buffer_join(&all, ", ", axis->name);
        sl_similar_offer(&meant, axis->name);
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: there is no axis %.40s%s; axes: %s", name, ask(&meant, hint), names);
}

static enum sl_status apply_text(struct sl_recipe *recipe, const char *text, struct sl_error *err);

// Applies a preset. It defines the method as a whole: it sets every axis, also those that its text does not name,
// except those that apply to any method.
static enum sl_status apply_preset(struct sl_recipe *recipe, const char *name, struct sl_error *err) {
    const struct sl_preset *preset = sl_recipe_presets();
    while (preset->name != NULL && strcmp(preset->name, name) != 0) {
        preset++;
    }
    if (preset->name == NULL) {
        char names[320], hint[48];
        struct sl_text_buffer all = {names, sizeof names, 0};
        struct sl_similar meant = {.word = name};
        for (preset = sl_recipe_presets(); preset->name != NULL; preset++) {
            sl_text_buffer_join(&all, ", ", preset->name);
            sl_similar_offer(&meant, preset->name);
        }
        return sl_fail(err, SL_ERR_INVALID, "recipe: %.40s is neither a preset nor axis=value%s; presets: %s",
                       *name ? name : "an empty word", ask(&meant, hint), names);
    }
    struct sl_recipe fresh = sl_recipe_default;
    for (const struct sl_axis *axis = sl_axes; axis->name != NULL; axis++) {
        if (axis->flags & SL_ANY_METHOD) {
            sl_field_copy(&axis->field, &fresh, recipe);
        }
    }
    *recipe = fresh;
    return apply_text(recipe, preset->text, err);
}

static enum sl_status apply_text(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    char copy[SL_RECIPE_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    enum sl_status status = SL_OK;
    for (char *rest = copy; status == SL_OK && rest != NULL;) {
        char *word = strsep(&rest, ",");
        char *equals = strchr(word, '=');
        if (equals == NULL) {
            status = apply_preset(recipe, word, err);
        } else {
            *equals = '\0';
            status = apply_axis(recipe, word, equals + 1, err);
        }
    }
    return status;
}

// Converts to lower case, and removes spaces around commas.
static enum sl_status make_plain(const char *text, char plain_out[SL_RECIPE_TEXT_BYTES], struct sl_error *err) {
    size_t n = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        size_t spaces = strspn(text + i, " ");
        bool apart = n == 0 || plain_out[n - 1] == ',' || text[i + spaces] == ',' || text[i + spaces] == '\0';
        if (spaces > 0 && apart) {
            i += spaces - 1;
            continue;
        }
        SL_FAIL_IF(text[i] < '!' || text[i] > '~', err, SL_ERR_INVALID,
                   "recipe: byte 0x%02x at offset %zu: a recipe is words joined by commas", (unsigned char)text[i], i);
        plain_out[n++] = (char)tolower((unsigned char)text[i]);
    }
    plain_out[n] = '\0';
    return n > 0 ? SL_OK : sl_fail(err, SL_ERR_INVALID, "recipe: the text is empty; e.g. full, or h2o,budget=1024");
}

enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err) {
    size_t length = strnlen(text, SL_RECIPE_TEXT_BYTES);
    SL_FAIL_IF(length == 0 || length == SL_RECIPE_TEXT_BYTES, err, SL_ERR_INVALID,
               "recipe: %s; e.g. full, or h2o,budget=1024",
               length == 0 ? "the text is empty" : "the text is longer than 2047 bytes");
    char plain[SL_RECIPE_TEXT_BYTES];
    struct sl_recipe recipe = sl_recipe_default;
    enum sl_status status = make_plain(text, plain, err);
    SL_THEN(status, apply_text(&recipe, plain, err));
    if (sl_recipe_offloads(&recipe)) {
        recipe.topk = recipe.topk > 0 ? recipe.topk : SL_RECIPE_DEFAULT_TOPK;
        recipe.keep = recipe.keep != SL_RECIPE_KEEP_TOPK ? recipe.keep : recipe.topk;
        recipe.channels = recipe.channels > 0 ? recipe.channels : SL_RECIPE_DEFAULT_CHANNELS;
    }
    SL_THEN(status, sl_recipe_check(&recipe, err));
    if (status == SL_OK) {
        *recipe_out = recipe;
    }
    return status;
}
