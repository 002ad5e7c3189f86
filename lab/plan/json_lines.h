// SPDX-License-Identifier: Apache-2.0
// Purpose: files of one JSON object a line.
#pragma once

#include <jansson.h>

#include "base/status.h"

/*
 * Give every object to take_fn, in order, until one is not taken; empty lines are skipped. SL_ERR_NOT_FOUND: no such file.
 * SL_ERR_INVALID: it cannot be read, or a line is no object. What concerns a line begins with "path:line".
 */
enum sl_status sl_json_lines_read(const char *path,
                                  enum sl_status (*take_fn)(void *arg, json_t *object, struct sl_error *err), void *arg,
                                  struct sl_error *err);
