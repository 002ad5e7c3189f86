// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sluice_profile.json beside a model: which of its layers are dense, and the underlying measurements.
 *
 *     {"version": 1, "dense_preference": [one number a layer], "threshold": number, "dense_layers": [layers],
 *      "attention": {"queries": 32, "texts": number, "first_4": [[one number a KV head] for every layer], ...}}
 *
 *         The model's loader (engine/model/model_config.c) reads all but "attention", which is for people and
 *         scripts: its other names are sl_attention_names[]. The version changes when today's readers would fail.
 */
#pragma once

#include <jansson.h>

#include "engine/compress/recipe/recipe.h"
#include "lab/measure/attention_profile.h"

// Chooses layers whose dense preference is above the threshold, and always layer 0: no earlier layer predicts its
// query, so it cannot be searched.
void sl_profile_choose(const struct sl_attention_profile *profile, double threshold, struct sl_layers *dense_out);

// Returns the contents of the file as an object of the caller. NULL: no memory.
json_t *sl_profile_json(const struct sl_attention_profile *profile, double threshold, const struct sl_layers *dense);

// Returns the path where the loader looks for it. SL_ERR_INVALID: the path is too long.
enum sl_status sl_profile_path(const char *model_dir, char *path_out, size_t path_bytes, struct sl_error *err);

// Writes it, whole or not at all. SL_ERR_IO.
enum sl_status sl_profile_write(const char *path, const json_t *profile, struct sl_error *err);
