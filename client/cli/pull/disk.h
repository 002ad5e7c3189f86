// SPDX-License-Identifier: Apache-2.0
// Purpose: files of `sluice pull` on the disk: room for them, and writing.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Rejects `bytes` that do not fit on the disk of an open file: SL_ERR_IO. A disk that does not say how much is free passes.
enum sl_status sl_disk_check_room(int fd, uint64_t bytes, struct sl_error *err);

// Writes all bytes at the file's position. SL_ERR_IO: some of them may have been written.
enum sl_status sl_disk_write(int fd, const char *data, size_t bytes, struct sl_error *err);
