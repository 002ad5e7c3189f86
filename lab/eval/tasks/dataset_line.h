// SPDX-License-Identifier: Apache-2.0
// Purpose: one line of a data set: how a format names the members of its JSON objects, and a sample made from one.
#pragma once

#include <stdbool.h>

#include "lab/eval/metrics/sample.h"

struct sl_dataset_format {
    const char *name;
    const char *input, *answers;      // members
    const char *input_end, *answers2; // members too, NULL: none: put behind the input; in the place of answers
    const char *prompt;               // where none is given
    const char *metric;               // where none is given; NULL: must be
    bool letters;                     // the answer to a choice is an option's text, its letter is found here
};

// NULL: no such format. sl_dataset_formats(): all, up to one whose name is NULL.
const struct sl_dataset_format *sl_dataset_format_find(const char *name);
const struct sl_dataset_format *sl_dataset_formats(void);

// How a data set's lines become samples.
struct sl_dataset_form {
    const struct sl_dataset_format *format;
    const char *prompt;
    const struct sl_metric *metric;
    int max_new_tokens;
};

// line: [n_bytes] JSON text. SL_ERR_INVALID says what is wrong with it, not where it stands.
enum sl_status sl_dataset_read_line(const struct sl_dataset_form *form, const char *line, size_t n_bytes,
                                    struct sl_sample *sample_out, struct sl_error *err);
