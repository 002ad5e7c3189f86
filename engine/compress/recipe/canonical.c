// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes recipes as canonical text, one text per recipe, which parses to the same recipe; and computes the
 *          fingerprint.
 *
 * Design: a preset's name stands for all axes that presets set. Other axes that are not at their default are written
 *         in the order of the table, those that apply to any method last. The long form writes every axis.
 */
#include <string.h>

#include "base/hash.h"
#include "engine/compress/recipe/internal.h"

// Returns whether all axes that a preset sets are equal, except the budget.
static bool same_method(const struct sl_recipe *a, const struct sl_recipe *b) {
    bool same = sl_recipe_evicts(a) == sl_recipe_evicts(b);
    for (const struct sl_axis *axis = sl_axes; same && axis->name != NULL; axis++) {
        same = axis->flags & SL_ANY_METHOD || strcmp(axis->name, "budget") == 0 || sl_axis_same(axis, a, b);
    }
    return same;
}

// Returns the preset of this method; of several, the one of that format. NULL if there is none.
static const char *preset_of(const struct sl_recipe *recipe, struct sl_recipe *preset_out) {
    const char *name = NULL;
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        struct sl_recipe preset;
        if (sl_recipe_parse(p->text, &preset, NULL) == SL_OK && same_method(&preset, recipe) &&
            (name == NULL || sl_axis_same(sl_axis_find("format"), &preset, recipe))) {
            name = p->name;
            *preset_out = preset;
        }
    }
    return name;
}

enum form {
    SHORT,  // axes that are not at their default
    LONG,   // every axis
    CACHED, // every axis; axes that do not affect the cache are written at their default
};

static void put_axes(const struct sl_recipe *recipe, const struct sl_recipe *usual, enum form form, unsigned any_method,
                     struct sl_text_buffer *out) {
    char text[SL_RECIPE_TEXT_BYTES];
    for (const struct sl_axis *axis = sl_axes; axis->name != NULL; axis++) {
        bool idle = axis->flags & (SL_UNCACHED | SL_NEEDS_OFFLOAD) && form == CACHED && !sl_recipe_evicts(recipe);
        const struct sl_recipe *from = idle ? &sl_recipe_default : recipe;
        bool applies =
            (axis->flags & SL_ANY_METHOD) == any_method && (!(axis->flags & SL_NEEDS_OFFLOAD) || from->topk > 0);
        sl_axis_text(axis, from, text, sizeof text);
        if (applies && *text != '\0' && (form != SHORT || out->length == 0 || !sl_axis_same(axis, from, usual))) {
            sl_text_buffer_put(out, "%s%s=%s", out->length > 0 ? "," : "", axis->name, text);
        }
    }
}

static char *write_recipe(const struct sl_recipe *recipe, enum form form, char *buf, size_t buf_bytes) {
    struct sl_text_buffer out = {buf, buf_bytes, 0};
    struct sl_recipe usual;
    const char *name = form == SHORT ? preset_of(recipe, &usual) : NULL;
    if (name != NULL) {
        sl_text_buffer_put(&out, "%s", name);
    } else {
        usual = sl_recipe_default;
        usual.keep = recipe->topk;
    }
    put_axes(recipe, &usual, form, 0, &out);
    put_axes(recipe, &usual, form, SL_ANY_METHOD, &out);
    return buf;
}

char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes) {
    return write_recipe(recipe, every_axis ? LONG : SHORT, buf, buf_bytes);
}

char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes) {
    return write_recipe(recipe, SHORT, buf, buf_bytes);
}

uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe) {
    // All axes are written out, so that a new default never changes the meaning of an old fingerprint. The seed is
    // the version of the recipes' meaning: increase it when the same text produces a different cache.
    char text[SL_RECIPE_TEXT_BYTES];
    write_recipe(recipe, CACHED, text, sizeof text);
    return sl_hash(text, strlen(text), 2);
}
