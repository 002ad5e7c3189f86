// SPDX-License-Identifier: Apache-2.0
// Purpose: the options that define the questions and the answerer, shared by `sluice eval suites`, `grid` and `make`,
// and the plan made from them.
#pragma once

#include "lab/eval/run/answerer.h"
#include "lab/eval/tasks/plan.h"
#include "base/options/config.h"
#include "engine/runtime/device_choice.h"

struct sl_eval_options {
    const char *model, *plan, *data, *tasks, *lengths; // the questions
    struct sl_option_list essays;
    int64_t samples, seed, max_prompt_tokens;
    const char *weights, *device, *coordinator, *budgets, *out; // the answers
    struct sl_tls_files tls;
    struct sl_option_list recipes;
    int64_t threads, deadline_ms;
};

// Option rows for the member `eval` of the command's config struct `type`: the source of prompts.
#define SL_EVAL_PROMPT_OPTIONS(type)                                                                                   \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, NULL, "MODEL",                                                        \
                  "model folder, GGUF file, or a name of `sluice models`", SL_FIELD(type, eval.model)),                \
        SL_OPTION_ROW("lengths", 0, SL_OPTION_STRING, "4096", "N,N", "of the tasks' prompts, in tokens of this model", \
                      SL_FIELD(type, eval.lengths)),                                                                   \
        SL_OPTION_ROW("samples", 0, SL_OPTION_INT, "0", "N",                                                           \
                      "questions of a task and length; 0: as the plan says, or 10", SL_FIELD(type, eval.samples), 0,   \
                      1 << 20),                                                                                        \
        SL_OPTION_ROW("seed", 0, SL_OPTION_INT, "1", "N", "of the tasks", SL_FIELD(type, eval.seed), 0, 1LL << 48),    \
        SL_OPTION_ROW("essay", 0, SL_OPTION_LIST, NULL, "FILE",                                                        \
                      "a text to hide facts in; may be given several times. Without: the licences of this system",     \
                      SL_FIELD(type, eval.essays))

// Option rows for questions, by name or by file.
#define SL_EVAL_TASK_OPTIONS(type)                                                                                     \
    SL_OPTION_ROW("tasks", 0, SL_OPTION_STRING, NULL, "A,B", "tasks by name (--list), or all",                         \
                  SL_FIELD(type, eval.tasks)),                                                                         \
        SL_OPTION_ROW(                                                                                                 \
            "plan", 0, SL_OPTION_STRING, NULL, "FILE",                                                                 \
            "tasks, data sets, recipes, budgets and claims in a file (lab/eval/papers/), instead of options",          \
            SL_FIELD(type, eval.plan)),                                                                                \
        SL_OPTION_ROW("data", 0, SL_OPTION_STRING, NULL, "DIR",                                                        \
                      "where the plan's data sets are; without: beside the plan", SL_FIELD(type, eval.data)),          \
        SL_OPTION_ROW(                                                                                                 \
            "max-prompt-tokens", 0, SL_OPTION_INT, "0", "N",                                                           \
            "a data set's longer prompts lose their middle; 0: as the plan says, or what the model was made for",      \
            SL_FIELD(type, eval.max_prompt_tokens), 0, 1LL << 32)

// Option rows for the answerer in this process.
#define SL_EVAL_ASK_OPTIONS(type)                                                                                      \
    SL_OPTION_ROW("recipe", 'r', SL_OPTION_LIST, NULL, "RECIPE",                                                       \
                  "beside full; may be given several times, or as a list joined by ';'; presets: all of them",         \
                  SL_FIELD(type, eval.recipes)),                                                                       \
        SL_OPTION_ROW("budget", 'b', SL_OPTION_STRING, NULL, "B,B",                                                    \
                      "such as 5%,20%,512: each in the place of {budget}, or of recipes that evict and name none",     \
                      SL_FIELD(type, eval.budgets)),                                                                   \
        SL_OPTION_ROW("weights", 0, SL_OPTION_STRING, "stored", "FORMAT",                                              \
                      "of the model's weights in memory: stored, int8 or int4", SL_FIELD(type, eval.weights)),         \
        SL_OPTION_ROW("out", 'o', SL_OPTION_STRING, NULL, "FILE",                                                      \
                      "keep every answer there as a JSON line; a run that was stopped goes on from it",                \
                      SL_FIELD(type, eval.out)),                                                                       \
        SL_OPTION_ROW("threads", 0, SL_OPTION_INT, "0", "N", "in this process; 0 is one per processor",                \
                      SL_FIELD(type, eval.threads), 0, 1024),                                                          \
        SL_DEVICE_OPTION(type, eval.device)

// The same rows, if the answerer may be a cluster.
#define SL_EVAL_CLUSTER_OPTIONS(type)                                                                                  \
    SL_OPTION_ROW("coordinator", 'c', SL_OPTION_STRING, NULL, "HOST:PORT",                                             \
                  "ask the cluster there. Without: everything in this process", SL_FIELD(type, eval.coordinator)),     \
        SL_TLS_OPTIONS(type, eval.tls, "operator"),                                                                    \
        SL_OPTION_ROW("deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "of one answer of a cluster",                  \
                      SL_FIELD(type, eval.deadline_ms), 1, 86400000)

/*
 * Makes the plan from the file, or from the options: tasks at lengths, `full` and the recipes. SL_ERR_INVALID names
 * the option. The caller cleans it up.
 */
enum sl_status sl_eval_options_plan(const struct sl_eval_options *options, struct sl_eval_plan *plan_out,
                                    struct sl_error *err);

// Adds `full`, the recipes, and the recipes at every budget.
enum sl_status sl_eval_options_recipes(const struct sl_eval_options *options, struct sl_eval_plan *plan,
                                       struct sl_error *err);

// Finds a task. SL_ERR_INVALID: there is no such task; the error suggests a similar name.
enum sl_status sl_eval_find_task(const char *name, const struct sl_task **task_out, struct sl_error *err);

// Parses "4096,8192", each from least to most. *numbers_out is malloc'd, the caller's to free. `option`: for
// messages.
enum sl_status sl_eval_parse_numbers(const char *option, const char *text, int64_t least, int64_t most,
                                     int64_t **numbers_out, size_t *n_out, struct sl_error *err);
