// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the folder of a model that `sluice pull` installs, and its origin.json, which records where the model came
 *          from:
 *              {"package", "wheel", "sha256", "license", "family", "files": ["NAME.gguf"], "bytes": N}
 *
 * Design: only files that origin.json names belong to `sluice pull`: a model that the user put there is never changed.
 *         "bytes", the length of the model's file, is written last: without it the model counts as incomplete, and the
 *         next pull may replace it.
 */
#pragma once

#include <jansson.h>
#include <limits.h>

#include "base/status.h"
#include "client/cli/pull/catalog.h"

struct sl_folder_state {
    json_t *files; // names of the model files there that `sluice pull` installed, of this version and of older ones
    bool whole;    // this version is complete
};

// Reads the state of the folder. path_out: the path of the model's file, which may not exist yet. SL_ERR_PRECONDITION:
// the user put a model there.
enum sl_status sl_folder_look(const char *folder, const struct sl_catalog_model *model,
                              struct sl_folder_state *state_out, char path_out[PATH_MAX], struct sl_error *err);
void sl_folder_state_cleanup(struct sl_folder_state *state);

// Marks the model as incomplete, and as installed by `sluice pull`; call it before the file is there.
enum sl_status sl_folder_begin(const char *folder, const struct sl_catalog_model *model,
                               const struct sl_folder_state *state, struct sl_error *err);
// Removes files of older versions, and records the size; call it when the model's file is complete.
enum sl_status sl_folder_finish(const char *folder, const struct sl_catalog_model *model,
                                const struct sl_folder_state *state, int64_t bytes, struct sl_error *err);
// Removes everything after a failure, unless an older version is there.
void sl_folder_undo(const char *folder, const struct sl_catalog_model *model, const struct sl_folder_state *state);
