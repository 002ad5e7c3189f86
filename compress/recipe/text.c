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

// --- lists for messages ------------------------------------------------------------------------------------------

struct list {
    char text[320];
    size_t length;
};

static void list_add(struct list *list, const char *name) {
    int n =
        snprintf(list->text + list->length, sizeof list->text - list->length, "%s%s", list->length ? ", " : "", name);
    if (n > 0 && list->length + (size_t)n < sizeof list->text) {
        list->length += (size_t)n;
    }
}

static struct list list_values(const struct sl_axis_value *values) {
    struct list list = {0};
    for (const struct sl_axis_value *v = values; v->name != NULL; v++) {
        list_add(&list, v->name);
    }
    return list;
}

static struct list list_presets(void) {
    struct list list = {0};
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        list_add(&list, p->name);
    }
    return list;
}

// --- words -------------------------------------------------------------------------------------------------------

static enum sl_status apply_named(struct sl_recipe *recipe, const struct sl_axis *axis, char *text,
                                  struct sl_error *err) {
    // "name", "name:argument" or "name/argument"
    size_t name_length = strcspn(text, ":/");
    const struct sl_axis_value *value = axis->values;
    while (value->name != NULL &&
           !(strlen(value->name) == name_length && strncmp(value->name, text, name_length) == 0)) {
        value++;
    }
    if (value->name == NULL) {
        struct list all = list_values(axis->values);
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s is unknown; values: %s", axis->name, text, all.text);
    }
    const char *argument = text[name_length] == '\0' ? NULL : text + name_length + 1;
    char separator = axis->values == sl_names_place ? '/' : ':';
    if (value->argument == SL_ARGUMENT && argument == NULL) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s: expected %s%c%s", axis->name, text, value->name,
                       separator, separator == '/' ? "LAYERS, e.g. offload/1- or offload/sparse" : "NUMBER");
    }
    if (argument != NULL && (value->argument == SL_NO_ARGUMENT || text[name_length] != separator)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s: %c may not follow %s", axis->name, text,
                       text[name_length], value->name);
    }
    return axis->apply != NULL ? axis->apply(recipe, value, argument, err) : SL_OK;
}

static enum sl_status apply_axis(struct sl_recipe *recipe, const char *name, char *text, struct sl_error *err) {
    for (const struct sl_axis *axis = sl_recipe_axes; axis->name != NULL; axis++) {
        if (strcmp(axis->name, name) != 0) {
            continue;
        }
        if (axis->parse != NULL) {
            return axis->parse(recipe, text, err);
        }
        if (axis->clear != NULL) {
            axis->clear(recipe);
        }
        enum sl_status status = SL_OK;
        for (char *rest = text; status == SL_OK && rest != NULL;) {
            char *part = axis->joined ? strsep(&rest, "+") : rest;
            status = apply_named(recipe, axis, part, err);
            rest = axis->joined ? rest : NULL;
        }
        return status;
    }
    struct list names = {0};
    for (const struct sl_axis *axis = sl_recipe_axes; axis->name != NULL; axis++) {
        list_add(&names, axis->name);
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: there is no axis %.40s; axes: %s", name, names.text);
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
        struct list all = list_presets();
        return sl_fail(err, SL_ERR_INVALID, "recipe: %.40s is neither a preset nor axis=value; presets: %s",
                       *name ? name : "an empty word", all.text);
    }
    struct sl_recipe fresh = sl_recipe_defaults();
    fresh.seed = recipe->seed;
    fresh.chunk_tokens = recipe->chunk_tokens;
    fresh.format = recipe->format;
    memcpy(fresh.ranges, recipe->ranges, sizeof fresh.ranges);
    fresh.n_ranges = recipe->n_ranges;
    fresh.dense_auto = recipe->dense_auto;
    fresh.dense_format = recipe->dense_format;
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
    struct sl_recipe recipe = sl_recipe_defaults();
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
