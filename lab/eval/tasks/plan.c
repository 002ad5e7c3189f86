// SPDX-License-Identifier: Apache-2.0
// Purpose: the contents of an evaluation: recipes and cells, added one by one. See plan.h; lab/eval/tasks/plan_read.c
// reads files.
#include "lab/eval/tasks/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum sl_status no_memory(struct sl_error *err) {
    return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a plan");
}

// --- recipes -----------------------------------------------------------------------------------------------------

// Converts "5%" to 0.05; copies slots and ratios.
static enum sl_status budget_value(const char *budget, char *value, size_t value_bytes, struct sl_error *err) {
    char *end;
    double number = strtod(budget, &end);
    bool percent = strcmp(end, "%") == 0, whole = strspn(budget, "0123456789") == strlen(budget);
    if (end == budget || (*end != '\0' && !percent) || !(number > 0) || (percent && number >= 100) ||
        (!percent && !whole && number >= 1) || strlen(budget) > 20) {
        return sl_fail(err, SL_ERR_INVALID,
                       "a budget must be slots (512), or a share of the prompt (\"5%%\" or 0.05), not \"%.32s\"",
                       budget);
    }
    if (percent) {
        snprintf(value, value_bytes, "%.12g", number / 100);
    } else {
        snprintf(value, value_bytes, "%s", budget);
    }
    return SL_OK;
}

#define BUDGET_MARK "{budget}"

// Writes the recipe with every {budget} replaced by its budget.
static enum sl_status fill_budget(const char *name, const char *budget, const char *recipe, char *text,
                                  struct sl_error *err) {
    char value[32] = "";
    bool wants = strstr(recipe, BUDGET_MARK);
    if (wants != (*budget != '\0')) {
        return sl_fail(err, SL_ERR_INVALID,
                       wants ? "recipe %.64s has a place for {budget}, and no budget is given"
                             : "recipe %.64s has no place for a budget: write budget={budget}",
                       name);
    }
    enum sl_status status = wants ? budget_value(budget, value, sizeof value, err) : SL_OK;
    size_t used = 0;
    while (status == SL_OK && *recipe) {
        bool here = strncmp(recipe, BUDGET_MARK, sizeof BUDGET_MARK - 1) == 0;
        size_t n = here ? strlen(value) : 1;
        if (used + n >= SL_PLAN_RECIPE_BYTES) {
            return sl_fail(err, SL_ERR_RANGE, "recipe %.64s is longer than %d bytes", name, SL_PLAN_RECIPE_BYTES - 1);
        }
        memcpy(text + used, here ? value : recipe, n);
        used += n;
        recipe += here ? sizeof BUDGET_MARK - 1 : 1;
    }
    text[used] = '\0';
    return status;
}

static void free_recipe(struct sl_plan_recipe *recipe) {
    free(recipe->name);
    free(recipe->budget);
    free(recipe->recipe);
}

enum sl_status sl_eval_plan_add_recipe(struct sl_eval_plan *plan, const char *name, const char *budget,
                                       const char *recipe, struct sl_error *err) {
    char text[SL_PLAN_RECIPE_BYTES];
    if (*name == '\0') {
        return sl_fail(err, SL_ERR_INVALID, "a recipe needs a name");
    }
    enum sl_status status = fill_budget(name, budget, recipe, text, err);
    if (status != SL_OK) {
        return status;
    }
    if (plan->n_recipes == SL_PLAN_MAX_RECIPES) {
        return sl_fail(err, SL_ERR_RANGE, "a plan has at most %d recipes, every budget counted", SL_PLAN_MAX_RECIPES);
    }
    for (size_t i = 0; i < plan->n_recipes; i++) {
        if (strcmp(plan->recipes[i].name, name) == 0 && strcmp(plan->recipes[i].budget, budget) == 0) {
            return sl_fail(err, SL_ERR_EXISTS, "recipe %.64s is there twice%s%s; give one of them another name", name,
                           *budget ? " at budget " : "", budget);
        }
    }
    struct sl_plan_recipe *more = realloc(plan->recipes, (plan->n_recipes + 1) * sizeof *more);
    if (!more) {
        return no_memory(err);
    }
    plan->recipes = more;
    struct sl_plan_recipe added = {strdup(name), strdup(budget), strdup(text)};
    if (!added.name || !added.budget || !added.recipe) {
        free_recipe(&added);
        return no_memory(err);
    }
    more[plan->n_recipes++] = added;
    return SL_OK;
}

enum sl_status sl_eval_plan_put_full_first(struct sl_eval_plan *plan, struct sl_error *err) {
    size_t at = 0;
    while (at < plan->n_recipes && (strcmp(plan->recipes[at].name, "full") != 0 || *plan->recipes[at].budget)) {
        at++;
    }
    enum sl_status status = at < plan->n_recipes ? SL_OK : sl_eval_plan_add_recipe(plan, "full", "", "full", err);
    if (status == SL_OK) {
        struct sl_plan_recipe full = plan->recipes[at];
        memmove(plan->recipes + 1, plan->recipes, at * sizeof full);
        plan->recipes[0] = full;
    }
    return status;
}

// --- cells -------------------------------------------------------------------------------------------------------

static void free_cell(struct sl_plan_cell *cell) {
    free(cell->name);
    free((char *)cell->dataset.name); // a plan owns copies
    free((char *)cell->dataset.path);
    free((char *)cell->dataset.format);
    free((char *)cell->dataset.prompt);
    free((char *)cell->dataset.metric);
}

static bool same_cell(const struct sl_plan_cell *a, const struct sl_plan_cell *b) {
    return strcmp(a->name, b->name) == 0 && a->task == b->task && a->n_tokens == b->n_tokens && a->depth == b->depth;
}

// Adds the cell and takes ownership of its members, on failure too.
static enum sl_status add_cell(struct sl_eval_plan *plan, struct sl_plan_cell *cell, struct sl_error *err) {
    enum sl_status status = SL_OK;
    struct sl_plan_cell *more = NULL;
    if (plan->n_cells == SL_PLAN_MAX_CELLS) {
        status = sl_fail(err, SL_ERR_RANGE, "a plan has at most %d cells: tasks times lengths times depths, data sets",
                         SL_PLAN_MAX_CELLS);
    }
    for (size_t i = 0; status == SL_OK && i < plan->n_cells; i++) {
        if (same_cell(&plan->cells[i], cell)) {
            status = sl_fail(err, SL_ERR_EXISTS, "%s is there twice", cell->name);
        }
    }
    if (status == SL_OK) {
        more = realloc(plan->cells, (plan->n_cells + 1) * sizeof *more);
        status = more ? SL_OK : no_memory(err);
    }
    if (status == SL_OK) {
        plan->cells = more;
        more[plan->n_cells++] = *cell;
    } else {
        free_cell(cell);
    }
    return status;
}

enum sl_status sl_eval_plan_add_task(struct sl_eval_plan *plan, const struct sl_task *task, int64_t n_tokens,
                                     double depth, int64_t n_samples, struct sl_error *err) {
    if (n_tokens < task->min_tokens || n_tokens > SL_TASK_MAX_TOKENS) {
        return sl_fail(err, SL_ERR_INVALID, "%s has prompts of %d to %d tokens, not of %" PRId64, task->name,
                       task->min_tokens, SL_TASK_MAX_TOKENS, n_tokens);
    }
    if (depth > 1 || depth != depth) {
        return sl_fail(err, SL_ERR_INVALID, "a depth is from 0, the beginning, to 1, the end, not %g", depth);
    }
    if (depth >= 0 && !task->has_depth) {
        return sl_fail(err, SL_ERR_INVALID, "%s does not ask about one place: it cannot be put at a depth", task->name);
    }
    if (n_samples < 1) {
        return sl_fail(err, SL_ERR_INVALID, "%s needs 1 sample or more, not %" PRId64, task->name, n_samples);
    }
    struct sl_plan_cell cell = {.name = strdup(task->name),
                                .task = task,
                                .n_tokens = n_tokens,
                                .depth = depth < 0 ? -1 : depth,
                                .n_samples = n_samples};
    return cell.name ? add_cell(plan, &cell, err) : no_memory(err);
}

enum sl_status sl_eval_plan_add_dataset(struct sl_eval_plan *plan, const struct sl_dataset_config *config,
                                        struct sl_error *err) {
    enum sl_status status = sl_dataset_check(config, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_plan_cell cell = {
        .name = strdup(config->name), .depth = -1, .n_samples = config->max_samples, .dataset = *config};
    cell.dataset.name = strdup(config->name);
    cell.dataset.path = strdup(config->path);
    cell.dataset.format = strdup(config->format);
    cell.dataset.prompt = config->prompt ? strdup(config->prompt) : NULL;
    cell.dataset.metric = config->metric ? strdup(config->metric) : NULL;
    if (!cell.name || !cell.dataset.name || !cell.dataset.path || !cell.dataset.format ||
        (config->prompt && !cell.dataset.prompt) || (config->metric && !cell.dataset.metric)) {
        free_cell(&cell);
        return no_memory(err);
    }
    return add_cell(plan, &cell, err);
}

// -----------------------------------------------------------------------------------------------------------------

static void free_claim(struct sl_plan_claim *claim) {
    free(claim->paper);
    free(claim->text);
    free(claim->better);
    free(claim->worse);
    for (size_t i = 0; i < claim->n_tasks; i++) {
        free(claim->tasks[i]);
    }
    free(claim->tasks);
}

void sl_eval_plan_cleanup(struct sl_eval_plan *plan) {
    free(plan->title);
    for (size_t i = 0; i < plan->n_recipes; i++) {
        free_recipe(&plan->recipes[i]);
    }
    for (size_t i = 0; i < plan->n_cells; i++) {
        free_cell(&plan->cells[i]);
    }
    for (size_t i = 0; i < plan->n_claims; i++) {
        free_claim(&plan->claims[i]);
    }
    free(plan->recipes);
    free(plan->cells);
    free(plan->claims);
    *plan = (struct sl_eval_plan){0};
}
