// SPDX-License-Identifier: Apache-2.0
// Purpose: files that appear under their name whole or not at all: what was there before stays until then.
#ifndef SL_TRAIN_WHOLE_FILE_H
#define SL_TRAIN_WHOLE_FILE_H

#include <limits.h>
#include <stdio.h>

#include "base/status.h"

struct sl_whole_file {
    FILE *file; // for the caller to write to; errors are sticky and found at the end
    const char *path;
    char temporary[PATH_MAX]; // beside it
};

// path must outlive the file. SL_ERR_IO: the folder cannot be written to. On success it is to be finished.
enum sl_status sl_whole_file_open(struct sl_whole_file *whole, const char *path, struct sl_error *err);
// SL_ERR_IO: the disk is full, or whatever else there is; then the old file is still there.
enum sl_status sl_whole_file_finish(struct sl_whole_file *whole, struct sl_error *err);

#endif
