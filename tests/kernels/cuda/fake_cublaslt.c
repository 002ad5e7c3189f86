// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a libcublasLt for check_library.c: products by plain loops over what the descriptions say, in the host's memory.
 *
 *     FAKE_LACKS     without cublasLtMatmulAlgoCheck
 *     FAKE_VERSION   says that it is this
 *     FAKE_BY_ROWS   sums in another order where there are many rows
 *     FAKE_SPLITS    has nothing but split-K
 *     FAKE_WRONG     takes the weights of the next column
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/half.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION CUBLAS_VERSION
#endif

struct layout { // in the place of cublasLtMatrixLayoutOpaque_t
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
};
struct product {
    cublasOperation_t a, b;
};
struct preference {
    uint32_t reductions;
    uint64_t workspace;
};

size_t cublasLtGetVersion(void) {
    return FAKE_VERSION;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    struct layout *layout = malloc(sizeof *layout);
    *layout = (struct layout){type, rows, columns, leading};
    *out = (cublasLtMatrixLayout_t)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    struct product *product = calloc(1, sizeof *product);
    product->a = product->b = CUBLAS_OP_N;
    *out = (cublasLtMatmulDesc_t)product;
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescDestroy(const cublasLtMatmulDesc_t product) {
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    struct product *product = (struct product *)desc;
    if (bytes != sizeof product->a) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &product->a : &product->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    struct preference *preference = calloc(1, sizeof *preference);
    *preference = (struct preference){CUBLASLT_REDUCTION_SCHEME_MASK, 1};
    *out = (cublasLtMatmulPreference_t)preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(const cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    struct preference *preference = (struct preference *)pref;
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof preference->reductions) {
        memcpy(&preference->reductions, value, bytes);
    } else if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof preference->workspace) {
        memcpy(&preference->workspace, value, bytes);
    } else if (bytes != sizeof(uint32_t)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// An algorithm is the number of its splits. The first of all splits, whatever is preferred.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int *n_out) {
    const struct preference *preference = (const struct preference *)pref;
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d;
    if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE || preference->workspace != 0 || most < 2) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memset(found, 0, 2 * sizeof *found);
    found[0].algo.data[0] = 4;
#ifdef FAKE_SPLITS
    found[1].algo.data[0] = 2;
#else
    found[1].algo.data[0] = 1;
#endif
    *n_out = 2;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    int32_t number = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (int32_t)algo->data[0] : 0;
    if (bytes != sizeof number) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(value, &number, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

#ifndef FAKE_LACKS
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d;
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    return CUBLAS_STATUS_SUCCESS;
}
#endif

// Element (i, l) of op(matrix).
static float element(const uint16_t *matrix, const struct layout *layout, cublasOperation_t op, uint64_t i,
                     uint64_t l) {
    uint64_t row = op == CUBLAS_OP_N ? i : l, column = op == CUBLAS_OP_N ? l : i;
    return sl_bf16_to_f32(matrix[row + column * (uint64_t)layout->leading]);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a_desc, const void *B, cublasLtMatrixLayout_t b_desc,
                              const void *beta, const void *C, cublasLtMatrixLayout_t c_desc, void *D,
                              cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    const struct product *product = (const struct product *)desc;
    const struct layout *a = (const struct layout *)a_desc, *b = (const struct layout *)b_desc;
    const struct layout *d = (const struct layout *)d_desc;
    uint64_t depth = product->a == CUBLAS_OP_N ? a->columns : a->rows;
    bool fits = depth == (product->b == CUBLAS_OP_N ? b->rows : b->columns) &&
                d->rows == (product->a == CUBLAS_OP_N ? a->rows : a->columns) &&
                d->columns == (product->b == CUBLAS_OP_N ? b->columns : b->rows) && a->leading >= (int64_t)a->rows &&
                b->leading >= (int64_t)b->rows && d->leading >= (int64_t)d->rows;
    void (*before)(void *) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "fake_cublaslt_before"); // of the program: what is queued is done
    (void)handle, (void)C, (void)c_desc, (void)workspace;
    if (!fits || a->type != CUDA_R_16BF || b->type != CUDA_R_16BF || d->type != CUDA_R_32F || found == NULL ||
        workspace_bytes != 0 || algo->data[0] != 1 || *(const float *)alpha != 1.0f || *(const float *)beta != 0.0f) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(&before, &found, sizeof before);
    before(stream);
    for (uint64_t j = 0; j < d->columns; j++) {
        for (uint64_t i = 0; i < d->rows; i++) {
            float sum = 0;
#ifdef FAKE_WRONG
            uint64_t column = (i + 1) % d->rows;
#else
            uint64_t column = i;
#endif
            for (uint64_t l = 0; l < depth; l++) {
                uint64_t at = l;
#ifdef FAKE_BY_ROWS
                at = d->columns > 16 ? depth - 1 - l : l;
#endif
                sum += element(A, a, product->a, column, at) * element(B, b, product->b, at, j);
            }
            ((float *)D)[i + j * (uint64_t)d->leading] = sum;
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}
