// SPDX-License-Identifier: Apache-2.0
// Purpose: how much memory for KV each worker of a cluster on one machine takes where nobody says.
#pragma once

#include <stdint.h>

#include "engine/model/model.h"

/*
 * What this machine has for memory: what is free, but no more than the control groups that we are in allow, such as a container's, and
 * than /dev/shm has free, of which workers make what peers put into. -1: not known. root: of /proc, /sys and /dev, "" but in tests.
 */
int64_t sl_cluster_memory(const char *root);

// Room for one text of 16,384 tokens, or of as many as the model reads, in f16 without compression; at least 256M; of all
// n_workers together at most half of available_bytes (-1: not known).
int64_t sl_cluster_arena_bytes(const struct sl_model_config *model, int64_t available_bytes, int64_t n_workers);
