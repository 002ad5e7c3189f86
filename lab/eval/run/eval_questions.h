// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the questions of a plan, as tokens: every cell's samples, generated or read, tokenized, and shortened if a
 *          data set's prompt is too long.
 */
#pragma once

#include "lab/eval/tasks/plan.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_eval_questions {
    const struct sl_eval_plan *plan;
    const struct sl_tokenizer *tokenizer;
    int64_t max_positions; // of the model
    struct sl_haystack *haystack;
    struct sl_dataset *datasets; // [plan->n_cells], zeros for tasks
    size_t *n_samples;           // [plan->n_cells]
};

/*
 * Opens every data set of the plan, and the haystack if it has tasks: `essays` (n_essays 0: the default of
 * sl_haystack_open()). plan and tokenizer must outlive it.
 */
enum sl_status sl_eval_questions_open(const struct sl_eval_plan *plan, const struct sl_tokenizer *tokenizer,
                                      int64_t max_positions, const char *const *essays, size_t n_essays,
                                      struct sl_eval_questions *questions_out, struct sl_error *err);
void sl_eval_questions_close(struct sl_eval_questions *questions); // accepts zeros

// Returns the most tokens that a prompt of the plan and its answer can take.
int64_t sl_eval_plan_tokens(const struct sl_eval_plan *plan, int64_t max_positions);

struct sl_eval_prompt {
    struct sl_sample made;          // made for a task; zeros for data sets
    const struct sl_sample *sample; // `made`, or the data set's
    bool first_line;                // score only the first line
    int32_t *ids;                   // [n_ids], begin token in front
    int64_t n_ids;
    uint64_t hash; // of ids
};

/*
 * Makes a prompt. SL_ERR_RANGE: the task does not fit into so few tokens. If a data set's prompt exceeds the plan's
 * max_prompt_tokens, or the model's positions minus the answer, its middle is dropped: half of the kept tokens are
 * its beginning, half its end.
 */
enum sl_status sl_eval_prompt_make(const struct sl_eval_questions *questions, size_t cell, size_t index,
                                   struct sl_eval_prompt *prompt_out, struct sl_error *err);
void sl_eval_prompt_cleanup(struct sl_eval_prompt *prompt);
