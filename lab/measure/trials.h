// SPDX-License-Identifier: Apache-2.0
// Purpose: the recipes that an evaluation compares, the named ones or every preset, and how far it has come with them.
#pragma once

#include "client/cli/tool.h"
#include "lab/eval_model.h"
#include "engine/compress/recipe/recipe.h"

/*
 * Writes the texts of all recipes into *list: those of the options, each of which may contain several joined by ';',
 * or every preset if there are none. `budget` applies to recipes that evict and name none: "h2o" becomes
 * "h2o,budget=0.1". NULL: presets get 0.2, and named recipes are unchanged. SL_ERR_INVALID: a named recipe, or the
 * budget, cannot be parsed. (A recipe may be invalid with this budget: then its row of the results has the reason.)
 */
enum sl_status sl_eval_recipes(const struct sl_option_list *named, const char *budget, struct sl_list *list,
                               struct sl_error *err);

// One recipe.
struct sl_trial {
    const char *text; // as requested
    char reason[384]; // reason why it could not run; "" if it ran
};

struct sl_trials {
    struct sl_list recipes;
    size_t n, n_measured;
    struct sl_signals signals;
    bool stopped; // by a signal: the results so far are shown
    char phase[64];
};

// Makes the recipe of a trial for the model. SL_ERR_CANCELLED: the evaluation was stopped.
enum sl_status sl_trial_begin(const struct sl_trials *trials, const struct sl_trial *trial,
                              const struct sl_model_config *model, struct sl_recipe *recipe_out, struct sl_error *err);

// Ends a trial, which succeeded or failed with `why`. A recipe that does not fit the model or the prompt, or that was stopped,
// gets a reason; other failures end the evaluation.
enum sl_status sl_trial_end(struct sl_trials *trials, struct sl_trial *trial, enum sl_status status,
                            const struct sl_error *why, struct sl_error *err);

// Draws the progress of the phase, and polls for signals.
enum sl_status sl_trials_draw(struct sl_trials *trials, int64_t done, int64_t total);

// Fails after a signal.
enum sl_status sl_trials_check(const struct sl_trials *trials, struct sl_error *err);
