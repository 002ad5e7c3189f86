// SPDX-License-Identifier: Apache-2.0
/*
 * Design: cuBLASLt stores columns contiguously, so it gets transposes: sums^T[n][m] = W[n][k] x^T[k][m], where W is
 *         stored as the transpose of [k][n]. Its own choice of an algorithm depends on m. Here it is asked once for
 *         each shape, for many rows, and told not to reduce afterwards: split-K adds up parts in an order that depends
 *         on m. The algorithm that it then names (a tile, stages, a swizzle) is used for every m. table/library.h
 *         checks on the device that this is enough.
 * Threads: one at a time, as operations are queued.
 */
#include "engine/tensor/cuda/plugin/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/launching.h"

#define ROWS        1024 // rows for which an algorithm is chosen
#define MOST_FOUND  32   // algorithms that are examined
#define MOST_SHAPES 64
#define TEXT_OF(x)  #x
#define TEXT(x)     TEXT_OF(x)
#define NAME        "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

#define FUNCTIONS(X)                                                                                                   \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoCheck)                                                                                         \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)

static struct {
    void *library;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatmulPreference_t preference;
    struct shape {
        int64_t n, k;
        cublasLtMatmulAlgo_t algorithm;
    } shapes[MOST_SHAPES];
    int n_shapes;
} lt;

// --- descriptions ----------------------------------------------------------------------------------------------------

// The layouts of a product of m rows: W, x and sums, by columns.
struct layouts {
    cublasLtMatrixLayout_t w, x, sums;
};

static void destroy_layouts(struct layouts *l) {
    cublasLtMatrixLayout_t all[] = {l->w, l->x, l->sums};
    for (int i = 0; i < 3; i++) {
        if (all[i] != NULL) {
            (void)lt.cublasLtMatrixLayoutDestroy(all[i]);
        }
    }
}

static enum sl_status create_layouts(int64_t n, int64_t k, int64_t m, struct layouts *l, struct sl_error *err) {
    *l = (struct layouts){0};
    if (lt.cublasLtMatrixLayoutCreate(&l->w, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k) == CUBLAS_STATUS_SUCCESS &&
        lt.cublasLtMatrixLayoutCreate(&l->x, CUDA_R_16BF, (uint64_t)k, (uint64_t)m, k) == CUBLAS_STATUS_SUCCESS &&
        lt.cublasLtMatrixLayoutCreate(&l->sums, CUDA_R_32F, (uint64_t)n, (uint64_t)m, n) == CUBLAS_STATUS_SUCCESS) {
        return SL_OK;
    }
    destroy_layouts(l);
    return sl_fail(err, SL_ERR_EXHAUSTED, "cuBLASLt has no memory for the description of a matrix");
}

static cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    return lt.cublasLtMatmulPreferenceSetAttribute(lt.preference, attribute, value, bytes);
}

static bool describe(void) {
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    const uint64_t no_workspace = 0;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    bool good =
        lt.cublasLtMatmulDescCreate(&lt.product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        lt.cublasLtMatmulDescSetAttribute(lt.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ==
            CUBLAS_STATUS_SUCCESS &&
        lt.cublasLtMatmulDescSetAttribute(lt.product, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain) ==
            CUBLAS_STATUS_SUCCESS &&
        lt.cublasLtMatmulPreferenceCreate(&lt.preference) == CUBLAS_STATUS_SUCCESS &&
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction) ==
            CUBLAS_STATUS_SUCCESS &&
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_workspace, sizeof no_workspace) == CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 4 && good; i++) {
        good = prefer(alignments[i], &alignment, sizeof alignment) == CUBLAS_STATUS_SUCCESS;
    }
    return good;
}

// --- shapes ----------------------------------------------------------------------------------------------------------

// Returns true where all of k is in one sum.
static bool is_whole(const cublasLtMatmulAlgo_t *algorithm) {
    int32_t n_splits = 0;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t bytes;
    return lt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &n_splits,
                                                   sizeof n_splits, &bytes) == CUBLAS_STATUS_SUCCESS &&
           lt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                   sizeof reduction, &bytes) == CUBLAS_STATUS_SUCCESS &&
           n_splits <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static bool serves(const cublasLtMatmulAlgo_t *algorithm, const struct layouts *l) {
    cublasLtMatmulHeuristicResult_t result = {0};
    return lt.cublasLtMatmulAlgoCheck(lt.handle, lt.product, l->w, l->x, l->sums, l->sums, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize == 0;
}

static enum sl_status find_algorithm(const struct layouts *many, const struct layouts *one, struct shape *shape,
                                     struct sl_error *err) {
    cublasLtMatmulHeuristicResult_t found[MOST_FOUND];
    int n = 0;
    cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.product, many->w, many->x, many->sums,
                                                              many->sums, lt.preference, MOST_FOUND, found, &n);
    for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize == 0 && is_whole(&found[i].algo) &&
            serves(&found[i].algo, one)) {
            shape->algorithm = found[i].algo;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "of %d algorithms none takes 1 row and %d without split-K (cuBLASLt says %d)", n, ROWS, (int)status);
}

static enum sl_status choose(int64_t n, int64_t k, int *way_out, struct sl_error *err) {
    for (int i = 0; i < lt.n_shapes; i++) {
        if (lt.shapes[i].n == n && lt.shapes[i].k == k) {
            *way_out = i;
            return SL_OK;
        }
    }
    // otherwise its rows of sums would not begin at multiples of 16 bytes
    SL_FAIL_IF(lt.n_shapes == MOST_SHAPES || n % 4 != 0, err, SL_ERR_UNSUPPORTED,
               "%lld columns, in the %d. shape: not aligned, or too many", (long long)n, lt.n_shapes + 1);
    struct shape *shape = &lt.shapes[lt.n_shapes];
    struct layouts many, one;
    *shape = (struct shape){.n = n, .k = k};
    SL_TRY(create_layouts(n, k, ROWS, &many, err));
    enum sl_status status = create_layouts(n, k, 1, &one, err);
    if (status == SL_OK) {
        status = find_algorithm(&many, &one, shape, err);
        destroy_layouts(&one);
    }
    destroy_layouts(&many);
    if (status == SL_OK) {
        *way_out = lt.n_shapes++;
    }
    return status;
}

// --- products --------------------------------------------------------------------------------------------------------

static enum sl_status multiply(struct gpu_queue *queue, int way, const struct gpu_matrix *w, const void *x,
                               const struct sl_matmul *args, struct sl_error *err) {
    const struct shape *shape = &lt.shapes[way];
    const int64_t m = args->m;
    float *sums = args->y;
    const float one = 1.0f, zero = 0.0f;
    struct layouts l;
    SL_TRY(create_layouts(shape->n, shape->k, m, &l, err));
    sl_cuda_launching("cublasLtMatmul");
    cublasStatus_t result = lt.cublasLtMatmul(lt.handle, lt.product, &one, w->weights, l.w, x, l.x, &zero, sums, l.sums,
                                              sums, l.sums, &shape->algorithm, NULL, 0, (cudaStream_t)queue);
    destroy_layouts(&l);
    return result == CUBLAS_STATUS_SUCCESS
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "cuBLASLt cannot multiply %lld rows by %lld x %lld (it says %d)",
                         (long long)m, (long long)shape->n, (long long)shape->k, (int)result);
}

// --- the library -----------------------------------------------------------------------------------------------------

static const struct gpu_library library = {
    .name = "cuBLASLt", .most_rows = ROWS, .choose = choose, .multiply = multiply};

static bool find_function(void *to, const char *name, struct sl_error *err) {
    void *function = dlsym(lt.library, name);
    memcpy(to, &function, sizeof function);
    if (function == NULL) {
        sl_fail(err, SL_ERR_UNSUPPORTED, "it has no %s", name);
    }
    return function != NULL;
}

static bool open_library(const char *path, struct sl_error *err) {
    lt.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lt.library == NULL) {
        sl_fail(err, SL_ERR_UNSUPPORTED, "%s", dlerror());
        return false;
    }
#define X(name)                                                                                                        \
    if (!find_function(&lt.name, #name, err)) {                                                                        \
        return false;                                                                                                  \
    }
    FUNCTIONS(X)
#undef X
    size_t version = lt.cublasLtGetVersion();
    if (version / 10000 != CUBLAS_VER_MAJOR) {
        sl_fail(err, SL_ERR_UNSUPPORTED, "%s is version %zu, this was built for %d", path, version, CUBLAS_VERSION);
        return false;
    }
    sl_cuda_launching("cublasLtCreate");
    if (lt.cublasLtCreate(&lt.handle) != CUBLAS_STATUS_SUCCESS || !describe()) {
        sl_fail(err, SL_ERR_UNSUPPORTED, "%s cannot be used on this device", path);
        return false;
    }
    return true;
}

const struct gpu_library *sl_cublaslt_open(const char *path, struct sl_error *err) {
    if (!open_library(path != NULL ? path : NAME, err)) {
        sl_cublaslt_close();
        return NULL;
    }
    return &library;
}

void sl_cublaslt_close(void) {
    if (lt.preference != NULL) {
        (void)lt.cublasLtMatmulPreferenceDestroy(lt.preference);
    }
    if (lt.product != NULL) {
        (void)lt.cublasLtMatmulDescDestroy(lt.product);
    }
    if (lt.handle != NULL) {
        (void)lt.cublasLtDestroy(lt.handle);
    }
    if (lt.library != NULL) {
        (void)dlclose(lt.library);
    }
    memset(&lt, 0, sizeof lt);
}
