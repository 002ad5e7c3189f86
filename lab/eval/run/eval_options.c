// SPDX-License-Identifier: Apache-2.0
// Purpose: makes a plan from options. See eval_options.h.
#include "lab/eval/run/eval_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/similar.h"
#include "engine/compress/recipe/recipe.h"
#include "lab/eval_model.h"

#define DEFAULT_SAMPLES 10
#define BUDGET_MARK     "{budget}"

// --- numbers and names ------------------------------------------------------------------------------------------

enum sl_status sl_eval_parse_numbers(const char *option, const char *text, int64_t least, int64_t most,
                                     int64_t **numbers_out, size_t *n_out, struct sl_error *err) {
    struct sl_list list = {0};
    enum sl_status status = sl_list_add(&list, text, ',', err);
    int64_t *numbers = status == SL_OK ? calloc(list.n + 1, sizeof *numbers) : NULL;
    if (status == SL_OK && !numbers) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    if (status == SL_OK && list.n == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "--%s: no number", option);
    }
    for (size_t i = 0; status == SL_OK && i < list.n; i++) {
        int used = -1;
        if (sscanf(list.items[i], "%18" SCNd64 "%n", &numbers[i], &used) != 1 || list.items[i][used] != '\0' ||
            numbers[i] < least || numbers[i] > most) {
            status = sl_fail(err, SL_ERR_INVALID, "--%s: '%s' is not a number from %" PRId64 " to %" PRId64, option,
                             list.items[i], least, most);
        }
    }
    size_t n = list.n;
    sl_list_cleanup(&list);
    if (status != SL_OK) {
        free(numbers);
        return status;
    }
    *numbers_out = numbers;
    *n_out = n;
    return SL_OK;
}

enum sl_status sl_eval_find_task(const char *name, const struct sl_task **task_out, struct sl_error *err) {
    const struct sl_task *task = sl_task_find(name);
    struct sl_similar meant = {.word = name};
    if (task) {
        *task_out = task;
        return SL_OK;
    }
    for (task = sl_tasks(); task->name; task++) {
        sl_similar_offer(&meant, task->name);
    }
    return sl_similar_fail(&meant, "task", err);
}

// --- recipes ----------------------------------------------------------------------------------------------------

static bool takes_budget(const char *text) {
    struct sl_recipe recipe;
    return strstr(text, BUDGET_MARK) || (!sl_recipe_names_budget(text) &&
                                         sl_recipe_parse(text, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe));
}

// Adds a recipe at a budget. The text contains {budget}, or the budget is appended. "h2o,budget={budget}" is named
// h2o; if more text follows {budget}, the text is the name.
static enum sl_status add_at_budget(struct sl_eval_plan *plan, const char *text, const char *budget,
                                    struct sl_error *err) {
    static const char behind[] = ",budget=" BUDGET_MARK;
    char name[SL_PLAN_RECIPE_BYTES], whole[SL_PLAN_RECIPE_BYTES];
    int n = snprintf(whole, sizeof whole, "%s%s", text, strstr(text, BUDGET_MARK) ? "" : behind);
    if (n >= (int)sizeof whole) {
        return sl_fail(err, SL_ERR_INVALID, "recipe %.60s...: more than %zu bytes", text, sizeof whole - 1);
    }
    snprintf(name, sizeof name, "%s", whole);
    if (strcmp(name + n - (sizeof behind - 1), behind) == 0) {
        name[n - (int)(sizeof behind - 1)] = '\0';
    }
    return sl_eval_plan_add_recipe(plan, name, budget, whole, err);
}

static enum sl_status add_recipe(struct sl_eval_plan *plan, const char *text, const struct sl_list *budgets,
                                 struct sl_error *err) {
    if (strstr(text, BUDGET_MARK) && budgets->n == 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe %.100s: " BUDGET_MARK " needs --budget", text);
    }
    if (budgets->n == 0 || !takes_budget(text)) {
        return sl_eval_plan_add_recipe(plan, text, "", text, err);
    }
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < budgets->n; i++) {
        status = add_at_budget(plan, text, budgets->items[i], err);
    }
    return status;
}

enum sl_status sl_eval_options_recipes(const struct sl_eval_options *options, struct sl_eval_plan *plan,
                                       struct sl_error *err) {
    struct sl_list recipes = {0}, budgets = {0};
    enum sl_status status = options->budgets ? sl_list_add(&budgets, options->budgets, ',', err) : SL_OK;
    for (int i = 0; status == SL_OK && i < options->recipes.n; i++) {
        status = sl_list_add(&recipes, options->recipes.items[i], ';', err);
    }
    for (size_t i = 0; status == SL_OK && i < recipes.n; i++) {
        if (strcmp(recipes.items[i], "presets") != 0) {
            status = add_recipe(plan, recipes.items[i], &budgets, err);
            continue;
        }
        for (const struct sl_preset *preset = sl_recipe_presets(); status == SL_OK && preset->name; preset++) {
            status = add_recipe(plan, preset->name, &budgets, err);
        }
    }
    sl_list_cleanup(&recipes);
    sl_list_cleanup(&budgets);
    return status == SL_OK ? sl_eval_plan_put_full_first(plan, err) : status;
}

// --- the plan ---------------------------------------------------------------------------------------------------

static enum sl_status add_tasks(const struct sl_eval_options *options, struct sl_eval_plan *plan,
                                struct sl_error *err) {
    struct sl_list names = {0};
    int64_t *lengths = NULL;
    size_t n_lengths = 0;
    enum sl_status status = sl_eval_parse_numbers("lengths", options->lengths, 1, INT32_MAX, &lengths, &n_lengths, err);
    bool all = strcmp(options->tasks, "all") == 0;
    for (const struct sl_task *task = sl_tasks(); status == SL_OK && all && task->name; task++) {
        status = sl_list_add(&names, task->name, ',', err);
    }
    status = status == SL_OK && !all ? sl_list_add(&names, options->tasks, ',', err) : status;
    int64_t samples = options->samples ? options->samples : DEFAULT_SAMPLES;
    for (size_t i = 0; status == SL_OK && i < names.n; i++) {
        const struct sl_task *task;
        status = sl_eval_find_task(names.items[i], &task, err);
        for (size_t l = 0; status == SL_OK && l < n_lengths; l++) {
            status = sl_eval_plan_add_task(plan, task, lengths[l], -1, samples, err);
        }
    }
    if (status == SL_OK && names.n == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "--tasks: no task");
    }
    sl_list_cleanup(&names);
    free(lengths);
    return status;
}

// Applies the options that may accompany a plan: they limit its size.
static enum sl_status read_plan(const struct sl_eval_options *options, struct sl_eval_plan *plan,
                                struct sl_error *err) {
    if (options->tasks || options->recipes.n > 0 || options->budgets) {
        return sl_fail(err, SL_ERR_INVALID, "--plan says what is asked: leave out --tasks, --recipe and --budget");
    }
    enum sl_status status = sl_eval_plan_read(options->plan, options->data, plan, err);
    for (size_t i = 0; status == SL_OK && options->samples && i < plan->n_cells; i++) {
        plan->cells[i].n_samples = plan->cells[i].dataset.max_samples = options->samples;
    }
    return status;
}

enum sl_status sl_eval_options_plan(const struct sl_eval_options *options, struct sl_eval_plan *plan_out,
                                    struct sl_error *err) {
    struct sl_eval_plan plan = {.seed = (uint64_t)options->seed};
    enum sl_status status;
    if (options->plan) {
        status = read_plan(options, &plan, err);
    } else if (options->tasks) {
        status = add_tasks(options, &plan, err);
        status = status == SL_OK ? sl_eval_options_recipes(options, &plan, err) : status;
    } else {
        status =
            sl_fail(err, SL_ERR_INVALID, "what shall be asked? Give --tasks A,B (--list lists them) or --plan FILE");
    }
    if (status != SL_OK) {
        sl_eval_plan_cleanup(&plan);
        return status;
    }
    if (options->max_prompt_tokens) {
        plan.max_prompt_tokens = options->max_prompt_tokens;
    }
    *plan_out = plan;
    return SL_OK;
}
