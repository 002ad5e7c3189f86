// SPDX-License-Identifier: Apache-2.0
// Purpose: model folders of any geometry with random bf16 weights: speed does not depend on what a model has learned.
#pragma once

#include "cli/tool.h"
#include "model/model.h"

// Room for the paths that sl_synthetic_create() makes.
#define SL_SYNTHETIC_PATH_BYTES 512

// Those of lab/bench/peers.
#define SL_N_GEOMETRIES 3
struct sl_synthetic_geometry {
    const char *name; // "135m", "1b", "8b" (4 of its layers)
    struct sl_model_config config;
    int all_layers; // that the model itself has
};
extern const struct sl_synthetic_geometry sl_synthetic_geometries[SL_N_GEOMETRIES];
const struct sl_model_config *sl_synthetic_find(const char *name); // NULL: another name
int sl_synthetic_all_layers(const char *name);                     // 0: another name

/*
 * Write config.json and model.safetensors into a folder that is there. Progress goes to standard error.
 * SL_ERR_EXHAUSTED: not enough room on its disk, checked first. SL_ERR_CANCELLED: `signals` (may be NULL) has received
 * one meanwhile. SL_ERR_IO. After a failure no file of these two is left.
 */
enum sl_status sl_synthetic_write(const struct sl_model_config *config, struct sl_signals *signals, const char *dir,
                                  struct sl_error *err);

// The same into a new folder below TMPDIR (or /tmp). Its path goes to dir_out; the caller removes it.
enum sl_status sl_synthetic_create(const struct sl_model_config *config, struct sl_signals *signals, char *dir_out,
                                   size_t dir_bytes, struct sl_error *err);

// The same of zeros that take no room on the disk, for who only asks how large things are; with retaining heads of `retaining_hidden`
// rows (model/retaining.c), or 0.
enum sl_status sl_synthetic_create_empty(const struct sl_model_config *config, int retaining_hidden, char *dir_out,
                                         size_t dir_bytes, struct sl_error *err);

// Remove these files and the folder. A model that is loaded stays usable: its mapping keeps what it needs.
void sl_synthetic_remove(const char *dir);
