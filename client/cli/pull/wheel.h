// SPDX-License-Identifier: Apache-2.0
// Purpose: extracts files from a wheel, a Python package's zip archive, by libzip.
#pragma once

#include <stdint.h>

#include "base/status.h"

/*
 * Writes one file of the open archive `wheel` to `fd`, from its offset on. SL_ERR_PEER_CORRUPT: it is not an archive, is
 * damaged, or has no such file. SL_ERR_IO: fd cannot be written; if the disk has too little room, this is detected
 * before writing. After a failure, fd may have a part of the file.
 */
enum sl_status sl_wheel_copy(int wheel, const char *name, int fd, int64_t *bytes_out, struct sl_error *err);

// Writes one file of the archive to `path`, completely or not at all. Fails as sl_wheel_copy() does.
enum sl_status sl_wheel_extract(int wheel, const char *name, const char *path, struct sl_error *err);
