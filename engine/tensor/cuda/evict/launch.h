// SPDX-License-Identifier: Apache-2.0
// Purpose: scores and selection of slots. engine/tensor/cuda/launch.h states parameters, bits and failures.
#pragma once

#include "engine/tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- scores of slots (evict/scores.cu): all exact except variance, which is a sum in f64 -----------------------------

void sl_gpu_read_state(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                       int plane, float *out, size_t out_stride);
void sl_gpu_write_state(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, int plane, int m,
                        const float *values);
void sl_gpu_spread(struct gpu_queue *queue, const float *values, int n, int m, float *out, size_t out_stride);
// mean_out, deviation_out: NULL: that output is not wanted
void sl_gpu_mean_state(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                       int64_t n_tokens, float *mean_out, size_t mean_stride, float *deviation_out,
                       size_t deviation_stride);
void sl_gpu_variance(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, int plane, double *out);
void sl_gpu_pool(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots, int group,
                 const float *x, size_t x_stride, bool max, int kernel, int64_t window, float *out, size_t out_stride);
void sl_gpu_mean_group(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                       int group, const float *x, size_t x_stride, float *out, size_t out_stride);
void sl_gpu_recency(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots, float *out,
                    size_t out_stride);
void sl_gpu_chance(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                   uint64_t seed, int layer, int64_t offset, float *out, size_t out_stride);
void sl_gpu_share(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                  float *x_inout, size_t x_stride);

// --- selecting slots (evict/choose.cu, select.cu, gather.cu): all exact ----------------------------------------------

struct gpu_protection { // struct sl_protection
    int64_t n_first, n_newest;
};

void sl_gpu_protect(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                    const struct gpu_protection *protections, float *x_inout, size_t x_stride);
// most_slots: about how many are listed
void sl_gpu_spare(struct gpu_queue *queue, int n_heads, uint32_t most_slots, const uint32_t *listed,
                  size_t listed_stride, const uint32_t *n, float *x_inout, size_t x_stride);
size_t sl_gpu_budgets_work(int n_heads);
void sl_gpu_budgets(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                    const float *scores, size_t scores_stride, uint32_t budget, void *work, uint32_t *kept_out);
// ties: NULL: none
void sl_gpu_select(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, const float *scores,
                   size_t scores_stride, const float *ties, size_t ties_stride, bool newest, const uint32_t *kept,
                   uint32_t *keep_out, size_t keep_stride);
void sl_gpu_gather(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads,
                   const struct sl_page_layout *layout, const uint32_t *keep, size_t keep_stride, const uint32_t *kept);

// --- computing on rows (evict/value_change.cu, merge.cu): within 1e-5 of the largest ---------------------------------

size_t sl_gpu_value_change_work(int n_heads, int group, int head_dim, uint32_t most_slots);
void sl_gpu_value_change(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                         int head_dim, int group, const float *weights, size_t weights_stride, bool mean_center,
                         void *work, float *out, size_t out_stride);
// The cosine of a key whose square overflows f32 is 0. layout: of the heads' pages, host memory. Tensor cores are used
// only with `work`; they round nothing here, because keys are used in their own format.
size_t sl_gpu_nearest_work(int n_heads, uint32_t most_slots, const struct sl_page_layout *layout);
void sl_gpu_nearest(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                    const uint32_t *keep, size_t keep_stride, const uint32_t *kept, uint32_t *evicted_out,
                    size_t evicted_stride, uint32_t *into_out, size_t into_stride, float *cosine_out,
                    size_t cosine_stride, const struct sl_page_layout *layout, void *work);
// The lists are not changed.
size_t sl_gpu_merge_work(int n_heads);
void sl_gpu_merge(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots, int head_dim,
                  const uint32_t *kept, const uint32_t *evicted, size_t evicted_stride, const uint32_t *into,
                  size_t into_stride, const float *cosine, size_t cosine_stride, float beta, void *work,
                  float *threshold_inout, uint32_t *n_merged_out);

// --- errors (evict/estimate.cu): sums in f64 -------------------------------------------------------------------------

struct gpu_page_error { // struct sl_page_error
    double key, key_norm, value, value_norm;
};

size_t sl_gpu_lost_work(int n_heads);
void sl_gpu_lost(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, int group, const float *x,
                 size_t x_stride, const uint32_t *keep, size_t keep_stride, const uint32_t *kept, int64_t n_rows,
                 void *work, double *lost_inout);
// to: [n_heads][n_pages], as for sl_gpu_quantize()
size_t sl_gpu_page_error_work(int n_heads, uint32_t n_pages);
void sl_gpu_page_error(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t n_pages,
                       void *const *to, void *work, struct gpu_page_error *error_inout);

#ifdef __cplusplus
}
#endif
