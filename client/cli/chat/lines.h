// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads typed lines: on a terminal with editing and a history (libedit), else unchanged.
 * Invariants: a thread that waits for a line notices a signal at once.
 */
#pragma once

#include <stdio.h>

#include "client/cli/tool.h"

struct sl_lines;

// Opens standard input. out: gets the prompt of a terminal. history: a file of lines typed earlier, or NULL.
enum sl_status sl_lines_open(struct sl_signals *signals, FILE *out, const char *history, struct sl_lines **lines_out,
                             struct sl_error *err);
void sl_lines_close(struct sl_lines **lines);
bool sl_lines_is_terminal(const struct sl_lines *lines);

/*
 * Returns the next line without its newline, malloc'd; the caller frees it. SL_ERR_NOT_FOUND: there are no more.
 * SL_ERR_CANCELLED: a signal came. SL_ERR_INVALID: it is longer than a request may be. SL_ERR_IO: it cannot be read.
 */
enum sl_status sl_lines_next(struct sl_lines *lines, const char *prompt, char **line_out, struct sl_error *err);
