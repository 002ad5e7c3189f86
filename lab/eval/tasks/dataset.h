// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: questions of published benchmarks from the JSON lines that their authors distribute:
 *
 *     longbench      {"input", "context", "answers": [...], "all_classes": [...] or null, "length", "_id", ...}
 *     infinitebench  {"context", "input", "answer": text or [...], "options": [...], "id"}
 *     ruler          {"input", "outputs": [...], "index", "length"}    (NVIDIA's generator)
 *     sluice         {"prompt", "answers" or "answer", "classes"}      (plain)
 *
 * Answers are texts or numbers. Other members are ignored. If a ruler line has "answer_prefix", it ends the prompt. A
 * choice of infinitebench is scored by the option's text and its letter, which is looked up in "options".
 *
 * Design: name and format identify the benchmark's task (lab/eval/tasks/benchmark.h), which supplies missing values.
 *         Files may have gigabytes: one line is parsed at a time, and only the sample's texts are kept.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lab/eval/metrics/sample.h"

struct sl_dataset_config {
    const char *name;   // "hotpotqa"
    const char *path;   // path of the JSONL file
    const char *format; // one of the formats above
    // {context}, {input} and {options} are replaced. NULL: the task's prompt. For a file that is none of the
    // benchmark's tasks: context, a newline and input; for ruler and sluice only input.
    const char *prompt;
    const char *metric;  // NULL: the task's; contains-all for other ruler and sluice files
    int max_new_tokens;  // 0: the task's
    int64_t max_samples; // the first of them; 0: all
    bool first_line;     // score only the first line (sl_metric_first_line()); also if the task requires it
};

// Checks everything that sl_dataset_open() would reject without reading the file.
enum sl_status sl_dataset_check(const struct sl_dataset_config *config, struct sl_error *err);

struct sl_dataset {
    char *name;
    bool first_line;
    struct sl_sample *samples; // [n]
    size_t n;
};

// Reads the whole file. SL_ERR_INVALID names the file and the line, or the invalid member of config; SL_ERR_NOT_FOUND
// names the path; SL_ERR_UNSUPPORTED: an unsupported task of the benchmark, with the reason.
enum sl_status sl_dataset_open(const struct sl_dataset_config *config, struct sl_dataset *dataset_out,
                               struct sl_error *err);
void sl_dataset_cleanup(struct sl_dataset *dataset);
