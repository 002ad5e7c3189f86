// SPDX-License-Identifier: Apache-2.0
// Purpose: model folders of any geometry with random bf16 weights: speed does not depend on what a model has learned.
#pragma once

#include "client/cli/tool.h"
#include "engine/model/model.h"

// Size of buffers for the paths that sl_synthetic_create() makes.
#define SL_SYNTHETIC_PATH_BYTES 512

// The geometries of lab/bench/peers.
#define SL_N_GEOMETRIES  4
#define SL_GEOMETRY_HELP "135m, 1b, 8b (4 of its layers) or tiny"
struct sl_synthetic_geometry {
    const char *name; // a name in SL_GEOMETRY_HELP
    struct sl_model_config config;
    int all_layers; // layers of the original model
};
extern const struct sl_synthetic_geometry sl_synthetic_geometries[SL_N_GEOMETRIES];
const struct sl_synthetic_geometry *sl_synthetic_find(const char *name); // NULL: another name

// Copies the geometry of that name with this many layers; 0: the number in this table. SL_ERR_INVALID: another name, or
// more layers than SL_MAX_LAYERS.
enum sl_status sl_synthetic_config(const char *name, int64_t n_layers, struct sl_model_config *config_out,
                                   struct sl_error *err);

// The ways to write the weights: numbers; zeros that take no disk space, for a device that computes its own (drawn.h), with
// retaining heads of numbers; or zeros alone, for callers that only need sizes.
enum sl_synthetic_weights { SL_SYNTHETIC_WRITTEN, SL_SYNTHETIC_DRAWN, SL_SYNTHETIC_EMPTY };

/*
 * Writes config.json, model.safetensors and, if config->retaining_hidden > 0, retaining_heads.safetensors into an
 * existing folder. Reports progress on standard error. SL_ERR_EXHAUSTED: not enough disk space, checked first.
 * SL_ERR_CANCELLED: `signals` (may be NULL) has received a signal. SL_ERR_IO. After a failure none of these files is
 * left.
 */
enum sl_status sl_synthetic_write(const struct sl_model_config *config, enum sl_synthetic_weights weights,
                                  struct sl_signals *signals, const char *dir, struct sl_error *err);

// Does the same in a new folder below TMPDIR (or /tmp). Its path goes to dir_out; the caller removes it.
enum sl_status sl_synthetic_create(const struct sl_model_config *config, enum sl_synthetic_weights weights,
                                   struct sl_signals *signals, char dir_out[SL_SYNTHETIC_PATH_BYTES],
                                   struct sl_error *err);

// Removes these files and the folder. A loaded model stays usable: its mapping keeps the data.
void sl_synthetic_remove(const char *dir);
