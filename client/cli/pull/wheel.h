// SPDX-License-Identifier: Apache-2.0
// Purpose: files out of a wheel, a Python package's zip archive, by libzip.
#pragma once

#include <stdint.h>

#include "base/status.h"

/*
 * Write one file of the archive that is open as `wheel` to `path`, whole or not at all. SL_ERR_PEER_CORRUPT: the archive is none, is damaged, or has no such file.
 * SL_ERR_IO: it cannot be written, which is found out before where the disk has too little room.
 */
enum sl_status sl_wheel_extract(int wheel, const char *name, const char *path, int64_t *bytes_out,
                                struct sl_error *err);
