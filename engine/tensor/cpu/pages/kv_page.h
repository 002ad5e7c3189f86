// SPDX-License-Identifier: Apache-2.0
// Purpose: how engine/tensor/cpu accesses pages, and which slots a row sees, for the KV operations of all tiers.
#pragma once

#include <stddef.h>

#include "engine/tensor/half.h"
#include "engine/tensor/ops.h"

#define SL_F16_MAX 65504.0f

static inline const struct sl_page_layout *sl_kv_page_layout(const struct sl_kv *kv, uint32_t page) {
    return page < kv->n_packed ? kv->packed : kv->work;
}

static inline int32_t *sl_page_positions(const struct sl_page_layout *layout, void *page) {
    return (int32_t *)((char *)page + layout->positions);
}

static inline float *sl_page_state(const struct sl_page_layout *layout, void *page, int plane) {
    return (float *)((char *)page + layout->states) + (size_t)plane * SL_PAGE_SLOTS;
}

// Returns the bytes of a row of n codes; n is a multiple of 8.
static inline size_t sl_row_bytes(int n, int bits) {
    return (size_t)n * (size_t)bits / 8;
}

// Rounds to f16. A value beyond its range becomes the largest f16, not infinity; a NaN stays NaN.
static inline uint16_t sl_f32_to_f16_saturated(float x) {
    x = x > SL_F16_MAX ? SL_F16_MAX : x;
    x = x < -SL_F16_MAX ? -SL_F16_MAX : x;
    return sl_f32_to_f16(x);
}

/*
 * Returns the first slot of `kv` that row `row` sees: 0 without a window, else the first whose position is above
 * positions[row] - window. Positions ascend, so slots before it are outside the window and later ones are inside.
 */
static inline uint32_t sl_attend_first(const struct sl_attend *args, const struct sl_kv *kv, int row) {
    if (args->window <= 0) {
        return 0;
    }
    int64_t above = args->positions[row] - args->window;
    uint32_t low = 0, high = kv->n_slots;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, middle / SL_PAGE_SLOTS);
        int64_t position = middle;
        if (layout->has_positions) {
            position = sl_page_positions(layout, kv->pages[middle / SL_PAGE_SLOTS])[middle % SL_PAGE_SLOTS];
        }
        if (position > above) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Slots of a page, or rows of a block: [begin, end), empty if begin >= end.
struct sl_range {
    int begin, end;
};

// Returns those of the slots [first, end) that are in page `page`, as slots of that page.
static inline struct sl_range sl_slots_in_page(uint32_t first, uint32_t end, uint32_t page) {
    int64_t at = (int64_t)page * SL_PAGE_SLOTS, b = (int64_t)first - at, e = (int64_t)end - at;
    return (struct sl_range){b < 0               ? 0
                             : b > SL_PAGE_SLOTS ? SL_PAGE_SLOTS
                                                 : (int)b,
                             e < 0               ? 0
                             : e > SL_PAGE_SLOTS ? SL_PAGE_SLOTS
                                                 : (int)e};
}

// Returns the slots of page `page` that row `row` sees.
static inline struct sl_range sl_attend_visible(const struct sl_attend *args, const struct sl_kv *kv, int row,
                                                uint32_t page) {
    return sl_slots_in_page(sl_attend_first(args, kv, row), kv->n_slots - (uint32_t)args->m + (uint32_t)row + 1, page);
}

// Reads rows [0, n_rows) of the K or V part of a page as f32 [n_rows][d].
void sl_ref_read_k(const struct sl_page_layout *layout, const void *page, int n_rows, float *out);
void sl_ref_read_v(const struct sl_page_layout *layout, const void *page, int n_rows, float *out);
