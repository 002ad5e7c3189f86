// SPDX-License-Identifier: Apache-2.0
// Purpose: attention over pages with AVX-512. The formulas are those of ref_kv.c, the design that of avx2_kv.c.
#include "engine/tensor/cpu/attention/avx512_f32.h"

#include "engine/tensor/cpu/attention/fills.h"

static inline bool keys_from_codes(const struct sl_page_layout *layout, const char *page, const char *next,
                                   float *tile) {
    (void)layout, (void)page, (void)next, (void)tile; // they would be the same conversions
    return false;
}

static inline bool values_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, size_t n,
                                     float *tile) {
    (void)n;
    return keys_from_codes(layout, page, next, tile);
}

#include "engine/tensor/cpu/attention/avx512_attend.h"

void sl_avx512_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                            const struct sl_kv_partial *partial) {
    sl_avx2_attend_pages(load_queries, attend_page, b, page_begin, page_end, partial);
}

static const struct sl_kv_kernel attention = {sl_avx512_attend_block, SL_ATTEND_BLOCK, fold_kept};

static const struct sl_avx2_scorer *scorer_for(const struct sl_attend *args) {
    (void)args;
    return &scorer;
}

#include "engine/tensor/cpu/attention/kv_entries.h"

const struct sl_avx2_scorer *const sl_avx512_scorer = &scorer;

void sl_avx512_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}
