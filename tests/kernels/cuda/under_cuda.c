// SPDX-License-Identifier: Apache-2.0
// Purpose: see under_test.h. A real device has an order of its own.
#include "tests/kernels/cuda/under_test.h"

#include <cuda_runtime_api.h>

#include "engine/tensor/cuda/plugin/cudart_driver.h"

const struct gpu_driver *const sl_under_test = &sl_gpu_cudart;

static size_t n_blocks;

void *sl_under_test_alloc(size_t bytes) {
    void *block = sl_gpu_cudart.alloc(bytes);
    if (block == NULL || cudaMemset(block, 0xff, bytes) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
        return NULL;
    }
    n_blocks++;
    return block;
}

void sl_under_test_free(void *block) {
    if (block != NULL) {
        n_blocks--;
        sl_gpu_cudart.free(block);
    }
}

size_t sl_under_test_used(void) {
    return n_blocks;
}

void sl_under_test_order(unsigned order) {
    (void)order;
}

bool sl_under_test_has_wgmma(void) {
    return sl_cudart_has_wgmma();
}
