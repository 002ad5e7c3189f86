// SPDX-License-Identifier: Apache-2.0
// Purpose: how much memory for KV each worker of a cluster on one machine takes where nobody says.
#pragma once

#include <stdint.h>

#include "model/model.h"

// Room for one text of 16,384 tokens, or of as many as the model reads, in f16 without compression; at least 256M; of all
// n_workers together at most half of available_bytes, which is what the machine has free (-1: not known).
int64_t sl_cluster_arena_bytes(const struct sl_model_config *model, int64_t available_bytes, int64_t n_workers);
