// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval make`: writes the prompts and answers of a plan as JSON lines, for trainers and other
// systems.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "client/cli/tool.h"
#include "lab/eval/eval.h"
#include "lab/eval/metrics/metric.h"
#include "lab/eval/run/eval_options.h"
#include "lab/eval/run/eval_questions.h"

struct make_config {
    struct sl_tool_config tool;
    struct sl_eval_options eval;
};

static const struct sl_option options[] = {
    SL_EVAL_PROMPT_OPTIONS(make_config),
    SL_EVAL_TASK_OPTIONS(make_config),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval make",
    .usage = "--model DIR (--tasks A,B | --plan FILE) [options]",
    .summary = "Write the questions that `sluice eval suites` would ask, one JSON object a line on standard output:\n"
               "task, tokens, index, prompt (without the model's begin token), answers, classes, metric, "
               "max_new_tokens, and of tasks\n"
               "completion: what stands behind the prompt where the answer is right.",
    .epilog =
        "Of the model only the tokenizer is used: prompts are as many of its tokens long. What a data set's prompt\n"
        "would lose to --max-prompt-tokens is still there.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static json_t *texts(char *const *items, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(array, sl_text_json(items[i]));
    }
    return array;
}

static enum sl_status print_prompt(const struct sl_plan_cell *cell, size_t index, const struct sl_eval_prompt *prompt,
                                   struct sl_error *err) {
    const struct sl_sample *sample = prompt->sample;
    json_t *line = json_pack("{s:o, s:I, s:I, s:o, s:o, s:o, s:s, s:i}", "task", sl_text_json(cell->name), "tokens",
                             (json_int_t)prompt->n_ids, "index", (json_int_t)index, "prompt",
                             sl_text_json(sample->prompt), "answers", texts(sample->answers, sample->n_answers),
                             "classes", texts(sample->classes, sample->n_classes), "metric", sample->metric->name,
                             "max_new_tokens", sample->max_new_tokens);
    if (line && sample->completion) {
        json_object_set_new(line, "completion", sl_text_json(sample->completion));
    }
    return sl_json_print(line, JSON_COMPACT, stdout) ? SL_OK
                                                     : sl_fail(err, SL_ERR_IO, "standard output cannot be written");
}

static enum sl_status print_prompts(const struct sl_eval_questions *questions, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t cell = 0; status == SL_OK && cell < questions->plan->n_cells; cell++) {
        for (size_t i = 0; status == SL_OK && i < questions->n_samples[cell]; i++) {
            struct sl_eval_prompt prompt;
            status = sl_eval_prompt_make(questions, cell, i, &prompt, err);
            if (status == SL_OK) {
                status = print_prompt(&questions->plan->cells[cell], i, &prompt, err);
                sl_eval_prompt_cleanup(&prompt);
            }
        }
    }
    return status == SL_OK && fflush(stdout) != 0 ? sl_fail(err, SL_ERR_IO, "standard output cannot be written")
                                                  : status;
}

static enum sl_status make(void *config, struct sl_error *err) {
    const struct sl_eval_options *o = &((struct make_config *)config)->eval;
    if (!o->model) {
        return sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    }
    struct sl_eval_plan plan;
    enum sl_status status = sl_eval_options_plan(o, &plan, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_model_config model;
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_eval_questions questions = {0};
    status = sl_model_config_load(o->model, &model, err);
    status = status == SL_OK ? sl_tokenizer_load(o->model, &tokenizer, err) : status;
    if (status == SL_OK) {
        status = sl_eval_questions_open(&plan, tokenizer, model.max_positions, o->essays.items, (size_t)o->essays.n,
                                        &questions, err);
    }
    if (status == SL_OK) {
        status = print_prompts(&questions, err);
    }
    sl_eval_questions_close(&questions);
    sl_tokenizer_destroy(&tokenizer);
    sl_eval_plan_cleanup(&plan);
    return status;
}

int sl_command_eval_make(int argc, char **argv) {
    struct make_config config = {0};
    return sl_tool_run(&program, argc, argv, &config, make);
}
