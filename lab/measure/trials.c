// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/trials.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/cli/progress.h"
#include "engine/job/job_recipe.h"

#define PRESETS_BUDGET "0.2"

static enum sl_status check_budget(const char *budget, struct sl_error *err) {
    struct sl_recipe recipe;
    char text[SL_RECIPE_TEXT_BYTES];
    snprintf(text, sizeof text, "h2o,budget=%.40s", budget);
    return sl_recipe_parse(text, &recipe, err);
}

static enum sl_status add_presets(const char *budget, struct sl_list *list, struct sl_error *err) {
    struct sl_recipe recipe;
    char text[SL_RECIPE_TEXT_BYTES];
    enum sl_status status = SL_OK;
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name && status == SL_OK; preset++) {
        bool evicts = sl_recipe_parse(preset->name, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe);
        snprintf(text, sizeof text, evicts ? "%s,budget=%s" : "%s", preset->name, budget);
        status = sl_list_add(list, text, '\0', err);
    }
    return status;
}

// Appends the budget to a named recipe that evicts and has none.
static enum sl_status give_budget(char **recipe_text, const char *budget, struct sl_error *err) {
    struct sl_recipe recipe;
    struct sl_error why = {0};
    SL_FAIL_IF(sl_recipe_parse(*recipe_text, &recipe, &why) != SL_OK, err, SL_ERR_INVALID, "%.100s: %s", *recipe_text,
               why.text);
    if (budget == NULL || !sl_recipe_evicts(&recipe) || sl_recipe_names_budget(*recipe_text)) {
        return SL_OK;
    }
    char *text;
    SL_FAIL_IF(asprintf(&text, "%s,budget=%s", *recipe_text, budget) < 0, err, SL_ERR_EXHAUSTED, "out of memory");
    free(*recipe_text);
    *recipe_text = text;
    return SL_OK;
}

enum sl_status sl_eval_recipes(const struct sl_option_list *named, const char *budget, struct sl_list *list,
                               struct sl_error *err) {
    enum sl_status status = budget ? check_budget(budget, err) : SL_OK;
    for (int i = 0; i < named->n && status == SL_OK; i++) {
        status = sl_list_add(list, named->items[i], ';', err);
    }
    if (status == SL_OK && list->n == 0) {
        return add_presets(budget ? budget : PRESETS_BUDGET, list, err);
    }
    for (size_t i = 0; i < list->n && status == SL_OK; i++) {
        status = give_budget(&list->items[i], budget, err);
    }
    return status;
}

enum sl_status sl_trial_begin(const struct sl_trials *trials, const struct sl_trial *trial,
                              const struct sl_model_config *model, struct sl_recipe *recipe_out, struct sl_error *err) {
    return trials->stopped ? SL_ERR_CANCELLED : sl_job_recipe(trial->text, model, recipe_out, err);
}

enum sl_status sl_trial_end(struct sl_trials *trials, struct sl_trial *trial, enum sl_status status,
                            const struct sl_error *why, struct sl_error *err) {
    trials->n_measured += status == SL_OK;
    if (status == SL_ERR_CANCELLED) {
        trials->stopped = true;
        snprintf(trial->reason, sizeof trial->reason, "stopped before it was measured");
    } else if (status == SL_ERR_INVALID || status == SL_ERR_PRECONDITION || status == SL_ERR_UNSUPPORTED) {
        snprintf(trial->reason, sizeof trial->reason, "%s", why->text);
    } else if (status != SL_OK) {
        return sl_fail(err, status, "%.100s: %s", trial->text, why->text);
    }
    return SL_OK;
}

enum sl_status sl_trials_draw(struct sl_trials *trials, int64_t done, int64_t total) {
    sl_progress_show(trials->phase, done, total);
    return sl_signals_check(&trials->signals, NULL);
}

enum sl_status sl_trials_check(const struct sl_trials *trials, struct sl_error *err) {
    SL_FAIL_IF(trials->stopped, err, SL_ERR_CANCELLED, "stopped by a signal: %zu of %zu recipes were measured",
               trials->n_measured, trials->n);
    return SL_OK;
}
