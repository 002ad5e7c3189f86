// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one question to a model, with its right answers. Tasks make samples, and files of rows hold them.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_sample {
    char *prompt;     // all text before the answer; without the begin token
    char *completion; // the expected text after the prompt: " 71, 83."; NULL: not specified
    char **answers;   // [n_answers] alternatives, or all of them
    size_t n_answers;
    int max_new_tokens; // of a task's sample
};

// Frees the sample's malloc'd members. Accepts a zeroed sample; leaves it zeroed.
void sl_sample_cleanup(struct sl_sample *sample);

// Appends a copy of `text` (n_bytes of it) to answers.
enum sl_status sl_sample_add_answer(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err);
