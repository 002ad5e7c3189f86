// SPDX-License-Identifier: Apache-2.0
// Purpose: rows of offloaded layers. Parameters, bits and failures as tensor/cuda/launch.h says.
#pragma once

#include "tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// rows.cu: exact

void sl_gpu_mean_query(struct gpu_queue *queue, const float *q, int n_kv_heads, int group, int head_dim,
                       float *means_out);
// most_slots: about how many are listed. rows: [n_heads]
void sl_gpu_put_rows(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                     const uint32_t *slots, size_t slots_stride, const uint32_t *n, const void *const *rows);

#ifdef __cplusplus
}
#endif
