// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a small file that an operator may replace while we run: keys, certificates. It is read whole, and again when
 *          it has changed.
 *
 * Design: the file is checked when it is used, at most once a second, so that no caller waits for it and no thread
 *         watches it:
 *
 *             if (sl_changing_file_is_due(&file)) { read; if valid: use it, sl_changing_file_accept(&file, &about) }
 *
 *         Content that was not accepted is read again a second later: the two files of a pair are replaced one after
 *         the other.
 * Threads: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct sl_changing_file {
    const char *path; // owned by the caller
    size_t max_bytes;
    bool is_ours_alone; // refuses a file that its group or others may write
    struct stat seen;   // of the content that was accepted last
    struct stat failed; // of the content that was refused last, if has_failed: since content was accepted
    bool has_failed;
    int64_t looked_ns;
};

// Returns true if the file differs from the accepted one, or cannot be checked; at most once a second.
bool sl_changing_file_is_due(struct sl_changing_file *file);

/*
 * Reads the whole file and appends a zero byte; the text is malloc'd. SL_ERR_IO, SL_ERR_INVALID (not a file of at most
 * max_bytes), SL_ERR_PRECONDITION (others may write it), SL_ERR_EXHAUSTED; error texts do not name the path.
 */
enum sl_status sl_changing_file_read(struct sl_changing_file *file, char **text_out, size_t *n_out,
                                     struct stat *about_out, struct sl_error *err);

// Notes that content was refused, and returns whether that is news: the same content was not refused before. The log says it once.
bool sl_changing_file_fail(struct sl_changing_file *file);
void sl_changing_file_accept(struct sl_changing_file *file, const struct stat *about);
