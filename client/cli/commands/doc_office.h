// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: extracts the text of office files that no small program of the distribution reads: presentations and
 *          OpenDocument; and of Word's and OpenDocument's texts where pandoc, which does it better, is not installed.
 *
 * Design: paragraphs and rows become lines, cells are separated by tabs, slides and tables by an empty line. Deleted text,
 *         comments and speaker's notes are left out.
 */
#pragma once

#include "client/cli/commands/doc_text.h"

// Returns whether files of this format are read here.
bool sl_doc_office_reads(enum sl_doc_format format);

/*
 * Writes the text of the archive fd to `out`. SL_ERR_INVALID: it is damaged, or it or its text is too large; SL_ERR_EXHAUSTED.
 * `name` is for messages.
 */
enum sl_status sl_doc_office_read(int fd, enum sl_doc_format format, const char *name, FILE *out, struct sl_error *err);
