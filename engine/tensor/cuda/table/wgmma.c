// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cuda/table/wgmma.h"

#include "engine/tensor/cuda/dense/launch.h"

#define ROWS 2048 // of a call: whole waves on a GPU's multiprocessors for matrices of 4,096 columns

static enum sl_status choose(int64_t n, int64_t k, int *way_out, struct sl_error *err) {
    SL_FAIL_IF(k % 64 != 0 || n * k > UINT32_MAX || ROWS * k > UINT32_MAX, err, SL_ERR_UNSUPPORTED,
               "%lld x %lld: k is not a multiple of 64, or the matrix is too large", (long long)n, (long long)k);
    *way_out = 0;
    return SL_OK;
}

static enum sl_status multiply(struct gpu_queue *queue, int, const struct gpu_matrix *w, const void *x,
                               const struct sl_matmul *args, struct sl_error *) {
    sl_gpu_matmul_wgmma(queue, w, x, args);
    return SL_OK;
}

const struct gpu_library sl_gpu_wgmma = {
    .name = "wgmma", .most_rows = ROWS, .finishes = true, .choose = choose, .multiply = multiply};
