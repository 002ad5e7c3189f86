// SPDX-License-Identifier: Apache-2.0
// Purpose: the questions of a plan, as tokens. See eval_questions.h.
#include "lab/eval/run/eval_questions.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static bool has_tasks(const struct sl_eval_plan *plan) {
    for (size_t i = 0; i < plan->n_cells; i++) {
        if (plan->cells[i].task) {
            return true;
        }
    }
    return false;
}

enum sl_status sl_eval_questions_open(const struct sl_eval_plan *plan, const struct sl_tokenizer *tokenizer,
                                      int64_t max_positions, const char *const *essays, size_t n_essays,
                                      struct sl_eval_questions *questions_out, struct sl_error *err) {
    struct sl_eval_questions q = {.plan = plan, .tokenizer = tokenizer, .max_positions = max_positions};
    q.datasets = calloc(plan->n_cells, sizeof *q.datasets);
    q.n_samples = calloc(plan->n_cells, sizeof *q.n_samples);
    enum sl_status status =
        q.datasets && q.n_samples ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu cells", plan->n_cells);
    if (status == SL_OK && has_tasks(plan)) {
        status = sl_haystack_open(essays, n_essays, &q.haystack, err);
    }
    for (size_t i = 0; status == SL_OK && i < plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &plan->cells[i];
        q.n_samples[i] = (size_t)cell->n_samples;
        if (!cell->task) {
            status = sl_dataset_open(&cell->dataset, &q.datasets[i], err);
            q.n_samples[i] = q.datasets[i].n;
        }
    }
    if (status != SL_OK) {
        sl_eval_questions_close(&q);
        return status;
    }
    *questions_out = q;
    return SL_OK;
}

void sl_eval_questions_close(struct sl_eval_questions *q) {
    for (size_t i = 0; q->datasets && i < q->plan->n_cells; i++) {
        sl_dataset_cleanup(&q->datasets[i]);
    }
    free(q->datasets);
    free(q->n_samples);
    sl_haystack_close(&q->haystack);
    *q = (struct sl_eval_questions){0};
}

int64_t sl_eval_plan_tokens(const struct sl_eval_plan *plan, int64_t max_positions) {
    int64_t most = 0;
    for (size_t i = 0; i < plan->n_cells; i++) {
        const struct sl_plan_cell *cell = &plan->cells[i];
        int64_t n = cell->task ? cell->n_tokens + cell->task->max_new_tokens : max_positions;
        most = n > most ? n : most;
    }
    return most < max_positions ? most : max_positions;
}

// Keeps half of the tokens that fit from each end.
static void cut_middle(struct sl_eval_prompt *prompt, int64_t most) {
    if (prompt->n_ids > most) {
        int64_t head = most / 2, tail = most - head;
        memmove(prompt->ids + head, prompt->ids + prompt->n_ids - tail, (size_t)tail * sizeof *prompt->ids);
        prompt->n_ids = most;
    }
}

static int64_t most_tokens(const struct sl_eval_questions *q, const struct sl_sample *sample) {
    int64_t most = q->max_positions - sample->max_new_tokens;
    return q->plan->max_prompt_tokens && q->plan->max_prompt_tokens < most ? q->plan->max_prompt_tokens : most;
}

enum sl_status sl_eval_prompt_make(const struct sl_eval_questions *q, size_t cell, size_t index,
                                   struct sl_eval_prompt *prompt_out, struct sl_error *err) {
    const struct sl_plan_cell *c = &q->plan->cells[cell];
    struct sl_eval_prompt prompt = {0};
    enum sl_status status = SL_OK;
    if (c->task) {
        struct sl_task_config config = {.tokenizer = q->tokenizer,
                                        .haystack = q->haystack,
                                        .n_tokens = c->n_tokens,
                                        .seed = q->plan->seed,
                                        .depth = c->depth};
        status = sl_task_make(c->task, &config, index, &prompt.made, err);
    }
    if (status != SL_OK) {
        return status;
    }
    prompt.sample = c->task ? &prompt.made : &q->datasets[cell].samples[index];
    prompt.first_line = !c->task && q->datasets[cell].first_line;
    size_t n_ids;
    status = sl_tokenizer_encode(q->tokenizer, prompt.sample->prompt, strlen(prompt.sample->prompt), true, &prompt.ids,
                                 &n_ids, err);
    prompt.n_ids = (int64_t)n_ids;
    if (status == SL_OK && !c->task) {
        int64_t most = most_tokens(q, prompt.sample);
        if (most < 2) {
            status = sl_fail(err, SL_ERR_RANGE, "%s: answers of %d tokens leave no room for a prompt in %lld positions",
                             c->name, prompt.sample->max_new_tokens, (long long)q->max_positions);
        } else {
            cut_middle(&prompt, most);
        }
    }
    if (status != SL_OK) {
        sl_eval_prompt_cleanup(&prompt);
        return status;
    }
    prompt.hash = sl_hash(prompt.ids, (size_t)prompt.n_ids * sizeof *prompt.ids, 0);
    *prompt_out = prompt;
    if (c->task) {
        prompt_out->sample = &prompt_out->made;
    }
    return SL_OK;
}

void sl_eval_prompt_cleanup(struct sl_eval_prompt *prompt) {
    sl_sample_cleanup(&prompt->made);
    free(prompt->ids);
    *prompt = (struct sl_eval_prompt){0};
}
