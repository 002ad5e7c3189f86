// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an evaluation as data: the recipes and the questions. From a JSON file (lab/eval/papers/), or from the
 *          options of a command.
 *
 *   {
 *     "title": "Locret, table 2",
 *     "budgets": ["5%", "20%", 512],                          values of {budget}; "5%" becomes 0.05
 *     "recipes": [{"name": "h2o", "recipe": "h2o,budget={budget}"}, "full"],   a text is its own name
 *     "tasks": ["niah-essay", ...], "lengths": [4096, 8192], "depths": [0, 0.5, 1], "samples": 20, "seed": 1,
 *     "datasets": ["longbench/hotpotqa",
 *                  {"name", "format", "file", "prompt", "metric", "max_new_tokens", "samples", "first_line"}],
 *     "max_prompt_tokens": 31500,                             longer prompts lose their middle (LongBench's rule)
 *     "claims": [{"paper": "CAOTE", "text": "...", "better": "h2o+caote", "worse": "h2o", "by": 0.0,
 *                 "tasks": [...], "needs": {"recipe": "full", "least": 0.5}}]
 *   }
 *
 * Cells are tasks times lengths times depths (none: anywhere), and data sets. A recipe without {budget} is asked
 * once; a recipe with it once per budget, of its own "budgets" if it has some. Several may have the same name, with
 * different budgets. A text among data sets is FORMAT/NAME, a task of a benchmark (lab/eval/tasks/benchmark.h); the
 * default file is FORMAT/NAME.jsonl.
 *
 * "full" is always asked, first: it is the baseline of the others. Members that are not listed above are rejected.
 */
#pragma once

#include "lab/eval/tasks/dataset.h"
#include "lab/eval/tasks/task.h"

#define SL_PLAN_MAX_RECIPES  512
#define SL_PLAN_MAX_CELLS    4096
#define SL_PLAN_RECIPE_BYTES 512

struct sl_plan_recipe {
    char *name;   // as shown in tables: "h2o"
    char *budget; // as written: "5%"; "" for recipes without {budget}
    char *recipe; // for engine/compress/recipe/recipe.h; {budget} is already replaced
};

// A column of a table.
struct sl_plan_cell {
    char *name;                 // "niah-essay", "hotpotqa"
    const struct sl_task *task; // NULL: a data set
    int64_t n_tokens;           // for a task
    double depth;               // for a task; negative: anywhere
    struct sl_dataset_config dataset;
    int64_t n_samples; // for a data set 0 means all
};

struct sl_plan_claim {
    char *paper, *text;
    char *better, *worse; // names of recipes; a claim holds per budget
    double by;            // better - worse >= by
    char **tasks;         // names of cells; none: all
    size_t n_tasks;
    double needs_least; // `needs`: the least mean score of "full" over these cells; otherwise the claim is not tested
};

struct sl_eval_plan {
    char *title;
    struct sl_plan_recipe *recipes;
    size_t n_recipes;
    struct sl_plan_cell *cells;
    size_t n_cells;
    struct sl_plan_claim *claims;
    size_t n_claims;
    uint64_t seed;
    int64_t max_prompt_tokens; // 0: the model's context
};

/*
 * Reads a plan. data_dir: the folder with the files of data sets; NULL: the plan's own folder. SL_ERR_INVALID names
 * the member, SL_ERR_NOT_FOUND the file. Does not check recipes (engine/compress/recipe/recipe.h does) or the
 * existence of data sets (sl_dataset_open() does).
 */
enum sl_status sl_eval_plan_read(const char *path, const char *data_dir, struct sl_eval_plan *plan_out,
                                 struct sl_error *err);
void sl_eval_plan_cleanup(struct sl_eval_plan *plan); // accepts one that is all zeros, and leaves it so

/*
 * Add to plans that are made from options, starting with a zeroed plan; arguments are copied. SL_ERR_EXISTS: the same
 * name and budget, or the same cell. SL_ERR_RANGE: too many, or too long.
 *
 * budget: "5%", "0.05" or "512" if the recipe has {budget}, otherwise "".
 */
enum sl_status sl_eval_plan_add_recipe(struct sl_eval_plan *plan, const char *name, const char *budget,
                                       const char *recipe, struct sl_error *err);
// Adds a task. SL_ERR_INVALID: a length or a depth that the task does not have.
enum sl_status sl_eval_plan_add_task(struct sl_eval_plan *plan, const struct sl_task *task, int64_t n_tokens,
                                     double depth, int64_t n_samples, struct sl_error *err);
enum sl_status sl_eval_plan_add_dataset(struct sl_eval_plan *plan, const struct sl_dataset_config *config,
                                        struct sl_error *err);
// Moves "full" to the front; adds it if it is missing.
enum sl_status sl_eval_plan_put_full_first(struct sl_eval_plan *plan, struct sl_error *err);
