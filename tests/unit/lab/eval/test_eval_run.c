// SPDX-License-Identifier: Apache-2.0
// Purpose: a plan is asked once, whatever happens on the way: on models/demo, with short prompts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/eval/run/eval_run.h"

#define MODEL     "models/demo"
#define N_TOKENS  300
#define N_SAMPLES 3

struct fixture {
    struct sl_answerer *answerer;
    char folder[32], path[64], data[64];
    bool stop; // what the answerer is told
};

static bool stopped(void *arg) {
    return ((const struct fixture *)arg)->stop;
}

static void *make_fixture(void) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_error err = {0};
    struct sl_answerer_config config = {
        .model_dir = MODEL, .threads = 2, .max_tokens = 2048, .stopped = stopped, .arg = f};
    strcpy(f->folder, "/tmp/sluice-test-XXXXXX");
    if (!mkdtemp(f->folder) || sl_answerer_open(&config, &f->answerer, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return NULL;
    }
    snprintf(f->path, sizeof f->path, "%s/r.jsonl", f->folder);
    snprintf(f->data, sizeof f->data, "%s/d.jsonl", f->folder);
    return f;
}

static int set_up(void **state) {
    *state = make_fixture();
    return *state == NULL;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    sl_answerer_close(&f->answerer);
    int code = rmdir(f->folder);
    free(f);
    return code;
}

static int end_test(void **state) {
    struct fixture *f = *state;
    unlink(f->path);
    unlink(f->data);
    f->stop = false;
    return 0;
}

// --- plans ------------------------------------------------------------------------------------------------------

static void add_recipe(struct sl_eval_plan *plan, const char *recipe) {
    assert_int_equal(sl_eval_plan_add_recipe(plan, recipe, "", recipe, NULL), SL_OK);
}

static void add_task(struct sl_eval_plan *plan, const char *name, int64_t n_tokens) {
    const struct sl_task *task = sl_task_find(name);
    assert_int_equal(sl_eval_plan_add_task(plan, task, n_tokens, -1, N_SAMPLES, NULL), SL_OK);
}

static struct sl_eval_plan two_by_two(void) {
    struct sl_eval_plan plan = {.seed = 5};
    add_recipe(&plan, "full");
    add_recipe(&plan, "streamingllm,budget=64,chunk=64");
    add_task(&plan, "niah-noise", N_TOKENS);
    add_task(&plan, "passkey", N_TOKENS);
    return plan;
}

// One run of a plan: everything but the plan and the answerer lives as long as it.
struct trial {
    struct sl_eval_plan *plan;
    const char **canonical;
    struct sl_eval_questions questions;
    struct sl_eval_results *results;
    struct fixture *fixture;
    size_t n_asked, stop_before; // stop before the so-manieth; 0: never
    struct sl_eval_state last;
    struct sl_error err;
};

static void on_progress(void *arg, const struct sl_eval_state *state) {
    struct trial *t = arg;
    t->last = *state;
    if (state->done < state->total) {
        t->n_asked++;
        t->fixture->stop = t->n_asked == t->stop_before;
    }
}

static enum sl_status run_trial(struct trial *t, struct fixture *f, struct sl_eval_plan *plan, const char *path,
                                const char *essay, int64_t part, int64_t n_parts) {
    const struct sl_tokenizer *tokenizer = sl_answerer_tokenizer(f->answerer);
    struct sl_eval_run run = {.model = sl_answerer_fingerprint(f->answerer), .weights = "stored", .seed = plan->seed};
    size_t stop_before = t->stop_before;
    *t = (struct trial){.plan = plan, .fixture = f, .stop_before = stop_before};
    f->stop = false;
    assert_int_equal(sl_eval_canonical(plan, &t->canonical, &t->err), SL_OK);
    assert_int_equal(sl_eval_results_open(path, &run, &t->results, &t->err), SL_OK);
    assert_int_equal(sl_eval_questions_open(plan, tokenizer, sl_answerer_model(f->answerer)->max_positions, &essay,
                                            essay != NULL, &t->questions, &t->err),
                     SL_OK);
    struct sl_eval_runner runner = {.plan = plan,
                                    .canonical = t->canonical,
                                    .questions = &t->questions,
                                    .answerer = f->answerer,
                                    .results = t->results,
                                    .part = part,
                                    .n_parts = n_parts,
                                    .progress_fn = on_progress,
                                    .arg = t};
    return sl_eval_runner_run(&runner, &t->err);
}

static void end_trial(struct trial *t) {
    sl_eval_results_close(&t->results);
    sl_eval_questions_close(&t->questions);
    free(t->canonical);
}

static bool find(const struct trial *t, size_t recipe, size_t cell, size_t index, struct sl_eval_answer *answer) {
    struct sl_eval_key key = sl_eval_key_of(t->plan, t->canonical, recipe, cell, index);
    return sl_eval_results_find(t->results, &key, answer);
}

// Both have the same answers, all of them.
static void assert_same_answers(const struct trial *a, const struct trial *b) {
    struct sl_eval_answer x, y;
    for (size_t recipe = 0; recipe < a->plan->n_recipes; recipe++) {
        for (size_t cell = 0; cell < a->plan->n_cells; cell++) {
            for (size_t i = 0; i < N_SAMPLES; i++) {
                assert_true(find(a, recipe, cell, i, &x) && find(b, recipe, cell, i, &y));
                assert_string_equal(x.text, y.text);
                assert_true(x.score == y.score && x.prompt == y.prompt && x.n_prompt == y.n_prompt);
                assert_true(x.shipped_bytes == y.shipped_bytes && x.resident_bytes == y.resident_bytes);
            }
        }
    }
}

// --- tests ------------------------------------------------------------------------------------------------------

static void test_run_goes_on_where_it_was_stopped(void **state) {
    struct fixture *f = *state;
    struct sl_eval_plan plan = two_by_two();
    struct trial whole = {0}, half = {.stop_before = 6}, rest = {0};
    assert_int_equal(run_trial(&whole, f, &plan, NULL, NULL, 0, 1), SL_OK);
    assert_int_equal(whole.n_asked, 12);
    assert_true(whole.last.done == 12 && whole.last.total == 12);

    assert_int_equal(run_trial(&half, f, &plan, f->path, NULL, 0, 1), SL_ERR_CANCELLED);
    assert_int_equal(half.n_asked, 6);
    struct sl_eval_answer a;
    assert_true(find(&half, 0, 1, 0, &a)); // the first sample of every cell
    assert_true(find(&half, 0, 0, 1, &a));
    assert_false(find(&half, 1, 0, 1, &a) || find(&half, 0, 1, 1, &a));
    end_trial(&half);

    assert_int_equal(run_trial(&rest, f, &plan, f->path, NULL, 0, 1), SL_OK);
    assert_int_equal(rest.n_asked, 7); // five were there
    assert_same_answers(&whole, &rest);
    end_trial(&rest);
    assert_int_equal(run_trial(&rest, f, &plan, f->path, NULL, 0, 1), SL_OK);
    assert_int_equal(rest.n_asked, 0);
    end_trial(&rest);
    end_trial(&whole);
    sl_eval_plan_cleanup(&plan);
}

static void test_run_adds_recipes_to_what_is_there(void **state) {
    struct fixture *f = *state;
    struct sl_eval_plan plan = two_by_two();
    struct trial t = {0};
    assert_int_equal(run_trial(&t, f, &plan, f->path, NULL, 0, 1), SL_OK);
    end_trial(&t);
    add_recipe(&plan, "full,format=int4");
    assert_int_equal(run_trial(&t, f, &plan, f->path, NULL, 0, 1), SL_OK);
    assert_int_equal(t.n_asked, 6);
    struct sl_eval_answer full, packed;
    assert_true(find(&t, 0, 0, 0, &full) && find(&t, 2, 0, 0, &packed));
    assert_true(packed.shipped_bytes < full.shipped_bytes && full.full_bytes == packed.full_bytes);
    const struct sl_model_config *model = sl_answerer_model(f->answerer);
    int64_t token_bytes = (int64_t)model->n_layers * model->n_kv_heads * model->head_dim * 4; // keys and values, f16
    assert_true(full.full_bytes == full.n_prompt * token_bytes);
    assert_true(full.prompt == packed.prompt && full.n_prompt <= N_TOKENS && full.n_prompt > N_TOKENS / 2);
    end_trial(&t);
    sl_eval_plan_cleanup(&plan);
}

// Stores would get what the budget leaves of the offloaded layers, in addition to the capsule of the other layers.
static void test_run_counts_what_stores_would_get(void **state) {
    struct fixture *f = *state;
    const struct sl_model_config *model = sl_answerer_model(f->answerer);
    struct sl_eval_plan plan = {.seed = 5};
    add_recipe(&plan, "full");
    add_recipe(&plan, "place=offload/2-,topk=16");
    add_recipe(&plan, "place=offload/2-,topk=16,replicas=2");
    add_recipe(&plan, "place=offload/2-,topk=16,score=random,budget=0.5,when=chunk");
    add_task(&plan, "niah-noise", 900);
    struct trial t = {0};
    assert_int_equal(run_trial(&t, f, &plan, NULL, NULL, 0, 1), SL_OK);
    int64_t page = (int64_t)model->n_kv_heads * model->head_dim * 2 * (int64_t)sizeof(uint16_t) * SL_PAGE_SLOTS;
    struct sl_eval_answer full, whole, twice, half;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        assert_true(find(&t, 0, 0, i, &full) && find(&t, 1, 0, i, &whole));
        assert_true(find(&t, 2, 0, i, &twice) && find(&t, 3, 0, i, &half));
        int64_t n_read = full.n_prompt - 1, n_layers = model->n_layers - 2;
        assert_int_equal(full.offloaded_bytes, 0);
        assert_int_equal(whole.offloaded_bytes, n_layers * (int64_t)sl_pages_for(n_read) * page);
        assert_int_equal(twice.offloaded_bytes, 2 * whole.offloaded_bytes);
        assert_int_equal(half.offloaded_bytes, n_layers * (int64_t)sl_pages_for((n_read + 1) / 2) * page);
        assert_true(whole.shipped_bytes == half.shipped_bytes && whole.shipped_bytes < full.shipped_bytes);
    }
    end_trial(&t);
    sl_eval_plan_cleanup(&plan);
}

static void test_run_of_parts_is_the_whole(void **state) {
    struct fixture *f = *state;
    struct sl_eval_plan plan = two_by_two();
    struct trial whole = {0}, part = {0};
    assert_int_equal(run_trial(&part, f, &plan, f->path, NULL, 1, 2), SL_OK);
    assert_int_equal(part.n_asked, 4); // of three samples the second
    end_trial(&part);
    assert_int_equal(run_trial(&part, f, &plan, f->path, NULL, 0, 2), SL_OK);
    assert_int_equal(part.n_asked, 8);
    assert_int_equal(run_trial(&whole, f, &plan, NULL, NULL, 0, 1), SL_OK);
    assert_same_answers(&whole, &part);
    end_trial(&part);
    end_trial(&whole);
    sl_eval_plan_cleanup(&plan);
}

static void test_run_says_what_cannot_be_asked(void **state) {
    struct fixture *f = *state;
    struct sl_eval_plan plan = two_by_two();
    add_recipe(&plan, "full,format=f16/50-60:int4");
    add_task(&plan, "niah-noise", sl_answerer_model(f->answerer)->max_positions + 50);
    struct trial t = {0};
    assert_int_equal(run_trial(&t, f, &plan, NULL, NULL, 0, 1), SL_OK);
    struct sl_eval_answer a;
    assert_true(find(&t, 2, 0, 0, &a));
    assert_non_null(a.refused);
    assert_non_null(strstr(a.refused, "layer 60"));
    assert_true(find(&t, 0, 2, 0, &a));
    assert_non_null(a.refused);
    assert_non_null(strstr(a.refused, "positions"));
    assert_true(find(&t, 0, 0, 0, &a));
    assert_null(a.refused);
    end_trial(&t);
    sl_eval_plan_cleanup(&plan);
}

static void test_run_does_not_mix_answers_to_other_prompts(void **state) {
    struct fixture *f = *state;
    struct sl_eval_plan plan = {.seed = 5};
    add_recipe(&plan, "full");
    add_task(&plan, "niah-essay", N_TOKENS);
    struct trial t = {0};
    assert_int_equal(run_trial(&t, f, &plan, f->path, "README.md", 0, 1), SL_OK);
    end_trial(&t);
    add_recipe(&plan, "full,format=int8");
    assert_int_equal(run_trial(&t, f, &plan, f->path, "docs/STYLE.md", 0, 1), SL_ERR_PRECONDITION);
    assert_non_null(strstr(t.err.text, "number 0 of niah-essay"));
    end_trial(&t);
    sl_eval_plan_cleanup(&plan);
}

// A data set's long prompt is the first and the last of its tokens.
static void test_run_cuts_the_middle_of_long_prompts(void **state) {
    struct fixture *f = *state;
    FILE *file = fopen(f->data, "w");
    fputs("{\"prompt\": \"", file);
    for (int i = 0; i < 200; i++) {
        fprintf(file, "Line %d of the text. ", i);
    }
    fputs("\", \"answers\": [\"no\"]}\n{\"prompt\": \"Short.\", \"answers\": [\"no\"]}\n", file);
    fclose(file);
    struct sl_eval_plan plan = {.max_prompt_tokens = 101};
    struct sl_dataset_config config = {.name = "lines", .path = f->data, .format = "sluice", .max_new_tokens = 8};
    add_recipe(&plan, "full");
    assert_int_equal(sl_eval_plan_add_dataset(&plan, &config, NULL), SL_OK);
    struct trial t = {0};
    assert_int_equal(run_trial(&t, f, &plan, NULL, NULL, 0, 1), SL_OK);
    assert_int_equal(t.questions.n_samples[0], 2);

    struct sl_eval_prompt cut, whole;
    assert_int_equal(sl_eval_prompt_make(&t.questions, 0, 0, &cut, NULL), SL_OK);
    plan.max_prompt_tokens = 0;
    assert_int_equal(sl_eval_prompt_make(&t.questions, 0, 0, &whole, NULL), SL_OK);
    assert_int_equal(cut.n_ids, 101);
    assert_true(whole.n_ids > 1000);
    assert_memory_equal(cut.ids, whole.ids, 50 * sizeof *cut.ids);
    assert_memory_equal(cut.ids + 50, whole.ids + whole.n_ids - 51, 51 * sizeof *cut.ids);
    sl_eval_prompt_cleanup(&cut);
    sl_eval_prompt_cleanup(&whole);
    struct sl_eval_answer a;
    assert_true(find(&t, 0, 0, 0, &a) && a.n_prompt == 101);
    assert_true(find(&t, 0, 0, 1, &a) && a.n_prompt < 101);
    end_trial(&t);
    sl_eval_plan_cleanup(&plan);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, end_test)
    const struct CMUnitTest tests[] = {
        TEST(test_run_goes_on_where_it_was_stopped),    TEST(test_run_adds_recipes_to_what_is_there),
        TEST(test_run_counts_what_stores_would_get),    TEST(test_run_of_parts_is_the_whole),
        TEST(test_run_says_what_cannot_be_asked),       TEST(test_run_does_not_mix_answers_to_other_prompts),
        TEST(test_run_cuts_the_middle_of_long_prompts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
