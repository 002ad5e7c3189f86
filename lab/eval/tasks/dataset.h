// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: questions of published benchmarks from the JSON lines that their authors distribute:
 *
 *     longbench      {"input", "context", "answers": [...], "all_classes": [...] or null, "length", "_id", ...}
 *     infinitebench  {"context", "input", "answer": text or [...], "options": [...], "id"}
 *     ruler          {"input", "outputs": [...], "index", "length"}    (NVIDIA's generator)
 *     sluice         {"prompt", "answers" or "answer", "classes"}      (plain)
 *
 * Answers are texts or numbers. Other members are ignored. ruler's "answer_prefix", where a line has one, ends the prompt;
 * a choice of infinitebench is judged by the option's text and its letter, which is looked up in "options".
 *
 * Design: name and format say which task of the benchmark a file is (lab/eval/tasks/benchmark.h), and what is not given follows from
 *         that. Files may be of gigabytes: one line is parsed at a time, of which the sample's texts are kept.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lab/eval/metrics/sample.h"

struct sl_dataset_config {
    const char *name;   // "hotpotqa"
    const char *path;   // of the JSONL
    const char *format; // above
    // {context}, {input} and {options} are put in. NULL: the task's prompt; of a file that is none of the benchmark's tasks
    // context, a newline and input, of ruler and sluice input alone.
    const char *prompt;
    const char *metric;  // NULL: the task's; of another file of ruler or sluice contains-all
    int max_new_tokens;  // 0: the task's
    int64_t max_samples; // the first of them; 0: all
    bool first_line;     // judge only that (sl_metric_first_line()); also done where the task says so
};

// What sl_dataset_open() would refuse without looking at the file.
enum sl_status sl_dataset_check(const struct sl_dataset_config *config, struct sl_error *err);

struct sl_dataset {
    char *name;
    bool first_line;
    struct sl_sample *samples; // [n]
    size_t n;
};

// Read the whole file. SL_ERR_INVALID names the file and the line, or what of config does not fit; SL_ERR_NOT_FOUND says
// where it was looked for; SL_ERR_UNSUPPORTED: a task of the benchmark that is left out, and why.
enum sl_status sl_dataset_open(const struct sl_dataset_config *config, struct sl_dataset *dataset_out,
                               struct sl_error *err);
void sl_dataset_cleanup(struct sl_dataset *dataset);
