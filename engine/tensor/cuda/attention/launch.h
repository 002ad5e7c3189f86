// SPDX-License-Identifier: Apache-2.0
// Purpose: writes rows into pages, attends to them, and computes statistics of attention. engine/tensor/cuda/launch.h
// states parameters, bits and failures.
#pragma once

#include "engine/tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- pages (quantize.cu): exact, except for the bits of a NaN, and the sign of a zero that is the least of its group

void sl_gpu_quantize(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t n_pages,
                     void *const *to);

// --- data to be sent (collect.cu): exact

struct gpu_share { // the share of a piece that one block copies; an array [n] in device memory
    const void *from;
    size_t offset;  // from `to`
    uint32_t bytes; // a multiple of 16
};
#define GPU_SHARE_BYTES ((size_t)16 << 10)

void sl_gpu_collect(struct gpu_queue *queue, const struct gpu_share *shares, uint32_t n, void *to); // n >= 1

// --- digests of data to be sent (digest.cu): exact

struct gpu_digest { // an array [n] in device memory
    const void *data;
    uint32_t first_part, n_parts; // in part_bytes, also device memory
};
// Writes digests[n], in device or shared memory. n >= 1
void sl_gpu_digest(struct gpu_queue *queue, const struct gpu_digest *pieces, uint32_t n, const uint32_t *part_bytes,
                   uint64_t *digests);

// --- attention (attention/append.cu, attend.cu) ----------------------------------------------------------------------

struct gpu_attend { // the fields of struct sl_attend that differ between calls; an array [n_calls] in device memory
    const float *q, *k, *v;
    int m;
    const struct gpu_head *heads;                // [n_kv_heads]
    const int64_t *positions;                    // [m] or NULL
    float *out, *lse;                            // lse: may be NULL
    float *before_out, *before_max, *before_sum; // struct sl_softmax, or NULL
};

struct gpu_attention { // the fields that do not differ; host memory, read at the call
    int n_heads, n_kv_heads, head_dim;
    int64_t q_stride, kv_stride, out_stride; // 0: packed
    float scale;
    int64_t window; // 0: none
    // sl_attend.rope: keys and queries are rotated by their slots, with these angles, [slots][rotary_dim / 2]; NULL:
    // they are not
    const float *slot_cosines, *slot_sines;
    int rotary_dim;
    bool unfinished;                 // for ops->attend_before: all slots are added to before_*
    enum sl_kv_format format;        // the format of working pages
    bool has_packed;                 // some head has pages in another format,
    enum sl_kv_format packed_format; // which is this one
};

void sl_gpu_append(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   const struct gpu_attention *shape); // exact
// Attends. work: for few rows over many slots; NULL: one block computes all slots of a row. The bits are the same. The
// size is 0 where there are enough blocks without it, or where it would be more than GPU_MOST_WORK. Results are within
// 1e-5 of the reference. Tensor cores round queries and weights to the format of the pages (for codes to f16, before
// and after they are multiplied by a scale): f16 and codes are within 4e-3, bf16 within 3e-2. Keys that are rotated by
// their slots, and codes of lists, are rounded first, too.
#define GPU_MOST_WORK ((size_t)512 << 20)
size_t sl_gpu_attend_work(int n_calls, int most_rows, uint32_t most_slots, const struct gpu_attention *shape);
void sl_gpu_attend(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   uint32_t most_slots, const struct gpu_attention *shape, void *work);

// Attends one call of one row. The list of all slots gives the bits of sl_gpu_attend(), unless
// some are packed and tensor cores attend to them. work: as there, for most_listed slots.
void sl_gpu_attend_slots(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_listed,
                         const struct gpu_attention *shape, struct gpu_lists listed, void *work);

// --- statistics of attention (attention/stats.cu): within 1e-5; with tensor cores (stats_tensor.cu) as close as their
// attention. A row whose weight is next to the mean may be counted or not ---------------------------------------------

// Adds to the state planes sum, square, above, and raises that of the largest weight, or -1 for none: planes[4]. Reads the call's lse.
void sl_gpu_fold(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                 const struct gpu_attention *shape, int first_row, const int *planes);
void sl_gpu_window_sums(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                        const struct gpu_attention *shape, int first_row, float *sums_out, size_t sums_stride);

#ifdef __cplusplus
}
#endif
