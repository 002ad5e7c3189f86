// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes files that appear under their name completely or not at all, and makes folders for them. Until then the old file stays, even if
 *          the disk is full or the process is killed in between.
 *
 *     sl_whole_file_open(&whole, path, err);
 *     fprintf(whole.file, ...);
 *     sl_whole_file_finish(&whole, err);      or, to keep the old file, sl_whole_file_abandon(&whole);
 *
 * Design: writes a temporary file in the same folder, syncs it and renames it. All users may read it, as is usual for
 *         output files, unless the caller sets another mode; neither mode nor links of the old file are kept.
 */
#pragma once

#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/status.h"

struct sl_whole_file {
    FILE *file;  // to write to, as a stream or by its descriptor; a stream's errors are sticky and reported at the end
    mode_t mode; // of the published file: 0644; the caller may set another one before the end
    const char *path;
    char temporary[PATH_MAX]; // in the same folder; for callers that let another process write it
};

// Opens a temporary file. path must outlive *whole. After success the caller finishes or abandons it. SL_ERR_IO: the
// folder is not writable, or path is a folder, a device or a pipe. SL_ERR_INVALID: the path is too long.
enum sl_status sl_whole_file_open(struct sl_whole_file *whole, const char *path, struct sl_error *err);
// Publishes the file. SL_ERR_IO: the disk is full, or another I/O error; the old file is then still there.
enum sl_status sl_whole_file_finish(struct sl_whole_file *whole, struct sl_error *err);
// Removes the temporary file; does nothing if no file is open.
void sl_whole_file_abandon(struct sl_whole_file *whole);
// Checks that a file of this name can be written, before the work whose result it takes. Fails as sl_whole_file_open().
enum sl_status sl_whole_file_check(const char *path, struct sl_error *err);

// Makes a folder with all folders above it. SL_ERR_IO: one cannot be made, or is a file.
enum sl_status sl_folder_make(const char *path, mode_t mode, struct sl_error *err);
