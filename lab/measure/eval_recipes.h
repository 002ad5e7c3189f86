// SPDX-License-Identifier: Apache-2.0
// Purpose: the recipes that an evaluation compares: those that were asked for, or every preset.
#pragma once

#include "lab/eval_model.h"

/*
 * The texts of all recipes into *list: those of the options, each of which may be several joined by ';', or where there is
 * none every preset. `budget` is that of all that evict and name none: "h2o" becomes "h2o,budget=0.1". NULL: presets get
 * 0.2, and recipes that were named stay as they are. SL_ERR_INVALID: a recipe that was named, or the budget, cannot be
 * read. (With this budget a recipe may not be: that is for its row of the results to say.)
 */
enum sl_status sl_eval_recipes(const struct sl_option_list *named, const char *budget, struct sl_list *list,
                               struct sl_error *err);
