// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the text of a document's source: a text file, standard input, a folder of code, or a PDF, HTML or office
 *          file, whose text a program of the distribution extracts.
 *
 *     doc_text.c   chooses among these    doc_convert.c   other programs    doc_folder.c   folders
 *
 * Threads: before sl_rpc_init(), because a conversion forks.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define SL_DOC_TEXT_BYTES ((size_t)4000000) // the coordinator takes messages of 4 MiB

struct sl_doc_source {
    const char *path;   // "-": standard input
    bool as_is;         // convert nothing
    int64_t timeout_ms; // of a conversion
    FILE *notes;        // gets a line that says what was converted or skipped; NULL: none
};

/*
 * Reads a source: malloc'd UTF-8 without zero bytes, at most SL_DOC_TEXT_BYTES. SL_ERR_INVALID: no such file, no text,
 * or too large. SL_ERR_UNSUPPORTED: the program for its format is not installed. SL_ERR_IO: the program failed.
 * SL_ERR_DEADLINE: it did not end in time.
 */
enum sl_status sl_doc_text_read(const struct sl_doc_source *source, char **text_out, struct sl_error *err);

// ---- its parts ------------------------------------------------------------------------------------------------------

// Formats, recognized by content.
enum sl_doc_format {
    SL_DOC_PLAIN,
    SL_DOC_PDF,
    SL_DOC_HTML,
    SL_DOC_DOCX,
    SL_DOC_ODT,
    SL_DOC_EPUB,
    SL_DOC_RTF,
    SL_DOC_PPTX,
    SL_DOC_XLSX,
    SL_DOC_OPEN_DOCUMENT, // spreadsheets, slides and drawings
    SL_DOC_OFFICE,        // formats before 2007
};

// Recognizes the format of a file that can be read at any offset.
enum sl_doc_format sl_doc_format_of(int fd);

/*
 * Has an installed program extract the text of fd, from offset 0. *file_out gets the text, of at most SL_DOC_TEXT_BYTES, from its
 * beginning; the caller closes it. `name` is for messages.
 */
enum sl_status sl_doc_convert(const struct sl_doc_source *source, int fd, enum sl_doc_format format, const char *name,
                              FILE **file_out, struct sl_error *err);

/*
 * Joins the text files of a folder, in order of their paths, each after a line with its path. Skips folders of version
 * control, links, and files that are not text, and counts them in source->notes.
 */
enum sl_status sl_doc_folder_read(const struct sl_doc_source *source, char **text_out, struct sl_error *err);
