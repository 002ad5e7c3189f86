// SPDX-License-Identifier: Apache-2.0
// Purpose: one line of a data set: a format's names for the members of its JSON objects, and how a sample is made
// from one.
#pragma once

#include <stdbool.h>

#include "lab/eval/metrics/sample.h"

struct sl_dataset_format {
    const char *name;
    const char *input, *answers;      // members
    const char *input_end, *answers2; // members too, or NULL: appended to the input; used instead of answers
    const char *prompt;               // default
    const char *metric;               // default; NULL: required
    bool letters;                     // the answer to a choice is an option's text; its letter is found here
};

// sl_dataset_format_find() returns NULL if there is no such format. sl_dataset_formats() returns all, up to one whose
// name is NULL.
const struct sl_dataset_format *sl_dataset_format_find(const char *name);
const struct sl_dataset_format *sl_dataset_formats(void);

// Converts a data set's lines to samples.
struct sl_dataset_form {
    const struct sl_dataset_format *format;
    const char *prompt;
    const struct sl_metric *metric;
    int max_new_tokens;
};

// Reads a line: [n_bytes] JSON text. SL_ERR_INVALID describes the error, not its location.
enum sl_status sl_dataset_read_line(const struct sl_dataset_form *form, const char *line, size_t n_bytes,
                                    struct sl_sample *sample_out, struct sl_error *err);
