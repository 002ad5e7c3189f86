// SPDX-License-Identifier: Apache-2.0
// Purpose: runs a plan and collects its answers. See eval_run.h.
#include "lab/eval/run/eval_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/compress/recipe/recipe.h"
#include "lab/eval/metrics/metric.h"

enum sl_status sl_eval_canonical(const struct sl_eval_plan *plan, const char ***texts_out, struct sl_error *err) {
    char *block = malloc(plan->n_recipes * (sizeof(char *) + SL_RECIPE_TEXT_BYTES));
    if (!block) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu recipes", plan->n_recipes);
    }
    const char **texts = (const char **)(void *)block;
    char *text = block + plan->n_recipes * sizeof(char *);
    for (size_t i = 0; i < plan->n_recipes; i++, text += SL_RECIPE_TEXT_BYTES) {
        struct sl_recipe recipe;
        struct sl_error why = {0};
        if (sl_recipe_parse(plan->recipes[i].recipe, &recipe, &why) != SL_OK) {
            free(block);
            return sl_fail(err, SL_ERR_INVALID, "%.100s: %s", plan->recipes[i].recipe, why.text);
        }
        texts[i] = sl_recipe_format(&recipe, text, SL_RECIPE_TEXT_BYTES);
    }
    *texts_out = texts;
    return SL_OK;
}

struct sl_eval_key sl_eval_key_of(const struct sl_eval_plan *plan, const char *const *canonical, size_t recipe,
                                  size_t cell, size_t index) {
    const struct sl_plan_cell *c = &plan->cells[cell];
    return (struct sl_eval_key){.recipe = canonical[recipe],
                                .cell = c->name,
                                .n_tokens = c->task ? c->n_tokens : 0,
                                .depth = c->task ? c->depth : -1,
                                .index = (int64_t)index};
}

struct run {
    const struct sl_eval_runner *config;
    struct sl_eval_state state;
    int64_t began_ns;
    double work_done, work_left; // of this run's questions, in prompt tokens
    size_t n_rounds;             // samples of the largest cell
};

// Returns whether a question is done. A rejected one is asked again: that costs nothing, and another build may
// support it.
static bool is_done(const struct run *run, size_t recipe, size_t cell, size_t index, struct sl_eval_answer *answer) {
    const struct sl_eval_runner *c = run->config;
    struct sl_eval_key key = sl_eval_key_of(c->plan, c->canonical, recipe, cell, index);
    return sl_eval_results_find(c->results, &key, answer) && !answer->refused;
}

static bool is_ours(const struct run *run, size_t index) {
    int64_t n_parts = run->config->n_parts > 0 ? run->config->n_parts : 1;
    return (int64_t)index % n_parts == run->config->part;
}

// Estimates the work for the remaining time: the prompt's tokens.
static double work_of(const struct run *run, size_t cell) {
    const struct sl_eval_questions *q = run->config->questions;
    const struct sl_plan_cell *c = &q->plan->cells[cell];
    int64_t most = q->plan->max_prompt_tokens ? q->plan->max_prompt_tokens : q->max_positions;
    return (double)(c->task ? c->n_tokens : most);
}

static void count(struct run *run) {
    const struct sl_eval_plan *plan = run->config->plan;
    struct sl_eval_answer answer;
    for (size_t cell = 0; cell < plan->n_cells; cell++) {
        size_t n_samples = run->config->questions->n_samples[cell];
        run->n_rounds = n_samples > run->n_rounds ? n_samples : run->n_rounds;
        for (size_t index = 0; index < n_samples; index++) {
            for (size_t recipe = 0; is_ours(run, index) && recipe < plan->n_recipes; recipe++) {
                bool done = is_done(run, recipe, cell, index, &answer);
                run->state.total++;
                run->state.done += done;
                run->work_left += done ? 0 : work_of(run, cell);
            }
        }
    }
}

static void tell(struct run *run) {
    double seconds = (double)(sl_now_ns() - run->began_ns) / SL_NS_PER_S;
    run->state.left_s = run->work_done > 0 ? seconds * run->work_left / run->work_done : -1;
    if (run->config->progress_fn) {
        run->config->progress_fn(run->config->arg, &run->state);
    }
}

static bool is_refusal(enum sl_status status) {
    return status == SL_ERR_INVALID || status == SL_ERR_PRECONDITION || status == SL_ERR_UNSUPPORTED ||
           status == SL_ERR_RANGE;
}

static enum sl_status keep(struct run *run, size_t recipe, const struct sl_eval_answer *answer, struct sl_error *err) {
    const struct sl_eval_runner *c = run->config;
    struct sl_eval_key key = sl_eval_key_of(c->plan, c->canonical, recipe, run->state.cell, run->state.index);
    struct sl_eval_answer before;
    bool known = answer->refused && sl_eval_results_find(c->results, &key, &before) && before.refused &&
                 strcmp(before.refused, answer->refused) == 0;
    return known ? SL_OK : sl_eval_results_add(c->results, &key, answer, err);
}

static enum sl_status judge(const struct sl_eval_prompt *prompt, char *text, double *score_out, struct sl_error *err) {
    char *judged = strdup(text);
    if (!judged) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer");
    }
    if (prompt->first_line) {
        sl_metric_first_line(judged);
    }
    enum sl_status status = prompt->sample->metric->score(prompt->sample, judged, score_out, err);
    free(judged);
    return status;
}

static enum sl_status ask(struct run *run, size_t recipe, const struct sl_eval_prompt *prompt, struct sl_error *err) {
    const struct sl_plan_recipe *r = &run->config->plan->recipes[recipe];
    struct sl_question question = {.recipe = r->recipe,
                                   .ids = prompt->ids,
                                   .n_ids = prompt->n_ids,
                                   .max_new_tokens = prompt->sample->max_new_tokens};
    struct sl_eval_answer answer = {
        .name = r->name, .budget = r->budget, .prompt = prompt->hash, .n_prompt = prompt->n_ids};
    struct sl_reply reply = {0};
    struct sl_error why = {0};
    enum sl_status status = sl_answerer_ask(run->config->answerer, &question, &reply, &why);
    if (is_refusal(status)) {
        answer.refused = why.text;
        return keep(run, recipe, &answer, err);
    }
    if (status != SL_OK) {
        return sl_fail(err, status, "%.100s: %s", r->recipe, why.text[0] ? why.text : sl_status_text(status));
    }
    status = judge(prompt, reply.text, &answer.score, err);
    if (status == SL_OK) {
        answer.text = reply.text;
        answer.shipped_bytes = reply.shipped_bytes;
        answer.offloaded_bytes = reply.offloaded_bytes;
        answer.full_bytes = reply.full_bytes;
        answer.resident_bytes = reply.resident_bytes;
        answer.slots_per_head = reply.slots_per_head;
        answer.n_reused = reply.n_reused;
        answer.ttft_ms = reply.ttft_ms;
        answer.tpot_ms = reply.tpot_ms;
        status = keep(run, recipe, &answer, err);
    }
    free(reply.text);
    return status;
}

// Records a rejection as every recipe's answer, for a cell without such a question.
static enum sl_status refuse_all(struct run *run, const char *why, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < run->config->plan->n_recipes; i++) {
        const struct sl_plan_recipe *r = &run->config->plan->recipes[i];
        status = keep(run, i, &(struct sl_eval_answer){.name = r->name, .budget = r->budget, .refused = why}, err);
        run->state.done++;
        run->work_left -= work_of(run, run->state.cell);
    }
    return status;
}

static enum sl_status other_prompt(const struct run *run, struct sl_error *err) {
    return sl_fail(
        err, SL_ERR_PRECONDITION,
        "the results have answers to another prompt as number %zu of %s: the text it is made of has changed; "
        "write to another file",
        run->state.index, run->config->plan->cells[run->state.cell].name);
}

static enum sl_status ask_all(struct run *run, const struct sl_eval_prompt *prompt, struct sl_error *err) {
    size_t n_recipes = run->config->plan->n_recipes, cell = run->state.cell, index = run->state.index;
    enum sl_status status = SL_OK;
    struct sl_eval_answer before;
    for (size_t i = 0; i < n_recipes; i++) {
        if (is_done(run, i, cell, index, &before) && before.prompt != prompt->hash) {
            return other_prompt(run, err);
        }
    }
    for (run->state.recipe = 0; status == SL_OK && run->state.recipe < n_recipes; run->state.recipe++) {
        if (is_done(run, run->state.recipe, cell, index, &before)) {
            continue;
        }
        tell(run);
        status = ask(run, run->state.recipe, prompt, err);
        run->state.done++;
        run->work_done += work_of(run, cell);
        run->work_left -= work_of(run, cell);
    }
    return status;
}

static bool all_done(const struct run *run) {
    struct sl_eval_answer answer;
    for (size_t i = 0; i < run->config->plan->n_recipes; i++) {
        if (!is_done(run, i, run->state.cell, run->state.index, &answer)) {
            return false;
        }
    }
    return true;
}

static enum sl_status run_question(struct run *run, struct sl_error *err) {
    run->state.n_samples = run->config->questions->n_samples[run->state.cell];
    if (run->state.index >= run->state.n_samples || !is_ours(run, run->state.index) || all_done(run)) {
        return SL_OK;
    }
    struct sl_eval_prompt prompt;
    struct sl_error why = {0};
    enum sl_status status =
        sl_eval_prompt_make(run->config->questions, run->state.cell, run->state.index, &prompt, &why);
    if (status == SL_ERR_RANGE) {
        return refuse_all(run, why.text, err);
    }
    if (status != SL_OK) {
        return sl_fail(err, status, "%s", why.text);
    }
    status = ask_all(run, &prompt, err);
    sl_eval_prompt_cleanup(&prompt);
    return status;
}

enum sl_status sl_eval_runner_run(const struct sl_eval_runner *runner, struct sl_error *err) {
    struct run run = {.config = runner, .began_ns = sl_now_ns()};
    struct sl_eval_state *state = &run.state;
    enum sl_status status = SL_OK;
    count(&run);
    for (state->index = 0; status == SL_OK && state->index < run.n_rounds; state->index++) {
        for (state->cell = 0; status == SL_OK && state->cell < runner->plan->n_cells; state->cell++) {
            status = run_question(&run, err);
        }
    }
    if (status == SL_OK) {
        tell(&run);
    }
    return status;
}
