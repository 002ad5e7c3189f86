// SPDX-License-Identifier: Apache-2.0
// Purpose: what a filling of ops->pack() does for a GPU: the bytes of a matrix, to be copied to the device.
#pragma once

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/ops.h"

// All of *out but its pointers. out->bytes at a multiple of 16 are needed on the device; then
//     weights = the bytes, scales = the bytes + scales_at (NULL of stored weights), biases as matrix says, on the device
void sl_gpu_matrix_describe(const struct sl_matrix *matrix, struct gpu_matrix *out);

// Row j of the bytes, which begin at bytes_out, a multiple of 4. Rows may be packed by different threads.
void sl_gpu_matrix_pack_row(const struct sl_matrix *matrix, const struct gpu_matrix *as, int64_t j, void *bytes_out);
