// SPDX-License-Identifier: Apache-2.0
// Purpose: plans: what budgets and lists multiply, and what is refused by name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/eval/tasks/plan.h"
#include "tests/unit/temp_folder.h"

static struct temp_folder folder;
static char path[384];

static int setup(void **state) {
    (void)state;
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/plan.json", folder.path);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_folder_destroy(&folder);
    return 0;
}

static struct sl_eval_plan read_plan(const char *text, const char *data_dir) {
    struct sl_eval_plan plan;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "plan.json", text);
    if (sl_eval_plan_read(path, data_dir, &plan, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return plan;
}

static void assert_recipe(const struct sl_eval_plan *plan, size_t i, const char *name, const char *budget,
                          const char *recipe) {
    assert_true(i < plan->n_recipes);
    assert_string_equal(plan->recipes[i].name, name);
    assert_string_equal(plan->recipes[i].budget, budget);
    assert_string_equal(plan->recipes[i].recipe, recipe);
}

static void assert_refused(const char *text, const char *reason) {
    struct sl_eval_plan plan = {.seed = 77};
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "plan.json", text);
    assert_int_equal(sl_eval_plan_read(path, NULL, &plan, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/plan.json"));
    if (!strstr(err.text, reason)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
    }
    assert_int_equal(plan.seed, 77);
}

#define ASKS "\"tasks\": [\"kv\"], \"lengths\": [4096]"

// --- what is read ------------------------------------------------------------------------------------------------

static void test_plan_budgets_multiply_recipes_that_have_a_place(void **state) {
    (void)state;
    struct sl_eval_plan plan =
        read_plan("{\"title\": \"t\", \"budgets\": [\"5%\", \"12.5%\", 512, 0.2], \"recipes\": ["
                  "{\"name\": \"h2o\", \"recipe\": \"h2o,budget={budget}\"}, \"full,format=int4\", "
                  "{\"name\": \"x\", \"recipe\": \"{budget}{budget}\", \"budgets\": [\"1%\", 7]}, "
                  "\"tova,budget={budget}\"], " ASKS "}",
                  NULL);
    assert_string_equal(plan.title, "t");
    assert_int_equal(plan.n_recipes, 12);
    assert_recipe(&plan, 0, "full", "", "full");
    assert_recipe(&plan, 1, "h2o", "5%", "h2o,budget=0.05");
    assert_recipe(&plan, 2, "h2o", "12.5%", "h2o,budget=0.125");
    assert_recipe(&plan, 3, "h2o", "512", "h2o,budget=512");
    assert_recipe(&plan, 4, "h2o", "0.2", "h2o,budget=0.2");
    assert_recipe(&plan, 5, "full,format=int4", "", "full,format=int4");
    assert_recipe(&plan, 6, "x", "1%", "0.010.01");
    assert_recipe(&plan, 7, "x", "7", "77");
    assert_recipe(&plan, 11, "tova,budget={budget}", "0.2", "tova,budget=0.2");
    assert_int_equal(plan.seed, 1);
    assert_int_equal(plan.max_prompt_tokens, 0);
    sl_eval_plan_cleanup(&plan);
    assert_null(plan.recipes);
    sl_eval_plan_cleanup(&plan);
}

static void test_plan_puts_full_first(void **state) {
    (void)state;
    struct sl_eval_plan plan =
        read_plan("{\"title\": \"t\", \"recipes\": [\"random\", \"h2o\", \"full\"], " ASKS "}", NULL);
    assert_int_equal(plan.n_recipes, 3);
    assert_recipe(&plan, 0, "full", "", "full");
    assert_recipe(&plan, 1, "random", "", "random");
    assert_recipe(&plan, 2, "h2o", "", "h2o");
    sl_eval_plan_cleanup(&plan);
    plan = read_plan("{\"title\": \"t\", " ASKS "}", NULL);
    assert_int_equal(plan.n_recipes, 1);
    sl_eval_plan_cleanup(&plan);
}

static void test_plan_cells_are_tasks_times_lengths_times_depths(void **state) {
    (void)state;
    struct sl_eval_plan plan =
        read_plan("{\"title\": \"t\", \"tasks\": [\"niah-essay\", \"kv\"], \"lengths\": [1024, 4096], \"depths\": [0, "
                  "0.25, 1], \"samples\": 3, \"seed\": 9, \"max_prompt_tokens\": 31500}",
                  NULL);
    const double depths[] = {0, 0.25, 1};
    assert_int_equal(plan.n_cells, 12);
    assert_string_equal(plan.cells[0].name, "niah-essay");
    assert_ptr_equal(plan.cells[0].task, sl_task_find("niah-essay"));
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(plan.cells[i].n_tokens, i / 3 % 2 ? 4096 : 1024);
        assert_true(plan.cells[i].depth == depths[i % 3]);
        assert_int_equal(plan.cells[i].n_samples, 3);
    }
    assert_ptr_equal(plan.cells[11].task, sl_task_find("kv"));
    assert_int_equal(plan.seed, 9);
    assert_int_equal(plan.max_prompt_tokens, 31500);
    sl_eval_plan_cleanup(&plan);
    plan = read_plan("{\"title\": \"t\", " ASKS "}", NULL);
    assert_int_equal(plan.n_cells, 1);
    assert_true(plan.cells[0].depth < 0);
    assert_int_equal(plan.cells[0].n_samples, 20);
    sl_eval_plan_cleanup(&plan);
}

static void test_plan_data_sets_are_beside_it_or_where_is_said(void **state) {
    (void)state;
    const char *text =
        "{\"title\": \"t\", \"datasets\": [\"longbench/hotpotqa\", {\"name\": \"mine\", \"format\": "
        "\"sluice\", \"file\": \"a/b.jsonl\", \"metric\": \"f1\", \"max_new_tokens\": 4, \"samples\": 5, "
        "\"first_line\": true, \"prompt\": \"Q: {input}\"}, {\"name\": \"qa_1\", \"format\": \"ruler\", "
        "\"file\": \"/x/qa.jsonl\"}]}";
    char beside[448];
    struct sl_eval_plan plan = read_plan(text, NULL);
    assert_int_equal(plan.n_cells, 3);
    snprintf(beside, sizeof beside, "%s/longbench/hotpotqa.jsonl", folder.path);
    assert_string_equal(plan.cells[0].dataset.path, beside);
    assert_string_equal(plan.cells[0].name, "hotpotqa");
    assert_null(plan.cells[0].task);
    assert_null(plan.cells[0].dataset.metric);
    assert_int_equal(plan.cells[0].n_samples, 0);
    assert_string_equal(plan.cells[1].dataset.prompt, "Q: {input}");
    assert_string_equal(plan.cells[1].dataset.metric, "f1");
    assert_int_equal(plan.cells[1].dataset.max_new_tokens, 4);
    assert_int_equal(plan.cells[1].dataset.max_samples, 5);
    assert_true(plan.cells[1].dataset.first_line);
    assert_string_equal(plan.cells[2].dataset.path, "/x/qa.jsonl");
    sl_eval_plan_cleanup(&plan);
    plan = read_plan(text, "/data");
    assert_string_equal(plan.cells[1].dataset.path, "/data/a/b.jsonl");
    sl_eval_plan_cleanup(&plan);
}

static void test_plan_claims(void **state) {
    (void)state;
    struct sl_eval_plan plan =
        read_plan("{\"title\": \"t\", \"recipes\": [\"h2o\", \"tova\"], \"tasks\": [\"kv\", \"number\"], \"lengths\": "
                  "[4096], \"claims\": [{\"paper\": \"P\", \"text\": \"x\", \"better\": \"h2o\", \"worse\": \"tova\", "
                  "\"by\": -0.015, \"tasks\": [\"number\"], \"needs\": {\"recipe\": \"full\", \"least\": 0.5}}, "
                  "{\"paper\": \"P\", \"text\": \"y\", \"better\": \"full\", \"worse\": \"tova\"}]}",
                  NULL);
    assert_int_equal(plan.n_claims, 2);
    assert_string_equal(plan.claims[0].paper, "P");
    assert_string_equal(plan.claims[0].better, "h2o");
    assert_string_equal(plan.claims[0].worse, "tova");
    assert_true(plan.claims[0].by == -0.015 && plan.claims[0].needs_least == 0.5);
    assert_int_equal(plan.claims[0].n_tasks, 1);
    assert_string_equal(plan.claims[0].tasks[0], "number");
    assert_true(plan.claims[1].by == 0 && plan.claims[1].needs_least == 0);
    assert_int_equal(plan.claims[1].n_tasks, 0);
    sl_eval_plan_cleanup(&plan);
}

// --- what is refused ---------------------------------------------------------------------------------------------

static void test_plan_refuses_by_name(void **state) {
    (void)state;
    const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "plan.json:"},
        {"{", "plan.json:1: "},
        {"[]", "must be a JSON object"},
        {"{\"title\": \"t\", \"title\": \"u\"}", "duplicate"},
        {"{}", "no \"title\""},
        {"{\"title\": 1}", "\"title\" must be a text"},
        {"{\"title\": \"t\"}", "nothing to ask"},
        {"{\"title\": \"t\", \"budgts\": []}", "no member \"budgts\"; did you mean \"budgets\"?"},
        {"{\"title\": \"t\", \"zzz\": []}", "no member \"zzz\""},
        {"{\"title\": \"t\", \"seed\": -1, " ASKS "}", "\"seed\" must be an integer"},
        {"{\"title\": \"t\", \"samples\": 0, " ASKS "}", "\"samples\" must be an integer from 1"},
        {"{\"title\": \"t\", \"budgets\": 5, " ASKS "}", "\"budgets\" must be a list"},
        // recipes
        {"{\"title\": \"t\", \"recipes\": [], " ASKS "}", "\"recipes\" must be a list of one or more"},
        {"{\"title\": \"t\", \"recipes\": [1], " ASKS "}", "recipes[0]: a recipe must be"},
        {"{\"title\": \"t\", \"recipes\": [\"h2o\", {\"name\": \"x\", \"recpe\": \"y\"}], " ASKS "}",
         "recipes[1]: there is no member \"recpe\"; did you mean \"recipe\"?"},
        {"{\"title\": \"t\", \"recipes\": [{\"name\": \"x\"}], " ASKS "}", "recipes[0]: there is no \"recipe\""},
        {"{\"title\": \"t\", \"recipes\": [\"h2o,budget={budget}\"], " ASKS "}", "there are no \"budgets\""},
        {"{\"title\": \"t\", \"recipes\": [{\"recipe\": \"h2o\", \"budgets\": [5]}], " ASKS "}",
         "has no place for a budget"},
        {"{\"title\": \"t\", \"budgets\": [\"5 %\"], \"recipes\": [\"{budget}\"], " ASKS "}", "not \"5 %\""},
        {"{\"title\": \"t\", \"budgets\": [\"100%\"], \"recipes\": [\"{budget}\"], " ASKS "}", "not \"100%\""},
        {"{\"title\": \"t\", \"budgets\": [0], \"recipes\": [\"{budget}\"], " ASKS "}", "a budget must be"},
        {"{\"title\": \"t\", \"budgets\": [1.5], \"recipes\": [\"{budget}\"], " ASKS "}", "a budget must be"},
        {"{\"title\": \"t\", \"budgets\": [\"nan\"], \"recipes\": [\"{budget}\"], " ASKS "}", "a budget must be"},
        {"{\"title\": \"t\", \"budgets\": [[]], \"recipes\": [\"{budget}\"], " ASKS "}", "a budget must be"},
        // tasks
        {"{\"title\": \"t\", \"tasks\": [\"niah-esay\"], \"lengths\": [4096]}",
         "tasks[0]: there is no task \"niah-esay\"; did you mean \"niah-essay\"?"},
        {"{\"title\": \"t\", \"tasks\": [\"kv\"]}", "tasks need \"lengths\""},
        {"{\"title\": \"t\", \"tasks\": [4096], \"lengths\": [4096]}", "a task must be a text"},
        {"{\"title\": \"t\", \"tasks\": [\"kv\"], \"lengths\": [\"4k\"]}", "\"lengths\" must be integers"},
        {"{\"title\": \"t\", \"tasks\": [\"kv\"], \"lengths\": [3]}", "kv has prompts of"},
        {"{\"title\": \"t\", " ASKS ", \"depths\": [1.5]}", "a depth is from 0"},
        {"{\"title\": \"t\", " ASKS ", \"depths\": [-1]}", "\"depths\" must be numbers from 0"},
        {"{\"title\": \"t\", \"tasks\": [\"multivalue\"], \"lengths\": [4096], \"depths\": [0.5]}",
         "does not ask about one place"},
        // data sets
        {"{\"title\": \"t\", \"datasets\": [\"hotpotqa\"]}", "not of the form FORMAT/NAME"},
        {"{\"title\": \"t\", \"datasets\": [\"longbench/x\"]}", "longbench/x is not a task that we know"},
        {"{\"title\": \"t\", \"datasets\": [{\"name\": \"x\", \"format\": \"longbench\", \"metrc\": \"f1\"}]}",
         "datasets[0]: there is no member \"metrc\"; did you mean \"metric\"?"},
        {"{\"title\": \"t\", \"datasets\": [{\"name\": \"x\", \"format\": \"longbench\"}]}", "give metric and"},
        {"{\"title\": \"t\", \"datasets\": [{\"name\": \"trec\", \"format\": \"longbench\", \"first_line\": 1}]}",
         "\"first_line\" must be true or false"},
        // claims
        {"{\"title\": \"t\", " ASKS
         ", \"claims\": [{\"paper\": \"p\", \"text\": \"x\", \"better\": \"ful\", \"worse\": "
         "\"full\"}]}",
         "claims[0]: there is no recipe \"ful\"; did you mean \"full\"?"},
        {"{\"title\": \"t\", " ASKS
         ", \"claims\": [{\"paper\": \"p\", \"text\": \"x\", \"better\": \"full\", \"worse\": "
         "\"full\", \"tasks\": [\"number\"]}]}",
         "there is no task or data set \"number\""},
        {"{\"title\": \"t\", " ASKS
         ", \"claims\": [{\"paper\": \"p\", \"text\": \"x\", \"better\": \"full\", \"worse\": "
         "\"full\", \"needs\": {\"recipe\": \"h2o\", \"least\": 0.5}}]}",
         "of \"full\" alone"},
        {"{\"title\": \"t\", " ASKS
         ", \"claims\": [{\"paper\": \"p\", \"text\": \"x\", \"better\": \"full\", \"worse\": "
         "\"full\", \"needs\": {\"recipe\": \"full\"}}]}",
         "\"least\" must be a score"},
        {"{\"title\": \"t\", " ASKS ", \"claims\": [{\"text\": \"x\", \"better\": \"full\", \"worse\": \"full\"}]}",
         "there is no \"paper\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_refused(cases[i].text, cases[i].reason);
    }
}

static void test_plan_refuses_what_is_there_twice(void **state) {
    (void)state;
    const struct {
        const char *text, *reason;
    } cases[] = {
        {"{\"title\": \"t\", \"recipes\": [\"h2o\", \"h2o\"], " ASKS "}", "recipe h2o is there twice"},
        {"{\"title\": \"t\", \"budgets\": [5, 5], \"recipes\": [\"{budget}\"], " ASKS "}", "twice at budget 5"},
        {"{\"title\": \"t\", \"tasks\": [\"kv\", \"kv\"], \"lengths\": [4096]}", "kv is there twice"},
        {"{\"title\": \"t\", \"datasets\": [\"ruler/vt\", \"ruler/vt\"]}", "vt is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_eval_plan plan;
        struct sl_error err = {0};
        temp_folder_write_text(&folder, "plan.json", cases[i].text);
        assert_int_equal(sl_eval_plan_read(path, NULL, &plan, &err), SL_ERR_EXISTS);
        assert_non_null(strstr(err.text, cases[i].reason));
    }
    struct sl_eval_plan plan;
    struct sl_error err = {0};
    assert_int_equal(sl_eval_plan_read("/nonexistent.json", NULL, &plan, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent.json"));
}

// From options of a command, and bounded.
static void test_plan_is_built_from_options(void **state) {
    (void)state;
    struct sl_eval_plan plan = {0};
    struct sl_error err = {0};
    char name[16], recipe[SL_PLAN_RECIPE_BYTES + 1];
    const struct sl_task *task = sl_task_find("number");
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "h2o", "5%", "h2o,budget={budget}", &err), SL_OK);
    assert_int_equal(sl_eval_plan_put_full_first(&plan, &err), SL_OK);
    assert_recipe(&plan, 0, "full", "", "full");
    assert_recipe(&plan, 1, "h2o", "5%", "h2o,budget=0.05");
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "", "", "h2o", &err), SL_ERR_INVALID);
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "x", "5%", "h2o", &err), SL_ERR_INVALID);
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "x", "", "h2o,budget={budget}", &err), SL_ERR_INVALID);
    memset(recipe, 'x', sizeof recipe - 1);
    recipe[sizeof recipe - 1] = '\0';
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "x", "", recipe, &err), SL_ERR_RANGE);
    recipe[sizeof recipe - 2] = '\0';
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "x", "", recipe, &err), SL_OK);
    for (int i = 3; i < SL_PLAN_MAX_RECIPES; i++) {
        snprintf(name, sizeof name, "r%d", i);
        assert_int_equal(sl_eval_plan_add_recipe(&plan, name, "", "h2o", &err), SL_OK);
    }
    assert_int_equal(sl_eval_plan_add_recipe(&plan, "more", "", "h2o", &err), SL_ERR_RANGE);

    assert_int_equal(sl_eval_plan_add_task(&plan, task, 4096, -1, 0, &err), SL_ERR_INVALID);
    for (int64_t i = 0; i < SL_PLAN_MAX_CELLS; i++) {
        assert_int_equal(sl_eval_plan_add_task(&plan, task, 4096 + i, -1, 5, &err), SL_OK);
    }
    assert_int_equal(sl_eval_plan_add_task(&plan, task, 4000, -1, 5, &err), SL_ERR_RANGE);
    assert_int_equal(plan.n_cells, SL_PLAN_MAX_CELLS);
    sl_eval_plan_cleanup(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_budgets_multiply_recipes_that_have_a_place),
        cmocka_unit_test(test_plan_puts_full_first),
        cmocka_unit_test(test_plan_cells_are_tasks_times_lengths_times_depths),
        cmocka_unit_test(test_plan_data_sets_are_beside_it_or_where_is_said),
        cmocka_unit_test(test_plan_claims),
        cmocka_unit_test(test_plan_refuses_by_name),
        cmocka_unit_test(test_plan_refuses_what_is_there_twice),
        cmocka_unit_test(test_plan_is_built_from_options),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
