// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the folder of a model that `sluice pull` brings, and its origin.json, which says where the model came from:
 *              {"package", "wheel", "sha256", "license", "family", "files": ["NAME.gguf"], "bytes": N}
 *
 * Design: only what origin.json names is ours: a model that somebody put there is never touched. "bytes", the length of the model's file, comes
 *         last: as long as it is missing, what is there is not taken for whole, and the next pull may replace it.
 */
#pragma once

#include <jansson.h>
#include <limits.h>

#include "base/status.h"
#include "client/cli/pull/catalog.h"

// With all folders above it. SL_ERR_IO: it cannot be made, or there is a file of that name.
enum sl_status sl_folder_make(const char *folder, struct sl_error *err);

struct sl_folder_state {
    json_t *files; // names of the models' files there that are ours, of this version and of older ones
    bool whole;    // this version is there
};

// What is in the folder. path_out: where the model's file is, or is to be. SL_ERR_PRECONDITION: a model is there that is not ours.
enum sl_status sl_folder_look(const char *folder, const struct sl_catalog_model *model,
                              struct sl_folder_state *state_out, char path_out[PATH_MAX], struct sl_error *err);
void sl_folder_state_cleanup(struct sl_folder_state *state);

// Before anything is unpacked: what is there is half there, and ours.
enum sl_status sl_folder_begin(const char *folder, const struct sl_catalog_model *model,
                               const struct sl_folder_state *state, struct sl_error *err);
// The model's file stands, with that many bytes: files of older versions go.
enum sl_status sl_folder_finish(const char *folder, const struct sl_catalog_model *model,
                                const struct sl_folder_state *state, int64_t bytes, struct sl_error *err);
// It came to nothing: where no older version is, nothing stays.
void sl_folder_undo(const char *folder, const struct sl_catalog_model *model, const struct sl_folder_state *state);
