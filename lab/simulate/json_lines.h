// SPDX-License-Identifier: Apache-2.0
// Purpose: reads files of one JSON object per line.
#pragma once

#include <jansson.h>

#include "base/status.h"

/*
 * Passes every object to take_fn, in order, until it rejects one; skips empty lines. SL_ERR_NOT_FOUND: no such file.
 * SL_ERR_INVALID: it cannot be read, or a line is not an object. Errors in a line begin with "path:line".
 */
enum sl_status sl_json_lines_read(const char *path,
                                  enum sl_status (*take_fn)(void *arg, json_t *object, struct sl_error *err), void *arg,
                                  struct sl_error *err);
