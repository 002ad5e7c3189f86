// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what is typed, line by line: on a terminal with editing and a history (libedit), else as it comes.
 * Invariants: whoever waits for a line notices a signal at once.
 */
#pragma once

#include <stdio.h>

#include "client/cli/tool.h"

struct sl_lines;

// Of standard input. out: where a terminal's prompt goes. history: a file of lines typed before, or NULL.
enum sl_status sl_lines_open(struct sl_signals *signals, FILE *out, const char *history, struct sl_lines **lines_out,
                             struct sl_error *err);
void sl_lines_close(struct sl_lines **lines);
bool sl_lines_is_terminal(const struct sl_lines *lines);

/*
 * The next line without its end, malloc'd, the caller's to free. SL_ERR_NOT_FOUND: there are no more. SL_ERR_CANCELLED: a signal came.
 * SL_ERR_INVALID: it is longer than a request may be. SL_ERR_IO: it cannot be read.
 */
enum sl_status sl_lines_next(struct sl_lines *lines, const char *prompt, char **line_out, struct sl_error *err);
