// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds and loads the plugins that compute on GPUs, real or emulated.
 * Design:  a loaded plugin is never unloaded: the CUDA runtime does not survive unloading. Loading it again returns
 *          the same plugin.
 */
#pragma once

#include "engine/tensor/plugin.h"

// Loads a plugin. SL_ERR_UNSUPPORTED: the file does not exist, cannot be loaded, or was built for another version of
// Sluice.
enum sl_status sl_plugin_load(const char *path, const struct sl_plugin **plugin_out, struct sl_error *err);

// Loads libsluice_<name>.so from the folder of this program, else from where the loader finds it.
enum sl_status sl_plugin_find(const char *name, const struct sl_plugin **plugin_out, struct sl_error *err);
