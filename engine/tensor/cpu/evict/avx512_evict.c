// SPDX-License-Identifier: Apache-2.0
// Purpose: nearest with AVX-512; tier avx2 fills the other operations of eviction.
#include "engine/tensor/cpu/evict/fills.h"

#include "engine/tensor/cpu/evict/nearest.h"

static const struct sl_evict_kernels kernels = {.nearest = nearest};

static void nearest_heads(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                          struct sl_counts kept, struct sl_nearest nearest_out) {
    const struct sl_evict_call call = {
        .by = &kernels, .heads = heads, .keep = keep, .kept = kept, .nearest = nearest_out};
    sl_evict_nearest(stream, &call);
}

void sl_avx512_evict_fill(struct sl_ops *ops) {
    ops->nearest = nearest_heads;
}
