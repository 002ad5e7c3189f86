// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a small file that whoever runs us replaces while we run: keys, certificates. Read whole, and again when it has changed.
 *
 * Design: it is looked at when it is used, at most once a second, so that nobody waits for a file and no thread watches one:
 *
 *             if (sl_changing_file_is_due(&file)) { read; if what it says is good: use it, sl_changing_file_accept(&file, &about) }
 *
 *         What was not accepted is due again a second later: of a pair of files one is replaced before the other.
 * Threads: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct sl_changing_file {
    const char *path; // the caller's
    size_t max_bytes;
    bool is_ours_alone; // refused where its group or others may write it
    struct stat seen;   // of what was accepted last
    int64_t looked_ns;
};

// It differs from what was accepted, or cannot be looked at; and a second has passed since we looked last.
bool sl_changing_file_is_due(struct sl_changing_file *file);

/*
 * All of it, with a zero behind; malloc'd. SL_ERR_IO, SL_ERR_INVALID (no file of at most max_bytes), SL_ERR_PRECONDITION (others may
 * write it), SL_ERR_EXHAUSTED; texts do not name the path.
 */
enum sl_status sl_changing_file_read(struct sl_changing_file *file, char **text_out, size_t *n_out,
                                     struct stat *about_out, struct sl_error *err);

void sl_changing_file_accept(struct sl_changing_file *file, const struct stat *about);
