// SPDX-License-Identifier: Apache-2.0
// Purpose: operations on one head, for tests that look at one.
#pragma once

#include "engine/tensor/ops.h"

static inline struct sl_kv_heads one_head(const struct sl_kv *kv) {
    return (struct sl_kv_heads){.kv = kv, .n = 1};
}

static inline struct sl_vectors one_vector(const float *x) {
    return (struct sl_vectors){(float *)x, 0};
}

static inline struct sl_lists one_list(const uint32_t *slots) {
    return (struct sl_lists){(uint32_t *)slots, 0};
}

// Appends m rows of k and v, `stride` floats apart, after the slots of kv, which is not changed.
static inline void append_rows(const struct sl_ops *ops, const struct sl_kv *kv, const float *k, const float *v,
                               int64_t stride, int m, const int64_t *positions) {
    struct sl_kv with = *kv;
    with.n_slots += (uint32_t)m;
    const struct sl_attend call = {.k = k,
                                   .v = v,
                                   .kv_stride = stride,
                                   .m = m,
                                   .n_heads = 1,
                                   .head_dim = kv->work->head_dim,
                                   .heads = one_head(&with),
                                   .positions = positions};
    ops->append(NULL, &call, 1);
}

static inline void read_plane(const struct sl_ops *ops, const struct sl_kv *kv, int plane, float *out) {
    const struct sl_kv_heads heads = one_head(kv);
    ops->read_state(NULL, &heads, plane, one_vector(out));
}

static inline void gather_slots(const struct sl_ops *ops, const struct sl_kv *kv, const uint32_t *keep, uint32_t n) {
    const struct sl_kv_heads heads = one_head(kv);
    ops->gather(NULL, &heads, one_list(keep), (struct sl_counts){.host = &n});
}

static inline void quantize_page(const struct sl_ops *ops, const struct sl_page_layout *work, void *page,
                                 const struct sl_page_layout *packed, void *packed_page) {
    const struct sl_kv kv = {&page, 0, SL_PAGE_SLOTS, work, packed};
    const struct sl_kv_heads heads = one_head(&kv);
    ops->quantize(NULL, &heads, 1, &packed_page);
}

// Rows [n][2][d] of the working format into the listed slots.
static inline void put_rows(const struct sl_ops *ops, const struct sl_kv *kv, const uint32_t *slots, uint32_t n,
                            const void *rows) {
    const struct sl_kv_heads heads = one_head(kv);
    ops->put_rows(NULL, &heads, one_list(slots), (struct sl_counts){.host = &n}, &rows);
}
