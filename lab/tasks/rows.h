// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training rows from JSON lines: {"prompt", "answers" or "answer"}. Answers are texts or numbers, or a list of
 *          them. Other members are ignored. `python3 -m sluice_eval dump` writes such lines.
 *
 * Design: files may have gigabytes: one line is parsed at a time, and only the sample's texts are kept.
 */
#pragma once

#include "lab/tasks/sample.h"

struct sl_training_rows {
    struct sl_sample *samples; // [n] with a prompt and answers
    size_t n;
};

// Reads the whole file. SL_ERR_INVALID names the file and the line; SL_ERR_NOT_FOUND and SL_ERR_IO name the path.
enum sl_status sl_training_rows_open(const char *path, struct sl_training_rows *rows_out, struct sl_error *err);
void sl_training_rows_cleanup(struct sl_training_rows *rows);
