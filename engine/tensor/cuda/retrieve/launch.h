// SPDX-License-Identifier: Apache-2.0
// Purpose: rows of offloaded layers. engine/tensor/cuda/launch.h states parameters, bits and failures.
#pragma once

#include "engine/tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// rows.cu: exact

void sl_gpu_mean_query(struct gpu_queue *queue, const float *q, int n_kv_heads, int group, int head_dim,
                       float *means_out);
// most_slots: about how many are listed. rows: [n_heads]
void sl_gpu_put_rows(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                     struct gpu_lists listed, const void *const *rows);

// scan.cu: exact

struct gpu_scan_piece {
    const char *codes;    // [n_channels][channel_bytes]
    const float *scale;   // [n_channels]; read where the format has codes
    const float *q;       // [n_channels]
    float *out;           // its first score is slot begin's
    size_t channel_bytes; // a multiple of 64
    uint32_t begin, end;
};

// most_slots: at least the slots of every piece
void sl_gpu_scan(struct gpu_queue *queue, enum sl_kv_format format, const struct gpu_scan_piece *pieces,
                 uint32_t n_pieces, int n_channels, uint32_t most_slots);

#ifdef __cplusplus
}
#endif
