// SPDX-License-Identifier: Apache-2.0
// Purpose: the order of scores, and selection in that order: from one list, and from all heads with their ties.
#pragma once

#include <math.h>

#include "engine/tensor/half.h"
#include "engine/tensor/ops.h"

// Returns bits whose unsigned order is the order of scores: NaN is 0, -0 is +0, and only NaN is below -infinity.
static inline uint32_t sl_score_key(float score) {
    if (isnan(score)) {
        return 0;
    }
    uint32_t bits = sl_f32_to_bits(score == 0.0f ? 0.0f : score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Selects as host.select does.
typedef void (*sl_select_fn)(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out);
void sl_ref_select(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out);

// A call of ops->select, and the tier's selection of one list.
struct sl_select_call {
    const struct sl_kv_heads *heads;
    struct sl_vectors scores, ties;
    bool newest;
    struct sl_counts kept;
    struct sl_lists keep;
    sl_select_fn select;
};
void sl_select_heads(struct sl_stream *stream, const struct sl_select_call *call);
