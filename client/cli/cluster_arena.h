// SPDX-License-Identifier: Apache-2.0
// Purpose: chooses the KV memory of each worker of a cluster on one machine, if no option does.
#pragma once

#include <stdint.h>

#include "engine/model/model.h"

/*
 * Returns how much memory this machine has available: its free memory, but at most the limit of our control groups
 * (e.g. a container's) and the free space of /dev/shm, where workers allocate buffers that peers write into. -1: not
 * known. root: prefix of /proc, /sys and /dev, "" except in tests.
 */
int64_t sl_cluster_memory(const char *root);

// Returns room for one text of 16,384 tokens, or of the model's longest text if that is shorter, in f16 without
// compression. At least 256M; for all n_workers together at most half of available_bytes (-1: not known).
int64_t sl_cluster_arena_bytes(const struct sl_model_config *model, int64_t available_bytes, int64_t n_workers);

// Writes which texts fit an arena of these bytes, and how large it has to be for the model's longest one. "": that fits
// too, or the model is not known.
void sl_cluster_arena_describe(const struct sl_model_config *model, int64_t bytes, char *text_out, size_t text_size);
