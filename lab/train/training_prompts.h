// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training prompts of retaining heads with their answers, as tokens: rows of a JSONL file, synthetic tasks of any
 *          length, or both alternating.
 *
 * Design: a Python process writes them (lab/sluice_eval/sluice_eval/training.py has the protocol), by the code that asks the
 *         same tasks in an evaluation. It asks this process how many tokens a text has. Prompt i is a function of the
 *         configuration and i, so a resumed run gets the same prompts.
 */
#pragma once

#include "base/options/config.h"
#include "engine/text/tokenizer/tokenizer.h"

struct sl_training_prompts_config {
    const struct sl_tokenizer *tokenizer;
    const char *data;            // rows {"prompt", "answer"}; NULL: none
    struct sl_option_list tasks; // NAME, NAME:TOKENS or NAME:MIN-MAX; "all" for all that fit
    struct sl_option_list texts; // the haystack of tasks; none: the licences of this system
    int64_t max_tokens;          // of prompt and answer together: a longer one loses its beginning
    uint64_t seed;
};

struct sl_training_prompts;

// Starts the process. SL_ERR_INVALID names the option, or the file and its line. SL_ERR_UNSUPPORTED: no Python, or no NumPy.
enum sl_status sl_training_prompts_open(const struct sl_training_prompts_config *config,
                                        struct sl_training_prompts **prompts_out, struct sl_error *err);
void sl_training_prompts_close(struct sl_training_prompts **prompts);

struct sl_training_prompt {
    int32_t *tokens; // [n_tokens]; the caller's to free
    int64_t n_tokens, n_prompt;
};
// Waits until the prompt is written, 10 minutes at most between two messages of the process.
enum sl_status sl_training_prompts_get(struct sl_training_prompts *prompts, uint64_t index,
                                       struct sl_training_prompt *prompt_out, struct sl_error *err);
