// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an evaluation as data: which recipes, asked what. A JSON file (lab/eval/papers/), or the options of a command.
 *
 *   {
 *     "title": "Locret, table 2",
 *     "budgets": ["5%", "20%", 512],                          what {budget} stands for; "5%" is written as 0.05
 *     "recipes": [{"name": "h2o", "recipe": "h2o,budget={budget}"}, "full"],   a text is its own name
 *     "tasks": ["niah-essay", ...], "lengths": [4096, 8192], "depths": [0, 0.5, 1], "samples": 20, "seed": 1,
 *     "datasets": ["longbench/hotpotqa",
 *                  {"name", "format", "file", "prompt", "metric", "max_new_tokens", "samples", "first_line"}],
 *     "max_prompt_tokens": 31500,                             longer prompts lose their middle (LongBench's rule)
 *     "claims": [{"paper": "CAOTE", "text": "...", "better": "h2o+caote", "worse": "h2o", "by": 0.0,
 *                 "tasks": [...], "needs": {"recipe": "full", "least": 0.5}}]
 *   }
 *
 * Cells are tasks times lengths times depths (none: anywhere), and data sets. A recipe without {budget} is asked once; one
 * with it once a budget, of its own "budgets" where it has some. Several may have one name, for different budgets. A text
 * among data sets is FORMAT/NAME, a task of a benchmark (lab/eval/tasks/benchmark.h); a file that is not named is FORMAT/NAME.jsonl.
 *
 * "full" is always asked, first: it is what the others are compared with. Members that are not above are refused.
 */
#pragma once

#include "lab/eval/tasks/dataset.h"
#include "lab/eval/tasks/task.h"

#define SL_PLAN_MAX_RECIPES  512
#define SL_PLAN_MAX_CELLS    4096
#define SL_PLAN_RECIPE_BYTES 512

struct sl_plan_recipe {
    char *name;   // as in tables: "h2o"
    char *budget; // as written: "5%"; "" for recipes without {budget}
    char *recipe; // to be parsed by engine/compress/recipe/recipe.h: {budget} is filled in
};

// What one column of a table is about.
struct sl_plan_cell {
    char *name;                 // "niah-essay", "hotpotqa"
    const struct sl_task *task; // NULL: a data set
    int64_t n_tokens;           // of a task
    double depth;               // of a task; negative: anywhere
    struct sl_dataset_config dataset;
    int64_t n_samples; // of a data set: 0 is all
};

struct sl_plan_claim {
    char *paper, *text;
    char *better, *worse; // names of recipes; a claim holds per budget
    double by;            // better - worse >= by
    char **tasks;         // names of cells; none: all
    size_t n_tasks;
    double needs_least; // of `needs`: the mean score of "full" over these cells; below it the precondition is absent
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
    int64_t max_prompt_tokens; // 0: what the model was made for
};

/*
 * data_dir: where the files of data sets are; NULL: the plan's own folder. SL_ERR_INVALID names the member,
 * SL_ERR_NOT_FOUND the file. Whether recipes mean anything is for engine/compress/recipe/recipe.h to say, whether data sets are there
 * for sl_dataset_open().
 */
enum sl_status sl_eval_plan_read(const char *path, const char *data_dir, struct sl_eval_plan *plan_out,
                                 struct sl_error *err);
void sl_eval_plan_cleanup(struct sl_eval_plan *plan); // accepts one that is all zeros, and leaves it so

/*
 * For plans that are made from options, beginning with all zeros; what is given is copied. SL_ERR_EXISTS: the same name
 * and budget, or the same cell. SL_ERR_RANGE: too many, or too long.
 *
 * budget: "5%", "0.05" or "512" where the recipe has {budget}, "" where not.
 */
enum sl_status sl_eval_plan_add_recipe(struct sl_eval_plan *plan, const char *name, const char *budget,
                                       const char *recipe, struct sl_error *err);
// SL_ERR_INVALID: a length or a depth that the task does not have.
enum sl_status sl_eval_plan_add_task(struct sl_eval_plan *plan, const struct sl_task *task, int64_t n_tokens,
                                     double depth, int64_t n_samples, struct sl_error *err);
enum sl_status sl_eval_plan_add_dataset(struct sl_eval_plan *plan, const struct sl_dataset_config *config,
                                        struct sl_error *err);
// Put "full" first, which is added where there is none.
enum sl_status sl_eval_plan_put_full_first(struct sl_eval_plan *plan, struct sl_error *err);
