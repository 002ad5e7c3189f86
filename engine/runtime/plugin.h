// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: find and load the plugin that computes on GPUs.
 * Design:  what was loaded stays: the runtime of CUDA does not survive being unloaded, and loading it again finds it there.
 */
#pragma once

#include "engine/tensor/plugin.h"

// SL_ERR_UNSUPPORTED: there is no such file, it cannot be loaded, or it was built for another version of Sluice.
enum sl_status sl_plugin_load(const char *path, const struct sl_plugin **plugin_out, struct sl_error *err);

// libsluice_cuda.so beside this program, else where the loader finds it.
enum sl_status sl_plugin_find(const struct sl_plugin **plugin_out, struct sl_error *err);
