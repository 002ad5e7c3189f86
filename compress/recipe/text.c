// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipes are read from text: words, presets, axes.
 *
 * Design: what there is not is answered with what there is.
 * Trust: text comes from clients. It is bounded and printable before anything else looks at it.
 */
#include <stdio.h>
#include <string.h>

#include "compress/recipe/internal.h"

static enum sl_status apply_axis(struct sl_recipe *recipe, const char *name, const char *text, struct sl_error *err) {
    const struct sl_axis *axis = sl_axis_find(name);
    if (axis != NULL) {
        char what[24];
        snprintf(what, sizeof what, "%s=", name);
        return axis->field.kind->parse(&axis->field, what, text, recipe, err);
    }
    char names[256];
    struct sl_text all = {names, sizeof names, 0};
    for (axis = sl_axes; axis->name != NULL; axis++) {
        sl_text_join(&all, ", ", axis->name);
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: there is no axis %.40s; axes: %s", name, names);
}

static enum sl_status apply_text(struct sl_recipe *recipe, const char *text, struct sl_error *err);

// A preset says what stays and what is looked at, as a whole: it sets every axis, named in its text or not, but those that
// go with any method.
static enum sl_status apply_preset(struct sl_recipe *recipe, const char *name, struct sl_error *err) {
    const struct sl_preset *preset = sl_recipe_presets();
    while (preset->name != NULL && strcmp(preset->name, name) != 0) {
        preset++;
    }
    if (preset->name == NULL) {
        char names[320];
        struct sl_text all = {names, sizeof names, 0};
        for (preset = sl_recipe_presets(); preset->name != NULL; preset++) {
            sl_text_join(&all, ", ", preset->name);
        }
        return sl_fail(err, SL_ERR_INVALID, "recipe: %.40s is neither a preset nor axis=value; presets: %s",
                       *name ? name : "an empty word", names);
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

enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err) {
    size_t length = strnlen(text, SL_RECIPE_TEXT_BYTES);
    if (length == 0 || length == SL_RECIPE_TEXT_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s; e.g. full, or h2o,budget=1024",
                       length == 0 ? "the text is empty" : "the text is longer than 2047 bytes");
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '!' || text[i] > '~') {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: byte 0x%02x at offset %zu: a recipe is words joined by commas, without spaces",
                           (unsigned char)text[i], i);
        }
    }
    struct sl_recipe recipe = sl_recipe_default;
    enum sl_status status = apply_text(&recipe, text, err);
    if (sl_recipe_offloads(&recipe)) {
        recipe.topk = recipe.topk > 0 ? recipe.topk : SL_RECIPE_DEFAULT_TOPK;
        recipe.keep = recipe.keep != SL_RECIPE_KEEP_TOPK ? recipe.keep : recipe.topk;
        recipe.channels = recipe.channels > 0 ? recipe.channels : SL_RECIPE_DEFAULT_CHANNELS;
    }
    if (status == SL_OK) {
        status = sl_recipe_check(&recipe, err);
    }
    if (status == SL_OK) {
        *recipe_out = recipe;
    }
    return status;
}
