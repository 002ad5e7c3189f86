// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: ask every question of a plan under every recipe, and judge and keep the answers.
 *
 * Design: the first sample of every cell, then the second of every cell, ...; and of every one all recipes,
 *         `full` first. So a prompt is made and tokenized once, and a run that is stopped has about as many answers of
 *         one recipe and one cell as of another. What the results have already is not asked again.
 */
#pragma once

#include "lab/eval/run/answerer.h"
#include "lab/eval/run/eval_questions.h"
#include "lab/eval/run/eval_results.h"

// What has been done, and what is next.
struct sl_eval_state {
    size_t done, total; // answers, those that were there before included
    size_t cell;        // of the plan; n_cells: none is left
    size_t index, n_samples;
    size_t recipe;
    double left_s; // about; negative: not known yet
};

struct sl_eval_runner {
    const struct sl_eval_plan *plan;
    const char *const *canonical; // [plan->n_recipes] (sl_eval_canonical())
    const struct sl_eval_questions *questions;
    struct sl_answerer *answerer;
    struct sl_eval_results *results;
    int64_t part, n_parts; // of several processes this one asks questions part, part + n_parts, ...; 0, 1: all
    // Before every answer that is not there yet, and at the end. May be NULL.
    void (*progress_fn)(void *arg, const struct sl_eval_state *state);
    void *arg;
};

// The canonical texts of a plan's recipes. SL_ERR_INVALID: one cannot be read. *texts_out: one block, to be freed.
enum sl_status sl_eval_canonical(const struct sl_eval_plan *plan, const char ***texts_out, struct sl_error *err);

// Which question a sample of the plan is.
struct sl_eval_key sl_eval_key_of(const struct sl_eval_plan *plan, const char *const *canonical, size_t recipe,
                                  size_t cell, size_t index);

/*
 * A recipe that the model or the prompt's length refuses, and a task without room in its tokens, become answers that
 * say so (`refused`). SL_ERR_CANCELLED: the answerer was stopped. Anything else that goes wrong ends the run; the
 * results keep what there is. SL_ERR_PRECONDITION: the results have an answer to another prompt for the same question.
 */
enum sl_status sl_eval_runner_run(const struct sl_eval_runner *runner, struct sl_error *err);
