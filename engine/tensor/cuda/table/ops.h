// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of operations of a GPU. Each entry finds the heads in device memory, sends the description of the
 *          call, and launches (launch.h of the folders). Each folder has a file here.
 */
#pragma once

#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/retrieve/launch.h"
#include "engine/tensor/cuda/table/publish.h"
#include "engine/tensor/ops.h"

// Returns the table over a driver, of which a process has one. Its ops->host is that of `host`, and its entries for
// inspection compute with `host`.
const struct sl_ops *sl_gpu_ops(const struct gpu_driver *driver, const struct sl_ops *host);

void sl_gpu_evict_fill(struct sl_ops *ops);
void sl_gpu_dense_fill(struct sl_ops *ops);
void sl_gpu_attention_fill(struct sl_ops *ops);

// Returns the device address of the numbers of `n` heads. Returns NULL when there is no room; the next wait says so.
static inline uint32_t *sl_gpu_counts(struct gpu_stream *stream, struct sl_counts counts, int n) {
    return counts.host == NULL ? counts.device : sl_gpu_describe(stream, counts.host, (size_t)n * sizeof *counts.host);
}
