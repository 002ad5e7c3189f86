// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for plans of evaluations: whatever the file, it is refused with a reason, or everything in the plan is
 *          within the bounds that lab/eval/tasks/plan.h gives.
 */
#include <math.h>

#include "lab/eval/tasks/plan.h"
#include "tests/fuzz/fuzz_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plan(const struct sl_eval_plan *plan) {
    require(plan->n_recipes >= 1 && plan->n_recipes <= SL_PLAN_MAX_RECIPES && plan->n_cells <= SL_PLAN_MAX_CELLS);
    require(strcmp(plan->recipes[0].name, "full") == 0); // what the others are compared with
    for (size_t i = 0; i < plan->n_recipes; i++) {
        const struct sl_plan_recipe *recipe = &plan->recipes[i];
        require(recipe->name[0] && recipe->recipe[0] && strlen(recipe->recipe) < SL_PLAN_RECIPE_BYTES);
        require(!strstr(recipe->recipe, "{budget}"));
    }
    for (size_t i = 0; i < plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &plan->cells[i];
        require(cell->name[0] && cell->n_samples >= 0 && !isnan(cell->depth) && cell->depth <= 1);
        require(!cell->task || (cell->n_tokens >= cell->task->min_tokens && cell->n_tokens <= SL_TASK_MAX_TOKENS));
        require(cell->task || cell->dataset.path);
    }
    for (size_t i = 0; i < plan->n_claims; i++) {
        const struct sl_plan_claim *claim = &plan->claims[i];
        require(claim->better && claim->worse && isfinite(claim->by));
        for (size_t k = 0; k < claim->n_tasks; k++) {
            require(claim->tasks[k][0] != '\0');
        }
    }
    require(plan->max_prompt_tokens >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[512];
    struct sl_eval_plan plan = {0};
    struct sl_error err = {0};
    fuzz_folder_write("plan.json", data, size);
    fuzz_folder_path("plan.json", path, sizeof path);
    if (sl_eval_plan_read(path, NULL, &plan, &err) == SL_OK) {
        check_plan(&plan);
        sl_eval_plan_cleanup(&plan);
    } else {
        require(err.text[0] != '\0');
    }
    fuzz_folder_remove("plan.json");
    return 0;
}
