// SPDX-License-Identifier: Apache-2.0
// Purpose: see eval_recipes.h.
#include "lab/measure/eval_recipes.h"

#include <stdio.h>

#include "compress/recipe/recipe.h"

static enum sl_status add_presets(const char *budget, struct sl_list *list, struct sl_error *err) {
    struct sl_recipe recipe;
    char text[SL_RECIPE_TEXT_BYTES];
    snprintf(text, sizeof text, "h2o,budget=%.40s", budget); // is it a budget?
    enum sl_status status = sl_recipe_parse(text, &recipe, err);
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name && status == SL_OK; preset++) {
        bool evicts = sl_recipe_parse(preset->name, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe);
        snprintf(text, sizeof text, evicts ? "%s,budget=%s" : "%s", preset->name, budget);
        status = sl_list_add(list, text, '\0', err);
    }
    return status;
}

enum sl_status sl_eval_recipes(const struct sl_option_list *named, const char *budget, struct sl_list *list,
                               struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < named->n && status == SL_OK; i++) {
        status = sl_list_add(list, named->items[i], ';', err);
    }
    if (status == SL_OK && list->n == 0) {
        return add_presets(budget, list, err);
    }
    for (size_t i = 0; i < list->n && status == SL_OK; i++) {
        struct sl_recipe recipe;
        struct sl_error why = {0};
        if (sl_recipe_parse(list->items[i], &recipe, &why) != SL_OK) {
            status = sl_fail(err, SL_ERR_INVALID, "%.100s: %s", list->items[i], why.text);
        }
    }
    return status;
}
