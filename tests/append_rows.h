// SPDX-License-Identifier: Apache-2.0
// Purpose: rows into one head at a time, for tests that fill pages by hand.
#ifndef SL_TESTS_APPEND_ROWS_H
#define SL_TESTS_APPEND_ROWS_H

#include "tensor/ops.h"

// m rows of k and v, `stride` floats apart, behind the slots of kv, which is not changed.
static inline void append_rows(const struct sl_ops *ops, const struct sl_kv *kv, const float *k, const float *v,
                               int64_t stride, int m, const int64_t *positions) {
    struct sl_kv with = *kv;
    with.n_slots += (uint32_t)m;
    const struct sl_attend call = {
        .k = k, .v = v, .kv_stride = stride, .m = m, .heads = {&with, 1}, .positions = positions};
    ops->append(NULL, &call, 1);
}

#endif
