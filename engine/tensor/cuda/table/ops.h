// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of operations of a GPU: each entry finds the heads in device memory, sends what describes the call, and
 *          launches (launch.h of the rooms). A file a room.
 */
#pragma once

#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/retrieve/launch.h"
#include "engine/tensor/cuda/table/publish.h"
#include "engine/tensor/ops.h"

// The table over a driver, of which a process has one; `host` is whose ops->host it has, and what its entries for inspection compute with.
const struct sl_ops *sl_gpu_ops(const struct gpu_driver *driver, const struct sl_ops *host);

void sl_gpu_evict_fill(struct sl_ops *ops);
void sl_gpu_dense_fill(struct sl_ops *ops);
void sl_gpu_attention_fill(struct sl_ops *ops);

// Where the numbers of `n` heads are in device memory. NULL: no room; the next wait says so.
static inline uint32_t *sl_gpu_counts(struct gpu_stream *stream, struct sl_counts counts, int n) {
    return counts.host == NULL ? counts.device : sl_gpu_describe(stream, counts.host, (size_t)n * sizeof *counts.host);
}
