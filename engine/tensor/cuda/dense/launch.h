// SPDX-License-Identifier: Apache-2.0
// Purpose: weights, products, norms and rotations. engine/tensor/cuda/launch.h states parameters, bits and failures.
#pragma once

#include "engine/tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- dense (dense/rows.cu, matmul.cu, pick.cu) -----------------------------------------------------------------------

enum gpu_weight_kind { GPU_WEIGHT_F32, GPU_WEIGHT_F16, GPU_WEIGHT_BF16, GPU_WEIGHT_INT8, GPU_WEIGHT_INT4 };

// struct sl_matrix on the device; table/pack.h makes its bytes. Rows of W are `pitch` weights apart; weights from k on
// are 0.
struct gpu_matrix {
    enum gpu_weight_kind kind;
    int64_t n, k, pitch; // pitch: a multiple of 32
    const void *weights; // [n][pitch]; INT8: one byte each; INT4: two in a byte, the first in the lower half, 8 added
    const uint16_t *scales; // [n][pitch / 32] f16, for quantized weights
    const float *bias;      // [n] or NULL
    int64_t up_bias;        // for a gated matrix: the offset in it of the second half's bias
    int64_t first_id;       // for embed(): the id of the first row
    int64_t whole_n;        // n, or the n of the matrix of which this is a rank's share
    enum sl_activation activation;
    bool gated;
    size_t scales_at, bytes; // of the packed matrix
};

// The structs are host memory and are read at the call; what they point to is memory of the device: sl_matmul.scratch has
// sl_gpu_matmul_work() bytes, at a multiple of 16. embed, of stored weights, and rotate are exact. A product is a
// sum in f32 whose order does not depend on m (dense/tensor_cores.h), with x rounded to bf16 where weights are bf16 or
// quantized. The old y, where the product adds to it, is added last there.
void sl_gpu_embed(struct gpu_queue *queue, const struct gpu_matrix *table, const int32_t *ids, int64_t m, float *out);
void sl_gpu_norm(struct gpu_queue *queue, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride);
void sl_gpu_angles(struct gpu_queue *queue, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines);
void sl_gpu_rotate(struct gpu_queue *queue, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x_inout);
void sl_gpu_matmul(struct gpu_queue *queue, const struct gpu_matrix *w, const struct sl_matmul *args);
size_t sl_gpu_matmul_work(const struct gpu_matrix *w, int64_t m, bool reading); // for x as bf16, and sums; may be 0

// The passes around a product of many rows or by a library: x[m][k] to bf16, out[m][pitch] with zeros from k on; and,
// for a library's sums[m][w->n], the same bias, activation and gate as sl_gpu_matmul().
void sl_gpu_round_rows(struct gpu_queue *queue, const float *x, int64_t x_stride, int64_t m, int64_t k, int64_t pitch,
                       void *out);
void sl_gpu_finish_rows(struct gpu_queue *queue, const struct gpu_matrix *w, const float *sums,
                        const struct sl_matmul *args);

// Multiplies by wgmma (dense/wgmma.cu), for bf16 weights: pitch a multiple of 64, below 2^32 of them; x as of
// sl_gpu_round_rows, below 2^32. Does nothing on devices other than compute capability 9.0.
void sl_gpu_matmul_wgmma(struct gpu_queue *queue, const struct gpu_matrix *w, const void *x,
                         const struct sl_matmul *args);

// Writes random weights (engine/tensor/drawn.h) for w, which is stored bf16, into weights_out[w->n][w->pitch]: element
// i of its rows is number first + i. Exact.
void sl_gpu_draw(struct gpu_queue *queue, const struct gpu_matrix *w, uint64_t first, void *weights_out);

// asked: device, [m]. Candidates are exact; lse and rest are sums in f64.
size_t sl_gpu_pick_work(int64_t m);
void sl_gpu_pick(struct gpu_queue *queue, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 void *work, struct sl_picked *picked_out);

// --- exchange between ranks (dense/ranks.cu) -------------------------------------------------------------------------

// Exact, except where bf16 rounds: it rounds as products round x.
void sl_gpu_put_columns(struct gpu_queue *queue, const struct sl_columns *columns, int rank);
void sl_gpu_take_columns(struct gpu_queue *queue, const struct sl_columns *columns, int rank);

#ifdef __cplusplus
}
#endif
