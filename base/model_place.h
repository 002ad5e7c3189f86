// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: where models lie that have a name: what `sluice pull` has brought, and what came with the programs. So that --model NAME finds them
 *          in every program.
 *
 * Design: a folder of models holds a folder for each, with a Hugging Face model or one GGUF file in it. The folders, in the order in which
 *         they are searched:
 *             $XDG_CACHE_HOME/sluice/models, or ~/.cache/sluice/models    what was pulled
 *             BIN/../share/sluice/models                                  what was installed beside the program in BIN
 *             BIN/../../models                                            of a build folder: the source's
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define SL_MODEL_NAME_BYTES 64 // with the terminating zero

// Folder i of those above, which may be absent; 0 is the cache. False: there is no such folder, or none can be told (no HOME).
#define SL_MODEL_PLACES 3
bool sl_model_place(int i, char path_out[PATH_MAX]);

// Letters, digits, dots, dashes and underscores, not beginning with a dot.
bool sl_model_name_valid(const char *name);

// Whether a file of that name is one, for those below.
bool sl_model_is_gguf(const char *name);

/*
 * What the model in `folder` is: the folder itself where it has a config.json, else the one GGUF file in it. False: there is none.
 */
bool sl_model_in(const char *folder, char path_out[PATH_MAX]);

/*
 * What --model says, as a path: of a name that is no file or folder here, the folder of that model. False: there is none either, and the text
 * is not a path: nothing can be meant by it.
 */
bool sl_model_find(const char *text, char path_out[PATH_MAX]);
