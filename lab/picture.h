// SPDX-License-Identifier: Apache-2.0
// Purpose: pictures, reports and pages of results: a command hands over its data, and lab/sluice_eval/sluice_eval/figures.py draws them
// with matplotlib, measured.py prints them, or another module makes a page.
#pragma once

#include <jansson.h>

#include "base/status.h"

// Checks that a picture can be drawn to `path`, for commands that work long before they draw. NULL: no picture is
// requested. SL_ERR_UNSUPPORTED: no Python, or no matplotlib. SL_ERR_IO: the path cannot be written to.
enum sl_status sl_picture_check(const char *path, struct sl_error *err);

// Draws data, whose reference it takes, as figures.py does for this kind. The picture appears under its name whole or not at
// all. SL_ERR_IO: it could not be drawn.
enum sl_status sl_picture_draw(const char *kind, const char *path, json_t *data, struct sl_error *err);

// Writes a page of the same kind: a module of its own makes it, which needs no library. SL_ERR_UNSUPPORTED: no Python.
enum sl_status sl_page_write(const char *module, const char *path, json_t *data, struct sl_error *err);

// Prints the report of an evaluation on standard output, and draws it into `png` (NULL: nowhere), as measured.py does for this
// kind. Takes the reference of data. sl_report_check() finds out before the work whether that is possible.
enum sl_status sl_report_check(struct sl_error *err);
enum sl_status sl_report_print(const char *kind, const char *png, json_t *data, struct sl_error *err);

// Return a number, or n numbers, as JSON; what is not finite becomes null.
json_t *sl_report_number(double value);
json_t *sl_picture_numbers(const double *values, size_t n);
