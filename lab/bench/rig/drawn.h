// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a model whose random weights the device computes (ops->draw) instead of reading 16 GB from a file.
 *
 * Design: a table of operations that draws where the device's own would pack (struct sl_runtime_config.instead). It counts the numbers of the
 *         matrices that have come, which is where they lie in the file that sl_synthetic_write() would have written: the same weights.
 * Threads: a model is loaded by one at a time; operations have no argument of their own, so the count is the process's.
 */
#pragma once

#include "engine/model/model.h"
#include "engine/tensor/ops.h"

// The next model that is loaded through sl_drawn_instead() is this one: its retaining heads, which come last, are packed from their file.
void sl_drawn_begin(const struct sl_model_config *config);

// Returns `ops` with other entries for packing, for struct sl_runtime_config.instead. NULL: the device has no ops->draw.
const struct sl_ops *sl_drawn_instead(const struct sl_ops *ops);
