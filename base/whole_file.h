// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: files that appear under their name whole or not at all: what was there before stays until then, also where the
 *          disk is full or the process is killed in between.
 *
 *     sl_whole_file_open(&whole, path, err);
 *     fprintf(whole.file, ...);
 *     sl_whole_file_finish(&whole, err);      or, to leave things as they were, sl_whole_file_abandon(&whole);
 *
 * Design: a temporary file in the same folder, which is synced and then takes the name. Everybody may read it, as is usual
 *         for what people are to look at; of the file before nothing is kept, neither mode nor links.
 */
#pragma once

#include <limits.h>
#include <stdio.h>

#include "base/status.h"

struct sl_whole_file {
    FILE *file; // to write to, as a stream or by its descriptor; a stream's errors are sticky and found at the end
    const char *path;
    char temporary[PATH_MAX]; // beside it, for those who have it written by another process
};

// path must outlive the file. On success it is to be finished or abandoned. SL_ERR_IO: the folder cannot be written to, or
// the path is that of a folder. SL_ERR_INVALID: the path is too long.
enum sl_status sl_whole_file_open(struct sl_whole_file *whole, const char *path, struct sl_error *err);
// SL_ERR_IO: the disk is full, or whatever else there is; then the old file is still there.
enum sl_status sl_whole_file_finish(struct sl_whole_file *whole, struct sl_error *err);
// Of a file that is not open, nothing.
void sl_whole_file_abandon(struct sl_whole_file *whole);
