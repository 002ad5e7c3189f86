// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one question to a model, with its right answers. Tasks make samples, data sets hold them, runners ask them
 *          and metrics score them.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_metric;

struct sl_sample {
    char *prompt;     // all text before the answer; without the begin token
    char *completion; // the expected text after the prompt: " 71, 83."; NULL: not specified
    char **answers;   // [n_answers] for the metric: alternatives, or all of them (lab/eval/metrics/metric.h)
    size_t n_answers;
    char **classes; // [n_classes] for metrics that classify; else none
    size_t n_classes;
    const struct sl_metric *metric; // never NULL in a finished sample
    int max_new_tokens;
};

// Frees the sample's malloc'd members. Accepts a zeroed sample; leaves it zeroed.
void sl_sample_cleanup(struct sl_sample *sample);

// Appends a copy of `text` (n_bytes of it) to answers or classes.
enum sl_status sl_sample_add_answer(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err);
enum sl_status sl_sample_add_class(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err);
