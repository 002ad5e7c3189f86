// SPDX-License-Identifier: Apache-2.0
// Purpose: reads lines of bounded length from a file descriptor, and stops waiting when a signal comes.
#pragma once

#include "client/cli/tool.h"

struct sl_line_reader {
    int fd;
    size_t max_bytes; // of a line
    struct sl_signals *signals;
    char *buffer; // [capacity]; [begin, end) has been read and not been returned
    size_t capacity, begin, end, number;
    bool has_ended;
};

struct sl_input_line {
    const char *text;       // [n_bytes], valid until the next call
    size_t n_bytes, number; // number: from 1, blank lines included
    bool is_end;            // the input has ended: there is no line
    bool is_too_long;       // text has only its beginning; the rest was skipped
};

// Reads the next line. A last line needs no newline. SL_ERR_CANCELLED: a signal came. SL_ERR_IO,
// SL_ERR_EXHAUSTED: nothing more can be read.
enum sl_status sl_line_reader_next(struct sl_line_reader *lines, struct sl_input_line *line_out, struct sl_error *err);
void sl_line_reader_cleanup(struct sl_line_reader *lines);
