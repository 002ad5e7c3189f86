// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the plans in lab/eval/papers: every file can be read, every recipe means something and fits the prompts that it is
 *          asked with, no budget is one that scope alone fills, and demo.json leaves no preset out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <glob.h>
#include <string.h>

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "lab/eval/tasks/plan.h"

#define PAPERS "lab/eval/papers/*.json"

static void for_each_plan(void (*check)(const char *path, const struct sl_eval_plan *plan)) {
    glob_t found;
    assert_int_equal(glob(PAPERS, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 13);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct sl_eval_plan plan;
        struct sl_error err = {0};
        if (sl_eval_plan_read(found.gl_pathv[i], "/data", &plan, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
        check(found.gl_pathv[i], &plan);
        sl_eval_plan_cleanup(&plan);
    }
    globfree(&found);
}

// Checks the tokens that the recipe keeps of a prompt: models/demo for tasks, an 8B model for data sets. Layer 0 attends densely.
static void check_fits(const char *path, const struct sl_plan_recipe *entry, bool demo, int64_t n_prompt) {
    static const struct sl_layers dense = {{1}};
    const struct sl_kv_geometry geometry =
        demo ? (struct sl_kv_geometry){.n_layers = 8, .n_kv_heads = 2, .head_dim = 64}
             : (struct sl_kv_geometry){.n_layers = 32, .n_kv_heads = 8, .head_dim = 128};
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err = {0};
    enum sl_status status = sl_recipe_parse(entry->recipe, &recipe, &err);
    if (status == SL_OK) {
        status = sl_recipe_resolve(&recipe, &dense, geometry.n_layers, &err);
    }
    if (status == SL_OK) {
        status = sl_plan_make_local(&recipe, &geometry, n_prompt, 0, &plan, &err);
    }
    if (status != SL_OK) {
        fail_msg("%s: %s %s: %s", path, entry->name, entry->budget, err.text);
    }
    // A ratio that scope fills alone is silently raised above it: the run would measure another budget than it reports.
    if (sl_recipe_evicts(&recipe) && recipe.budget.slots == 0) {
        int64_t slots = (int64_t)(recipe.budget.ratio * (double)n_prompt);
        if (plan.budget_slots < slots - 1 || plan.budget_slots > slots + 1) {
            fail_msg("%s: %s keeps %lld slots of %lld, not its budget", path, entry->name, (long long)plan.budget_slots,
                     (long long)n_prompt);
        }
    }
}

static void check_plan(const char *path, const struct sl_eval_plan *plan) {
    assert_true(strlen(plan->title) > 20);
    assert_true(plan->n_claims > 0);
    assert_string_equal(plan->recipes[0].name, "full");
    for (size_t i = 0; i < plan->n_recipes; i++) {
        for (size_t c = 0; c < plan->n_cells; c++) {
            bool task = plan->cells[c].task;
            check_fits(path, &plan->recipes[i], task, task ? plan->cells[c].n_tokens - 100 : 31500);
        }
    }
}

static void test_papers_have_recipes_that_fit(void **state) {
    (void)state;
    for_each_plan(check_plan);
}

// Somewhere both sides of a claim were asked at one budget, or one of them is without any.
static void check_claims(const char *path, const struct sl_eval_plan *plan) {
    for (size_t i = 0; i < plan->n_claims; i++) {
        const struct sl_plan_claim *claim = &plan->claims[i];
        bool comparable = false;
        assert_string_not_equal(claim->better, claim->worse);
        for (size_t a = 0; a < plan->n_recipes; a++) {
            for (size_t b = 0; b < plan->n_recipes; b++) {
                const struct sl_plan_recipe *better = &plan->recipes[a], *worse = &plan->recipes[b];
                comparable |= strcmp(better->name, claim->better) == 0 && strcmp(worse->name, claim->worse) == 0 &&
                              (strcmp(better->budget, worse->budget) == 0 || !*better->budget || !*worse->budget);
            }
        }
        if (!comparable) {
            fail_msg("%s: no budget at which \"%s\" can be checked", path, claim->text);
        }
    }
}

static void test_papers_have_claims_that_can_be_checked(void **state) {
    (void)state;
    for_each_plan(check_claims);
}

static size_t count_recipe(const struct sl_eval_plan *plan, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_recipes; i++) {
        n += strcmp(plan->recipes[i].name, name) == 0;
    }
    return n;
}

static void test_demo_plan_leaves_no_preset_out(void **state) {
    (void)state;
    struct sl_eval_plan plan;
    struct sl_error err = {0};
    if (sl_eval_plan_read("lab/eval/papers/demo.json", NULL, &plan, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        struct sl_recipe recipe;
        assert_int_equal(sl_recipe_parse(preset->name, &recipe, &err), SL_OK);
        assert_int_equal(count_recipe(&plan, preset->name), sl_recipe_evicts(&recipe) ? 4 : 1);
    }
    assert_int_equal(plan.n_cells, 16);
    sl_eval_plan_cleanup(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_papers_have_recipes_that_fit),
        cmocka_unit_test(test_papers_have_claims_that_can_be_checked),
        cmocka_unit_test(test_demo_plan_leaves_no_preset_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
