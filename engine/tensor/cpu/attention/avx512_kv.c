// SPDX-License-Identifier: Apache-2.0
// Purpose: attention over pages with AVX-512. The formulas are those of ref_kv.c, the design that of avx2_kv.c.
#include "engine/tensor/cpu/attention/avx512_f32.h"

#include "engine/tensor/cpu/attention/fills.h"

void sl_avx512_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial) {
    attend_block(b, page_begin, page_end, partial);
}

const struct sl_avx2_scorer *const sl_avx512_scorer = &scorer;

void sl_avx512_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}
