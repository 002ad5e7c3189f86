// SPDX-License-Identifier: Apache-2.0
// Purpose: the errors that eviction and quantization cause: sums in f64, each in one order; blocks store their parts
//         separately.
#include "engine/tensor/cuda/block.h"
#include "engine/tensor/cuda/evict/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256, PARTS = 32; // for each head

// --- eviction --------------------------------------------------------------------------------------------------------

struct lost_part {
    double evicted, all;
};

static __global__ void __launch_bounds__(THREADS)
    sum_lost(const gpu_head *heads, sl_mass mass, sl_lists lists, const uint32_t *kept, lost_part *parts) {
    __shared__ double scratch[32];
    uint32_t h = blockIdx.y, n = heads[h].n_slots, n_keep = kept[h];
    double evicted = 0, all = 0;
    const uint32_t *keep = lists.at + h * lists.stride;
    const float *x = mass.x.at + h * (size_t)mass.group * mass.x.stride;
    FOR_SLOTS(j, n_keep < n ? n : 0) {
        uint32_t below = gpu::kept_below(keep, n_keep, j);
        bool stays = below < n_keep && keep[below] == j;
        for (int g = 0; g < mass.group; g++) {
            double value = x[(size_t)g * mass.x.stride + j];
            all += value;
            evicted += stays ? 0.0 : value;
        }
    }
    evicted = gpu::block_sum(evicted, scratch);
    all = gpu::block_sum(all, scratch);
    if (threadIdx.x == 0) {
        parts[h * PARTS + blockIdx.x] = {evicted, all};
    }
}

// One block, a thread for each head.
static __global__ void __launch_bounds__(THREADS)
    add_lost(const lost_part *parts, int n_heads, sl_mass mass, double *lost) {
    __shared__ double scratch[32];
    double sum = 0;
    for (int h = (int)threadIdx.x; h < n_heads; h += (int)THREADS) {
        double evicted = 0, all = 0;
        for (uint32_t p = 0; p < PARTS; p++) {
            evicted += parts[h * (int)PARTS + (int)p].evicted;
            all += parts[h * (int)PARTS + (int)p].all;
        }
        sum += mass.n_rows <= 0 ? evicted / mass.group : all > 0 ? evicted / all * (double)mass.n_rows : 0.0;
    }
    sum = gpu::block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        *lost += sum / n_heads;
    }
}

// --- quantization ----------------------------------------------------------------------------------------------------

// blockIdx: page, head. errors: [heads][pages].
static __global__ void __launch_bounds__(THREADS)
    compare_page(const gpu_head *heads, void *const *to, sl_page_error *errors) {
    __shared__ double scratch[32];
    const gpu_head *h = &heads[blockIdx.y];
    size_t at = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    double sums[4] = {};
    const char *after = (const char *)to[at];
    if (after != nullptr) {
        const char *before = (const char *)h->pages[h->n_packed + blockIdx.x];
        uint32_t units = (uint32_t)h->work.head_dim / 8;
        for (uint32_t u = threadIdx.x; u < SL_PAGE_SLOTS * units; u += THREADS) {
            uint32_t j = u / units;
            int c = (int)(u % units) * 8;
            GPU_UNROLL
            for (int side = 0; side < 2; side++) {
                float a[8], b[8];
                if (side == 0) {
                    gpu::read_k8(&h->work, before, j, c, a);
                    gpu::read_k8(&h->packed, after, j, c, b);
                } else {
                    gpu::read_v8(&h->work, before, j, c, a);
                    gpu::read_v8(&h->packed, after, j, c, b);
                }
                GPU_UNROLL
                for (int i = 0; i < 8; i++) {
                    double change = (double)b[i] - (double)a[i];
                    sums[2 * side] += change * change;
                    sums[2 * side + 1] += (double)a[i] * (double)a[i];
                }
            }
        }
    }
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        sums[i] = gpu::block_sum(sums[i], scratch);
    }
    if (threadIdx.x == 0) {
        errors[at] = {sums[0], sums[1], sums[2], sums[3]};
    }
}

static __global__ void __launch_bounds__(THREADS)
    add_errors(const sl_page_error *errors, uint32_t n, sl_page_error *error) {
    __shared__ double scratch[32];
    sl_page_error sum = {};
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        sum.key += errors[i].key;
        sum.key_norm += errors[i].key_norm;
        sum.value += errors[i].value;
        sum.value_norm += errors[i].value_norm;
    }
    sum.key = gpu::block_sum(sum.key, scratch);
    sum.key_norm = gpu::block_sum(sum.key_norm, scratch);
    sum.value = gpu::block_sum(sum.value, scratch);
    sum.value_norm = gpu::block_sum(sum.value_norm, scratch);
    if (threadIdx.x == 0) {
        error->key += sum.key;
        error->key_norm += sum.key_norm;
        error->value += sum.value;
        error->value_norm += sum.value_norm;
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

size_t sl_gpu_lost_work(int n_heads) {
    return (size_t)n_heads * PARTS * sizeof(lost_part);
}

void sl_gpu_lost(struct gpu_queue *queue, struct gpu_heads heads, struct sl_mass mass, struct sl_lists keep,
                 const uint32_t *kept, void *work, double *lost_inout) {
    lost_part *parts = (lost_part *)work;
    GPU_LAUNCH(sum_lost, dim3(PARTS, (unsigned)heads.n), THREADS, 0, queue, heads.at, mass, keep, kept, parts);
    GPU_LAUNCH(add_lost, 1, THREADS, 0, queue, parts, heads.n, mass, lost_inout);
}

size_t sl_gpu_page_error_work(int n_heads, uint32_t n_pages) {
    return (size_t)n_heads * n_pages * sizeof(sl_page_error);
}

void sl_gpu_page_error(struct gpu_queue *queue, struct gpu_heads heads, uint32_t n_pages, void *const *to, void *work,
                       struct sl_page_error *error_inout) {
    sl_page_error *errors = (sl_page_error *)work;
    if (n_pages > 0) {
        GPU_LAUNCH(compare_page, dim3(n_pages, (unsigned)heads.n), THREADS, 0, queue, heads.at, to, errors);
        GPU_LAUNCH(add_errors, 1, THREADS, 0, queue, errors, n_pages * (uint32_t)heads.n, error_inout);
    }
}
