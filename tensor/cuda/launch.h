// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what of tensor/ops.h the GPU computes: each function queues one operation, whose formula stands there under the name
 *          behind sl_gpu_.
 *
 * Parameters: every pointer leads to device memory, or to shared memory of the host, unless it is said to be the host's. heads:
 *         [n_heads]. x, x_stride: as struct sl_vectors and struct sl_lists: row h is x + h * x_stride. Counts: [n_heads].
 *         most_slots: at least the n_slots of every head. What it decides is how many threads there are and how much room is
 *         needed, never a result.
 *         work: what an operation puts aside, of sl_gpu_<operation>_work() bytes, at a multiple of 64; not shared between
 *         queues. layout: the host's, that of the working pages of all heads.
 * Bits:   Operations marked "exact" give the bits of tensor/cpu. The others are sums in another order: still one order,
 *         whatever else is in the call.
 * Failures: none; CUDA's come back where somebody waits for the queue.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/cuda/heads.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_queue; // a stream of CUDA, or of the emulator

// --- scores of slots (evict/scores.cu): all exact but variance, which is a sum in f64 ---------------------------------

void sl_gpu_read_state(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                       int plane, float *out, size_t out_stride);
void sl_gpu_write_state(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, int plane, int m,
                        const float *values);
void sl_gpu_spread(struct gpu_queue *queue, const float *values, int n, int m, float *out, size_t out_stride);
// mean_out, deviation_out: NULL: not wanted
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

// --- which slots stay (evict/choose.cu, select.cu, gather.cu): all exact ------------------------------------------------

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

// --- what eviction computes from rows (evict/value_change.cu, merge.cu): within 1e-5 of the largest ---------------------

size_t sl_gpu_value_change_work(int n_heads, int group, int head_dim, uint32_t most_slots);
void sl_gpu_value_change(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                         int head_dim, int group, const float *weights, size_t weights_stride, bool mean_center,
                         void *work, float *out, size_t out_stride);
// Of a key whose square overflows f32 the cosine is 0.
void sl_gpu_nearest(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                    const uint32_t *keep, size_t keep_stride, const uint32_t *kept, uint32_t *evicted_out,
                    size_t evicted_stride, uint32_t *into_out, size_t into_stride, float *cosine_out,
                    size_t cosine_stride);
// The lists stay as they are.
size_t sl_gpu_merge_work(int n_heads);
void sl_gpu_merge(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots, int head_dim,
                  const uint32_t *kept, const uint32_t *evicted, size_t evicted_stride, const uint32_t *into,
                  size_t into_stride, const float *cosine, size_t cosine_stride, float beta, void *work,
                  float *threshold_inout, uint32_t *n_merged_out);

// --- what it costs (evict/estimate.cu): sums in f64 -------------------------------------------------------------------

struct gpu_page_error { // struct sl_page_error
    double key, key_norm, value, value_norm;
};

size_t sl_gpu_lost_work(int n_heads);
void sl_gpu_lost(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, int group, const float *x,
                 size_t x_stride, const uint32_t *keep, size_t keep_stride, const uint32_t *kept, int64_t n_rows,
                 void *work, double *lost_inout);
// to: [n_heads][n_pages], as of sl_gpu_quantize()
size_t sl_gpu_page_error_work(int n_heads, uint32_t n_pages);
void sl_gpu_page_error(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t n_pages,
                       void *const *to, void *work, struct gpu_page_error *error_inout);

// --- pages (attention/quantize.cu, retrieve/rows.cu): exact, but for what bits a NaN has, and the sign of a zero that is
// the least of its group -------------------------------------------------------------------------------------------------

void sl_gpu_quantize(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t n_pages,
                     void *const *to);
void sl_gpu_mean_query(struct gpu_queue *queue, const float *q, int n_kv_heads, int group, int head_dim,
                       float *means_out);
// most_slots: about how many are listed. rows: [n_heads]
void sl_gpu_put_rows(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t most_slots,
                     const uint32_t *slots, size_t slots_stride, const uint32_t *n, const void *const *rows);

// --- dense (dense/rows.cu, matmul.cu) ---------------------------------------------------------------------------------

enum gpu_weight_kind { GPU_WEIGHT_F32, GPU_WEIGHT_F16, GPU_WEIGHT_BF16, GPU_WEIGHT_INT8, GPU_WEIGHT_INT4 };
enum gpu_activation { GPU_ACT_NONE, GPU_ACT_SILU, GPU_ACT_GELU, GPU_ACT_GELU_TANH }; // enum sl_activation

// struct sl_matrix on the device; dense/pack.h makes its bytes. Rows of W are `pitch` weights apart, those behind k are 0.
struct gpu_matrix {
    enum gpu_weight_kind kind;
    int64_t n, k, pitch;    // pitch: a multiple of 32
    const void *weights;    // [n][pitch]; INT8: a byte each; INT4: two a byte, the first in the lower half, 8 added
    const uint16_t *scales; // [n][pitch / 32] f16, of the quantized ones
    const float *bias;      // [n] or NULL
    int activation;
    bool gated;
    size_t scales_at, bytes; // of what is packed
};

struct gpu_product { // struct sl_matmul
    const float *x;
    int64_t x_stride, m;
    float *y;
    int64_t y_stride, n_columns; // 0: all
    bool accumulate;
};

struct gpu_norm { // struct sl_norm
    bool layer;   // SL_NORM_LAYER
    int64_t n;
    float eps;
    const float *weight, *bias;
};

struct gpu_rope { // struct sl_rope
    int head_dim, rotary_dim;
    const double *inv_freq;
    double scale;
};

// The structs are the host's and are taken at the call. embed, of stored weights, and rotate are exact; a product is a sum in
// f32 in ascending order of k, with x rounded to bf16 where weights are bf16 or quantized.
void sl_gpu_embed(struct gpu_queue *queue, const struct gpu_matrix *table, const int32_t *ids, int64_t m, float *out);
void sl_gpu_norm(struct gpu_queue *queue, const struct gpu_norm *of, const float *x, int64_t x_stride, int64_t m,
                 int n_groups, float *out, int64_t out_stride);
void sl_gpu_angles(struct gpu_queue *queue, const struct gpu_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines);
void sl_gpu_rotate(struct gpu_queue *queue, const struct gpu_rope *rope, const float *cosines, const float *sines,
                   float *x, int64_t stride, int64_t m, int n_heads);
void sl_gpu_matmul(struct gpu_queue *queue, const struct gpu_matrix *w, const struct gpu_product *args);

// --- attention (attention/append.cu, attend.cu) ------------------------------------------------------------------------

struct gpu_attend { // of struct sl_attend what differs between calls; an array [n_calls] in device memory
    const float *q, *k, *v;
    int m;
    const struct gpu_head *heads;                // [n_kv_heads]
    const int64_t *positions;                    // [m] or NULL
    float *out, *lse;                            // lse: or NULL
    float *before_out, *before_max, *before_sum; // struct sl_softmax, or NULL
};

struct gpu_attention { // and what does not: the host's, taken at the call
    int n_heads, n_kv_heads, head_dim;
    int64_t q_stride, kv_stride; // 0: packed
    float scale;
    int64_t window; // 0: none
    // sl_attend.rope: keys and queries are rotated by their slots, whose angles these are, [slots][rotary_dim / 2]; NULL: not
    const float *slot_cosines, *slot_sines;
    int rotary_dim;
    bool unfinished; // as ops->attend_before: all slots are added to before_*
};

void sl_gpu_append(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   const struct gpu_attention *shape); // exact
// work: for few rows over many slots; NULL: a row's slots are one block's work. The bits are the same. Within 1e-5 of the
// reference, in f32 whatever the format.
size_t sl_gpu_attend_work(int n_calls, int most_rows, uint32_t most_slots, const struct gpu_attention *shape);
void sl_gpu_attend(struct gpu_queue *queue, const struct gpu_attend *calls, int n_calls, int most_rows,
                   uint32_t most_slots, const struct gpu_attention *shape, void *work);

// One call of one row; slots, n: [n_kv_heads]. The list of all slots gives the bits of sl_gpu_attend(). work: as there, for
// most_listed slots
void sl_gpu_attend_slots(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_listed,
                         const struct gpu_attention *shape, const uint32_t *slots, size_t slots_stride,
                         const uint32_t *n, void *work);

// --- statistics of attention (attention/stats.cu): within 1e-5; a row whose weight is next to the even one may be counted
// or not ----------------------------------------------------------------------------------------------------------------

// sum, square, above: planes of the state, or -1. lse of the call is read.
void sl_gpu_fold(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                 const struct gpu_attention *shape, int first_row, int sum, int square, int above);
void sl_gpu_window_sums(struct gpu_queue *queue, const struct gpu_attend *call, uint32_t most_slots,
                        const struct gpu_attention *shape, int first_row, float *sums_out, size_t sums_stride);

#ifdef __cplusplus
}
#endif
