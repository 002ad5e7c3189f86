// SPDX-License-Identifier: Apache-2.0
// Purpose: files that are read through a mapping of all their bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_mapped_file {
    unsigned char *base; // NULL: not mapped
    size_t bytes;
    // Stands for the contents while nothing writes to the file: of device, inode, size, and times of the last changes
    uint64_t identity;
    bool is_hole; // the file is sparse: there is little to read ahead
};

// Maps a file for reading. SL_ERR_NOT_FOUND, SL_ERR_IO: not a regular file, among others; SL_ERR_INVALID: empty.
enum sl_status sl_mapped_file_open(const char *path, struct sl_mapped_file *file_out, struct sl_error *err);
// Accepts a file that is not mapped.
void sl_mapped_file_close(struct sl_mapped_file *file);
