// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: generates synthetic tasks of any length, for any tokenizer, from a seed, as training prompts. RULER and
 *          InfiniteBench define the tasks; the wording is ours (docs/EVALUATION.md has their list).
 *          lab/sluice_eval asks the same prompts: its tests compare both.
 *
 * Design: a task is a row of a table and a function that writes the parts of a prompt. One search that counts tokens
 *         finds how much haystack fits, for all tasks. The same (task, tokens, seed, index) gives the same bytes on
 *         every machine.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lab/tasks/sample.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_haystack; // running text to hide facts in

/*
 * Reads text files, with white space runs as one space. Without any (n_paths 0): the licenses in
 * /usr/share/common-licenses. SL_ERR_NOT_FOUND names the file and, for the default, asks for a text.
 */
enum sl_status sl_haystack_open(const char *const *paths, size_t n_paths, struct sl_haystack **haystack_out,
                                struct sl_error *err);
void sl_haystack_close(struct sl_haystack **haystack);

struct sl_task {
    const char *name;    // "niah-essay"
    const char *summary; // the question
    int max_new_tokens;
    int n_facts;                     // number of hidden facts; 0: the question is about the text itself
    bool has_depth;                  // the question is about one fact, which can be placed at a depth
    int min_tokens;                  // a shorter prompt has no room for it with any tokenizer
    const struct sl_task_kind *kind; // lab/tasks/task_internal.h
};

const struct sl_task *sl_tasks(void); // all, up to one whose name is NULL
const struct sl_task *sl_task_find(const char *name);

#define SL_TASK_MAX_TOKENS (1 << 26) // of a prompt

struct sl_task_config {
    const struct sl_tokenizer *tokenizer;
    const struct sl_haystack *haystack; // may be NULL for tasks that hide nothing in running text
    int64_t n_tokens;                   // most tokens of the prompt, including the begin token; it has as many as fit
    uint64_t seed;
    double depth; // position of the asked fact, from 0 (before all text) to 1 (before the question); negative: any
};

/*
 * Makes sample number `index`. SL_ERR_RANGE: n_tokens has no room for the facts and the question (err gives the
 * required number), is above SL_TASK_MAX_TOKENS, or more than the task has different words for. SL_ERR_UNSUPPORTED: a
 * depth for a task without has_depth. SL_ERR_INVALID: no such depth; no haystack. The caller cleans up sample_out.
 */
enum sl_status sl_task_make(const struct sl_task *task, const struct sl_task_config *config, uint64_t index,
                            struct sl_sample *sample_out, struct sl_error *err);
