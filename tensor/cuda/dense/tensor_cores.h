// SPDX-License-Identifier: Apache-2.0
// Purpose: the product of dense/tensor_cores.cu, for dense/matmul.cu.
#pragma once

#include "tensor/cuda/dense/launch.h"

// Of bf16, int8 and int4 weights; m > 0, n_columns > 0 of y.
void sl_gpu_matmul_tensor_cores(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args,
                                int64_t n_columns);
