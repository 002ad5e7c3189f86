// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: questions of published benchmarks from the JSON lines that their authors distribute:
 *
 *     longbench      {"input", "context", "answers": [...], "all_classes": [...] or null, "length", "_id", ...}
 *     infinitebench  {"context", "input", "answer": text or [...], "options": [...], "id"}
 *     ruler          {"input", "outputs": [...], "index", "length"}    (NVIDIA's generator)
 *     sluice         {"prompt", "answers" or "answer", "classes"}      (plain)
 */
#ifndef SL_EVAL_DATASET_H
#define SL_EVAL_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "eval/sample.h"

struct sl_dataset_config {
    const char *name;   // "hotpotqa"
    const char *path;   // of the JSONL
    const char *format; // above
    const char *prompt; // {context}, {input} and {options} are put in; NULL: context, a newline, input
    const char *metric; // NULL: the format's (ruler: contains-all)
    int max_new_tokens;
    int64_t max_samples; // 0: all
    bool first_line;     // judge only that (sl_metric_first_line())
};

struct sl_dataset {
    char *name;
    bool first_line;
    struct sl_sample *samples; // [n]
    size_t n;
};

// Read the whole file. SL_ERR_INVALID names the file and the line; SL_ERR_NOT_FOUND says where it was looked for.
enum sl_status sl_dataset_open(const struct sl_dataset_config *config, struct sl_dataset *dataset_out,
                               struct sl_error *err);
void sl_dataset_cleanup(struct sl_dataset *dataset);

#endif
