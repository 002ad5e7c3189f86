// SPDX-License-Identifier: Apache-2.0
// Purpose: scores and selection of slots. engine/tensor/cuda/launch.h states parameters, bits and failures.
#pragma once

#include "engine/tensor/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- scores of slots (evict/scores.cu): all exact except variance, which is a sum in f64 -----------------------------

void sl_gpu_read_state(struct gpu_queue *queue, struct gpu_heads heads, int plane, struct sl_vectors out);
void sl_gpu_write_state(struct gpu_queue *queue, struct gpu_heads heads, int plane, int m, const float *values);
void sl_gpu_spread(struct gpu_queue *queue, const float *values, int n, int m, struct sl_vectors out);
void sl_gpu_mean_state(struct gpu_queue *queue, struct gpu_heads heads, int64_t n_tokens, struct sl_vectors mean_out,
                       struct sl_vectors deviation_out);
void sl_gpu_variance(struct gpu_queue *queue, struct gpu_heads heads, int plane, double *out);
void sl_gpu_pool(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors x,
                 struct sl_pooling pooling, struct sl_vectors out);
void sl_gpu_mean_group(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors x,
                       struct sl_vectors out);
void sl_gpu_recency(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors out);
void sl_gpu_chance(struct gpu_queue *queue, struct gpu_heads heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out);
void sl_gpu_share(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors x_inout);

// --- selecting slots (evict/choose.cu, select.cu, gather.cu): all exact ----------------------------------------------

void sl_gpu_protect(struct gpu_queue *queue, struct gpu_heads heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout);
void sl_gpu_spare(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists listed, const uint32_t *n,
                  struct sl_vectors x_inout);
size_t sl_gpu_budgets_work(int n_heads);
void sl_gpu_budgets(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors scores, uint32_t budget,
                    void *work, uint32_t *kept_out);
void sl_gpu_select(struct gpu_queue *queue, struct gpu_heads heads, struct sl_vectors scores, struct sl_vectors ties,
                   bool newest, const uint32_t *kept, struct sl_lists keep_out);
void sl_gpu_gather(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists keep, const uint32_t *kept);

// --- computing on rows (evict/value_change.cu, merge.cu): within 1e-5 of the largest ---------------------------------

size_t sl_gpu_value_change_work(struct gpu_heads heads, int group);
void sl_gpu_value_change(struct gpu_queue *queue, struct gpu_heads heads, int group, struct sl_vectors weights,
                         bool mean_center, void *work, struct sl_vectors out);
// The cosine of a key whose square overflows f32 is 0. Tensor cores are used only with `work`; they round nothing here,
// because keys are used in their own format.
size_t sl_gpu_nearest_work(struct gpu_heads heads);
void sl_gpu_nearest(struct gpu_queue *queue, struct gpu_heads heads, struct sl_lists keep, const uint32_t *kept,
                    struct sl_nearest nearest_out, void *work);
// The lists are not changed.
size_t sl_gpu_merge_work(int n_heads);
void sl_gpu_merge(struct gpu_queue *queue, struct gpu_heads heads, const uint32_t *kept, struct sl_nearest nearest,
                  struct sl_merge_threshold threshold, void *work);

// --- errors (evict/estimate.cu): sums in f64 -------------------------------------------------------------------------

size_t sl_gpu_lost_work(int n_heads);
void sl_gpu_lost(struct gpu_queue *queue, struct gpu_heads heads, struct sl_mass mass, struct sl_lists keep,
                 const uint32_t *kept, void *work, double *lost_inout);
// to: [n][n_pages], as for sl_gpu_quantize()
size_t sl_gpu_page_error_work(int n_heads, uint32_t n_pages);
void sl_gpu_page_error(struct gpu_queue *queue, struct gpu_heads heads, uint32_t n_pages, void *const *to, void *work,
                       struct sl_page_error *error_inout);

#ifdef __cplusplus
}
#endif
