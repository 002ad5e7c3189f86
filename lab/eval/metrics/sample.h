// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one question to a model, with what a right answer is. What tasks make, data sets hold, runners ask and
 *          metrics judge.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_metric;

struct sl_sample {
    char *prompt;     // all that stands before the answer; without the begin token
    char *completion; // what a model that knows the answer writes behind the prompt: " 71, 83."; NULL: nobody has said
    char *
        *answers; // [n_answers] what the metric compares with: alternatives, or all of them (lab/eval/metrics/metric.h)
    size_t n_answers;
    char **classes; // [n_classes] of metrics that classify; else none
    size_t n_classes;
    const struct sl_metric *metric; // never NULL in a finished sample
    int max_new_tokens;
};

// Everything is malloc'd and the sample's. Accepts one that is all zeros, and leaves it so.
void sl_sample_cleanup(struct sl_sample *sample);

// Append a copy of `text` (n_bytes of it) to answers or classes.
enum sl_status sl_sample_add_answer(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err);
enum sl_status sl_sample_add_class(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err);
