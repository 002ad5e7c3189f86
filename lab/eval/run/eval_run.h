// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: asks every question of a plan under every recipe, scores the answers and stores them.
 *
 * Design: asks the first sample of every cell, then the second of every cell, and so on; each under all recipes,
 *         `full` first. So a prompt is made and tokenized once, and a run that is stopped has about equally many
 *         answers of every recipe and cell. Answers in the results are not asked again.
 */
#pragma once

#include "lab/eval/run/answerer.h"
#include "lab/eval/run/eval_questions.h"
#include "lab/eval/run/eval_results.h"

// Progress of a run, and its next question.
struct sl_eval_state {
    size_t done, total; // answers, including earlier ones
    size_t cell;        // of the plan; n_cells: none is left
    size_t index, n_samples;
    size_t recipe;
    double left_s; // estimate; negative: not known yet
};

struct sl_eval_runner {
    const struct sl_eval_plan *plan;
    const char *const *canonical; // [plan->n_recipes] (sl_eval_canonical())
    const struct sl_eval_questions *questions;
    struct sl_answerer *answerer;
    struct sl_eval_results *results;
    int64_t part, n_parts; // this process asks questions part, part + n_parts, ...; 0, 1: all
    // Called before every answer that is still missing, and at the end. May be NULL.
    void (*progress_fn)(void *arg, const struct sl_eval_state *state);
    void *arg;
};

// Writes the canonical texts of a plan's recipes. SL_ERR_INVALID: one cannot be parsed. *texts_out: one block, the
// caller's to free.
enum sl_status sl_eval_canonical(const struct sl_eval_plan *plan, const char ***texts_out, struct sl_error *err);

// Returns the key of a plan's sample.
struct sl_eval_key sl_eval_key_of(const struct sl_eval_plan *plan, const char *const *canonical, size_t recipe,
                                  size_t cell, size_t index);

/*
 * Runs the questions. If the model or the prompt's length rejects a recipe, or a task does not fit into its tokens,
 * the answer records this (`refused`). SL_ERR_CANCELLED: the answerer was stopped. Any other failure ends the run;
 * the results keep the answers so far. SL_ERR_PRECONDITION: the results have an answer to another prompt for the same
 * question.
 */
enum sl_status sl_eval_runner_run(const struct sl_eval_runner *runner, struct sl_error *err);
