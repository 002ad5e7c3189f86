// SPDX-License-Identifier: Apache-2.0
// Purpose: a number for the contents of a file that stands for them while nothing writes to the file, without reading it.
#pragma once

#include <sys/stat.h>

#include "base/hash.h"

// Returns a number from device, inode, size, and the times of the last changes to contents and inode.
static inline uint64_t sl_file_identity(const struct stat *st) {
    const uint64_t words[] = {(uint64_t)st->st_dev,         (uint64_t)st->st_ino,          (uint64_t)st->st_size,
                              (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ctim.tv_sec,
                              (uint64_t)st->st_ctim.tv_nsec};
    return sl_hash(words, sizeof words, 0);
}
