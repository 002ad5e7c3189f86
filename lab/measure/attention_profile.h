// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how a model's attention is distributed over its slots, per layer and KV head: the basis of eviction and
 *          retrieval. It uses the last 32 queries of a prompt of n tokens. Every statistic is a mean over these rows,
 *          over the query heads of the KV head, and over the prompts. Rows see earlier tokens and themselves, in f32
 *          (the causal mask also applies among the 32).
 *
 *     dense preference   TailorKV's offline score (section 3, equation 8, as a mean; a layer's is the mean of its
 *                        heads): 1 - (sum of the k largest probabilities of the row), k = int(0.05 n). 0: all of the
 *                        attention is on few slots; near 1: it spreads over all. The paper prints the sum over queries;
 *                        its threshold of 0.2 fits the mean, which is also what its code computes.
 *     first 1, 4, 64     share of the attention on the first slots: StreamingLLM's sinks
 *     last 64            share on the newest slots, including the row's own
 *     slots 90, 95, 99   the smallest share of the row's slots that has this percentage of its attention
 *     effective slots    exp(entropy of the row): this many equally attended slots have the same entropy
 */
#pragma once

#include "lab/eval_model.h"

#define SL_ATTENTION_QUERIES    32
#define SL_ATTENTION_MIN_TOKENS 64 // of a prompt: 5% of fewer is too few

// To add one: an entry here, its name in sl_attention_names[], and a line in sl_attention_of_row().
enum sl_attention_statistic {
    SL_ATTENTION_DENSE,
    SL_ATTENTION_FIRST_1,
    SL_ATTENTION_FIRST_4,
    SL_ATTENTION_FIRST_64,
    SL_ATTENTION_LAST_64,
    SL_ATTENTION_SLOTS_90,
    SL_ATTENTION_SLOTS_95,
    SL_ATTENTION_SLOTS_99,
    SL_ATTENTION_EFFECTIVE,
    SL_N_ATTENTION_STATISTICS
};
extern const char *const sl_attention_names[SL_N_ATTENTION_STATISTICS]; // "dense_preference", ...

// Computes the statistics of one row: probabilities[n], n >= 1, which need not sum to exactly 1. sorted_scratch: [n].
// statistics_out: [SL_N_ATTENTION_STATISTICS].
void sl_attention_of_row(const float *probabilities, uint32_t n, uint32_t k, float *sorted_scratch,
                         double *statistics_out);

struct sl_attention_profile {
    int n_layers, n_kv_heads, n_texts;
    double *values; // [n_layers][n_kv_heads][SL_N_ATTENTION_STATISTICS]: means over the texts so far
};

// Initializes a profile. SL_ERR_EXHAUSTED: no memory. Clean it up in any case.
enum sl_status sl_attention_profile_init(struct sl_attention_profile *profile, int n_layers, int n_kv_heads,
                                         struct sl_error *err);
void sl_attention_profile_cleanup(struct sl_attention_profile *profile);

struct sl_attention_progress {
    enum sl_status (*fn)(void *arg, int64_t done, int64_t total); // may be NULL; anything but SL_OK ends the work
    void *arg;
};

/*
 * Reads one more prompt. SL_ERR_INVALID: n_tokens < SL_ATTENTION_MIN_TOKENS, or beyond the model's positions. On
 * failure the profile is unchanged. Memory beside the cache is linear in the prompt: two rows per query head.
 */
enum sl_status sl_attention_profile_add(struct sl_attention_profile *profile, const struct sl_eval_model *m,
                                        const int32_t *tokens, int64_t n_tokens,
                                        const struct sl_attention_progress *progress, struct sl_error *err);

double sl_attention_of_head(const struct sl_attention_profile *profile, int layer, int head,
                            enum sl_attention_statistic statistic);
double sl_attention_of_layer(const struct sl_attention_profile *profile, int layer, // mean of the layer's heads
                             enum sl_attention_statistic statistic);
