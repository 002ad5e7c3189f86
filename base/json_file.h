// SPDX-License-Identifier: Apache-2.0
// Purpose: reads a JSON file of a model folder: bounded in size, an object at the top, duplicate keys refused. Writes JSON
// files, and any text as JSON.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// Writes "dir/name" into buf; "dir.name" if dir is a file, for a file next to it. SL_ERR_INVALID when it does not fit.
enum sl_status sl_model_path(const char *dir, const char *name, char *buf, size_t buf_bytes, struct sl_error *err);

// Returns true if a file begins as the pointer that Git LFS leaves in the place of a large file.
bool sl_is_lfs_pointer(const void *begin, size_t n_bytes);
#define SL_LFS_POINTER_TEXT "is a Git LFS pointer: fetch the file itself with `git lfs pull`"

// Loads a JSON file; the caller releases *root_out with json_decref(). SL_ERR_NOT_FOUND: no such file. SL_ERR_INVALID:
// not a JSON object.
enum sl_status sl_json_file_load(const char *dir, const char *name, json_t **root_out, struct sl_error *err);
// Writes a JSON file, whole or not at all. flags: of json_dumpf(). json NULL: SL_ERR_EXHAUSTED. SL_ERR_IO.
enum sl_status sl_json_file_write(const char *path, const json_t *json, size_t flags, struct sl_error *err);

// Returns a text of another process as JSON (protobuf-c does not check its strings, and file names are any bytes). If
// it is not UTF-8, bytes above 0x7f become '?'. A new reference, or NULL when out of memory.
json_t *sl_text_json(const char *text);
