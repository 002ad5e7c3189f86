// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds models by name: those that `sluice pull` has downloaded, and those installed with the programs.
 *          --model NAME finds them in every program.
 *
 * Design: a folder of models holds a folder for each, with a Hugging Face model or one GGUF file in it. The folders, in
 *         search order:
 *     $XDG_CACHE_HOME/sluice/models, or ~/.cache/sluice/models    models that were pulled
 *     BIN/../share/sluice/models                                  models installed with the program in BIN
 *     BIN/../../models                                            models of the source tree, for a build folder
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define SL_MODEL_NAME_BYTES 64 // with the terminating zero

// Writes the folder of the program that runs.
enum sl_status sl_program_folder(char path_out[PATH_MAX], struct sl_error *err);

// Writes the path of folder i of those above; the folder may not exist. Folder 0 is the cache. False: there is no such
// folder, or it is unknown (no HOME).
#define SL_MODEL_PLACES 3
bool sl_model_place(int i, char path_out[PATH_MAX]);

// Returns true if the name has only letters, digits, dots, dashes and underscores, and does not begin with a dot.
bool sl_model_name_valid(const char *name);

// Returns true if a file of that name is a GGUF file.
bool sl_model_is_gguf(const char *name);

/*
 * Finds the model in `folder`: the folder itself if it has a config.json, else the one GGUF file in it. False: there is
 * none.
 */
bool sl_model_in(const char *folder, char path_out[PATH_MAX]);

/*
 * Turns the text of --model into a path: if the text is not a file or folder here, the folder of the model with that name.
 * False: there is no such model either, and the text is not a path.
 */
bool sl_model_find(const char *text, char path_out[PATH_MAX]);
