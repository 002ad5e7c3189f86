// SPDX-License-Identifier: Apache-2.0
// Purpose: reads lines of bounded length from a file descriptor, and stops waiting when a signal comes.
#pragma once

#include "client/cli/tool.h"

struct sl_jsonl_lines {
    int fd;
    size_t max_bytes; // of a line
    struct sl_signals *signals;
    char *buffer; // [capacity]; [begin, end) has been read and not been returned
    size_t capacity, begin, end, number;
    bool has_ended;
};

struct sl_jsonl_line {
    const char *text;       // [n_bytes], valid until the next call
    size_t n_bytes, number; // number: from 1, blank lines included
    bool is_end;            // the input has ended: there is no line
    bool is_too_long;       // text has only its beginning; the rest was skipped
};

// Reads the next line that is not blank. A last line needs no newline. SL_ERR_CANCELLED: a signal came. SL_ERR_IO,
// SL_ERR_EXHAUSTED: nothing more can be read.
enum sl_status sl_jsonl_lines_next(struct sl_jsonl_lines *lines, struct sl_jsonl_line *line_out, struct sl_error *err);
void sl_jsonl_lines_cleanup(struct sl_jsonl_lines *lines);
