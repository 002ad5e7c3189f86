// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a model whose random weights the device computes (ops->draw) instead of reading 16 GB from a file.
 *
 * Design: a table of operations that draws instead of packing (struct sl_runtime_config.instead). It counts the
 *         numbers of the matrices so far, which is their position in the file that sl_synthetic_write() would have
 *         written: so the weights are the same.
 * Threads: one thread at a time loads a model; operations have no argument for the count, so it is per process.
 */
#pragma once

#include "engine/model/model.h"
#include "engine/tensor/ops.h"

// Announces the next model that is loaded through sl_drawn_instead(). Its retaining heads, which come last, are
// packed from their file.
void sl_drawn_begin(const struct sl_model_config *config);

// Returns `ops` with new entries for packing, for struct sl_runtime_config.instead. NULL: the device has no ops->draw.
const struct sl_ops *sl_drawn_instead(const struct sl_ops *ops);
