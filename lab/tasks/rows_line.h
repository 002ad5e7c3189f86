// SPDX-License-Identifier: Apache-2.0
// Purpose: one line of a file of rows.
#pragma once

#include "lab/tasks/sample.h"

// Reads a line: [n_bytes] JSON text. SL_ERR_INVALID describes the error, not its location.
enum sl_status sl_row_read(const char *line, size_t n_bytes, struct sl_sample *sample_out, struct sl_error *err);
