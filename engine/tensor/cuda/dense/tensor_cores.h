// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products by tensor cores, for dense/matmul.cu: with bf16, int8 and int4 weights; m > 0, n_columns > 0 of y.
 *
 * There are two families, and sl_matmul.reading selects one. A row has the same bits in all calls of one family,
 * whatever their rows.
 *
 * Rows of prompts (many_rows.cu): every element of y is one chain of products of 16 along k, in ascending order. The
 * time goes into the products.
 *
 * Others (few_rows.cu, some_rows.cu): the time goes into reading W, which needs many blocks, so k is cut. Piece i of
 * GPU_PIECES(w) is the `quads` of 128 along k in [i quads / pieces, (i + 1) quads / pieces), and its sum is a chain in
 * ascending order. Two pieces are added, and to them the next two, and so on. The number of rows does not change this.
 *
 * In both, codes are multiplied by their scale in f32, 32 of them at a time.
 */
#pragma once

#include "engine/tensor/cuda/dense/launch.h"

#define GPU_FEW_ROWS 8 // up to this many rows, few_rows.cu multiplies

// The pieces of a matrix of n rows: 8, or 2 where columns alone give every multiprocessor of a large device two blocks.
// A rank's share has the pieces of the whole matrix; otherwise ranks would have other bits than one device.
#define GPU_PIECES(w) ((w).whole_n < 16384 ? 8u : 2u)

void sl_gpu_matmul_few_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                            int64_t n_columns);
size_t sl_gpu_some_rows_work(const struct gpu_matrix *w, int64_t m);
void sl_gpu_matmul_some_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                             int64_t n_columns);
size_t sl_gpu_many_rows_work(const struct gpu_matrix *w, int64_t m);
void sl_gpu_matmul_many_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args,
                             int64_t n_columns);

// Converts args->x for w to bf16 as sl_gpu_round_rows(), into args->scratch, each eight of k in the order of the pairs of
// w's kind (dense/units.h).
void sl_gpu_pair_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args);
// Writes y from sums[n_parts][m][n_columns, for a gated matrix twice that], with the parts added in their order.
void sl_gpu_finish_parts(struct gpu_queue *queue, const struct gpu_matrix *w, const float *sums, uint32_t n_parts,
                         const struct sl_matmul *args, int64_t n_columns);
