// SPDX-License-Identifier: Apache-2.0
// Purpose: the recipes that an evaluation compares: the named ones, or every preset.
#pragma once

#include "lab/eval_model.h"

/*
 * Writes the texts of all recipes into *list: those of the options, each of which may contain several joined by ';',
 * or every preset if there are none. `budget` applies to recipes that evict and name none: "h2o" becomes
 * "h2o,budget=0.1". NULL: presets get 0.2, and named recipes are unchanged. SL_ERR_INVALID: a named recipe, or the
 * budget, cannot be parsed. (A recipe may be invalid with this budget: then its row of the results has the reason.)
 */
enum sl_status sl_eval_recipes(const struct sl_option_list *named, const char *budget, struct sl_list *list,
                               struct sl_error *err);
