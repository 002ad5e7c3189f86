// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products by tensor cores, for dense/matmul.cu: of bf16, int8 and int4 weights; m > 0, n_columns > 0 of y.
 *
 * Every element of y is one chain of products of 16 along k, in ascending order, in all of them, and codes are multiplied by their
 * scale in f32, 32 of them at a time: a row has the same bits, whichever multiplies it.
 */
#pragma once

#include "tensor/cuda/dense/launch.h"

#define GPU_FEW_ROWS 16 // that are of few_rows.cu

void sl_gpu_matmul_few_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args,
                            int64_t n_columns);
void sl_gpu_matmul_many_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args,
                             int64_t n_columns);
