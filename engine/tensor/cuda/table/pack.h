// SPDX-License-Identifier: Apache-2.0
// Purpose: makes the bytes of a matrix for ops->pack() of a GPU, to be copied to the device.
#pragma once

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/ops.h"

// Sets all of *out but its pointers. The device needs out->bytes at a multiple of 16; then
//     weights = the bytes, scales = the bytes + scales_at (NULL for stored weights), biases as matrix says, on the
//     device
void sl_gpu_matrix_describe(const struct sl_matrix *matrix, struct gpu_matrix *out);

// Packs row j of the bytes, which begin at bytes_out, a multiple of 4. Different threads may pack different rows.
void sl_gpu_matrix_pack_row(const struct sl_matrix *matrix, const struct gpu_matrix *as, int64_t j, void *bytes_out);
