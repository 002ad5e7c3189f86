// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the best of rows of logits, found on the device: kilobytes go to the host, not half a megabyte for each row.
 *
 * Design: a block for each row finds the last of the best (radix.h), and, of equal ones at the edge, the last id that
 *         still fits. It lists everything up to that one in any order, and sorts the list. The order is total: a
 *         logit's key above its id, counted from the top, is one number of 64 bits. Then blocks of parts of every row
 *         add up the logits after the last one. The number of parts is constant, so a row's sums do not depend on other
 *         rows.
 */
#include "engine/tensor/cuda/dense/launch.h"
#include "engine/tensor/cuda/radix.h"

constexpr uint32_t THREADS = 1024, AHEAD = 8, PARTS = 32, PART_THREADS = 256, MOST = SL_MAX_CANDIDATES;

struct pick_row {  // about the best logits
    uint64_t last; // place_of() the last one
    double sum;    // sum_i exp(l_i - max)
    float max, min;
    uint32_t n, n_finite;
};
struct pick_part { // sums over the logits after the last one
    double plain;  // of exp(l - min)
    double rest;   // the same at the row's temperature
};

GPU_DEVICE bool is_finite(float x) {
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// Returns a number that is larger for a better logit. No finite logit's is 0.
GPU_DEVICE uint64_t place_of(float logit, uint32_t id) {
    return (uint64_t)gpu::score_key(logit) << 32 | ~id;
}

// Returns the place of the b-th best, b at most the number of finite ones; 0 where no logit is finite.
GPU_DEVICE uint64_t find_last(const float *logits, uint32_t n, uint32_t b, gpu::search *s, uint32_t *n_finite_out) {
    gpu::edge found = gpu::find_key<THREADS>(
        [=](uint32_t j, uint32_t *key_out) {
            *key_out = gpu::score_key(logits[j]);
            return is_finite(logits[j]);
        },
        n, b, s);
    *n_finite_out = found.n_all;
    if (found.n_equal == found.n_there) { // none of the equal ones is left out
        return (uint64_t)found.key << 32;
    }
    gpu::edge tie = gpu::find_key<THREADS>(
        [=](uint32_t j, uint32_t *key_out) {
            *key_out = ~j;
            return is_finite(logits[j]) && gpu::score_key(logits[j]) == found.key;
        },
        n, found.n_equal, s);
    return (uint64_t)found.key << 32 | tie.key;
}

// Sorts best[0 .. n), n <= MOST, the largest first.
GPU_DEVICE void sort(uint64_t *best, uint32_t n) {
    uint32_t size = 1;
    while (size < n) {
        size *= 2;
    }
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS) {
        best[i] = 0;
    }
    __syncthreads();
    for (uint32_t width = 2; width <= size; width *= 2) {
        for (uint32_t apart = width / 2; apart > 0; apart /= 2) {
            for (uint32_t i = threadIdx.x; i < size / 2; i += THREADS) {
                uint32_t a = 2 * i - (i & (apart - 1)), b = a + apart;
                uint64_t x = best[a], y = best[b];
                bool falls = (a & width) == 0;
                if ((x < y) == falls) {
                    best[a] = y;
                    best[b] = x;
                }
            }
            __syncthreads();
        }
    }
}

// blockIdx.x: row.
static __global__ void __launch_bounds__(THREADS)
    pick_best(const float *logits, uint32_t n_vocab, const sl_pick *asked, pick_row *rows, sl_picked *picked) {
    __shared__ gpu::search search;
    __shared__ uint64_t best[MOST];
    __shared__ uint32_t n_listed;
    __shared__ double scratch[32];
    uint32_t r = blockIdx.x, n_finite;
    if (asked[r].most <= 0) {
        if (threadIdx.x == 0) {
            rows[r] = {};
        }
        return;
    }
    logits += r * (size_t)n_vocab;
    uint64_t last = find_last(logits, n_vocab, (uint32_t)asked[r].most, &search, &n_finite);
    if (threadIdx.x == 0) {
        n_listed = 0;
    }
    __syncthreads();
    for (uint32_t first = threadIdx.x; first < n_vocab; first += AHEAD * THREADS) {
        float logit[AHEAD];
        GPU_UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) { // all loads are in flight before one is listed
            logit[i] = first + i * THREADS < n_vocab ? logits[first + i * THREADS] : INFINITY;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint64_t place = place_of(logit[i], first + i * THREADS);
            if (is_finite(logit[i]) && place >= last) {
                best[atomicAdd(&n_listed, 1u)] = place;
            }
        }
    }
    __syncthreads();
    uint32_t n = n_listed;
    if (threadIdx.x == 0) {
        rows[r] = {};
        picked[r].n_finite = (int32_t)n_finite;
        picked[r].n = (int32_t)n;
    }
    if (n == 0) {
        return;
    }
    sort(best, n);
    float max = logits[~(uint32_t)best[0]], min = logits[~(uint32_t)best[n - 1]];
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t id = ~(uint32_t)best[i];
        float logit = logits[id];
        picked[r].best[i] = {logit, (int32_t)id};
        sum += exp((double)logit - (double)max);
    }
    sum = gpu::block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        rows[r] = {best[n - 1], sum, max, min, n, n_finite};
    }
}

// blockIdx: row, part.
static __global__ void __launch_bounds__(PART_THREADS)
    pick_rest(const float *logits, uint32_t n_vocab, const sl_pick *asked, const pick_row *rows, pick_part *parts) {
    __shared__ double scratch[32];
    uint32_t r = blockIdx.x;
    pick_row row = rows[r];
    double plain = 0, rest = 0, min = row.min, temperature = asked[r].temperature;
    logits += r * (size_t)n_vocab;
    uint32_t n = row.n < row.n_finite ? n_vocab : 0;
    for (uint32_t j = blockIdx.y * PART_THREADS + threadIdx.x; j < n; j += PARTS * PART_THREADS) {
        float logit = logits[j];
        if (is_finite(logit) && place_of(logit, j) < row.last) {
            double below = (double)logit - min;
            plain += exp(below);
            rest += temperature > 0 && temperature != 1 ? exp(below / temperature) : 0.0;
        }
    }
    plain = gpu::block_sum(plain, scratch);
    rest = gpu::block_sum(rest, scratch);
    if (threadIdx.x == 0) {
        parts[r * PARTS + blockIdx.y] = {plain, temperature == 1 ? plain : rest};
    }
}

// A warp for each row, a lane for each part.
static __global__ void __launch_bounds__(PARTS)
    pick_end(const pick_row *rows, const pick_part *parts, sl_picked *picked) {
    __shared__ double scratch[32];
    uint32_t r = blockIdx.x;
    pick_row row = rows[r];
    double plain = gpu::block_sum(parts[r * PARTS + threadIdx.x].plain, scratch);
    double rest = gpu::block_sum(parts[r * PARTS + threadIdx.x].rest, scratch);
    if (threadIdx.x == 0 && row.n > 0) {
        picked[r].lse = (double)row.max + log(row.sum + exp((double)row.min - (double)row.max) * plain);
        picked[r].rest = rest;
    }
}

static size_t rows_bytes(int64_t m) {
    return ((size_t)m * sizeof(pick_row) + 63) / 64 * 64;
}

size_t sl_gpu_pick_work(int64_t m) {
    return rows_bytes(m) + (size_t)m * PARTS * sizeof(pick_part);
}

void sl_gpu_pick(struct gpu_queue *queue, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 void *work, struct sl_picked *picked_out) {
    pick_row *rows = (pick_row *)work;
    pick_part *parts = (pick_part *)((char *)work + rows_bytes(m));
    if (m > 0) {
        GPU_LAUNCH(pick_best, (unsigned)m, THREADS, 0, queue, logits, (uint32_t)n_vocab, asked, rows, picked_out);
        GPU_LAUNCH(pick_rest, dim3((unsigned)m, PARTS), PART_THREADS, 0, queue, logits, (uint32_t)n_vocab, asked, rows,
                   parts);
        GPU_LAUNCH(pick_end, (unsigned)m, PARTS, 0, queue, rows, parts, picked_out);
    }
}
