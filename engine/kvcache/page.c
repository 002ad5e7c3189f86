// SPDX-License-Identifier: Apache-2.0
// Purpose: offsets of the parts of a page, which page.h shows; clearing unused slots.
#include "engine/kvcache/page.h"

#include <assert.h>
#include <string.h>

#define MAX_HEAD_DIM 512 // a page of f32 is then 256 KiB; no model comes near
#define PART_ALIGN   64

// Returns the offset at which a part of `bytes` begins; advances *end past the part.
static uint32_t place(uint32_t *end, uint32_t bytes) {
    uint32_t offset = *end;
    *end = (offset + bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return offset;
}

enum sl_status sl_page_layout_init(struct sl_page_layout *layout, enum sl_kv_format format, int head_dim, int n_states,
                                   bool has_positions) {
    if (!sl_kv_format_is_of_page(format) || head_dim < 8 || head_dim > MAX_HEAD_DIM || head_dim % 8 != 0 ||
        n_states < 0 || n_states > SL_MAX_STATES) {
        return SL_ERR_INVALID;
    }
    enum sl_kv_format k = sl_kv_format_keys(format), v = sl_kv_format_values(format);
    int group = sl_v_group(head_dim);
    if (sl_kv_format_is_quantized(format) && head_dim % group != 0) {
        return SL_ERR_INVALID;
    }

    uint32_t n = SL_PAGE_SLOTS * (uint32_t)head_dim; // elements of a half
    uint32_t pair_bytes = 2 * sizeof(uint16_t);      // scale, zero
    uint32_t end = 0;
    memset(layout, 0, sizeof *layout); // padding too: layouts are compared as bytes
    layout->format = format;
    layout->k_format = k;
    layout->v_format = v;
    layout->head_dim = head_dim;
    layout->n_states = n_states;
    layout->has_positions = has_positions;
    layout->k = place(&end, n * (uint32_t)sl_kv_format_bits(k) / 8);
    layout->k_scale = place(&end, sl_kv_format_is_quantized(k) ? (uint32_t)head_dim * pair_bytes : 0);
    layout->v = place(&end, n * (uint32_t)sl_kv_format_bits(v) / 8);
    layout->v_scale = place(&end, sl_kv_format_is_quantized(v) ? n / (uint32_t)group * pair_bytes : 0);
    layout->positions = place(&end, has_positions ? SL_PAGE_SLOTS * (uint32_t)sizeof(int32_t) : 0);
    layout->states = place(&end, (uint32_t)n_states * SL_PAGE_SLOTS * (uint32_t)sizeof(float));
    layout->bytes = end;
    return SL_OK;
}

void sl_page_clear(const struct sl_page_layout *layout, void *page, uint32_t n_slots) {
    size_t row = (size_t)layout->head_dim * (size_t)sl_kv_format_bits(layout->k_format) / 8;
    size_t left = SL_PAGE_SLOTS - n_slots, number = sizeof(float);
    char *bytes = page;
    assert(n_slots <= SL_PAGE_SLOTS && !sl_kv_format_is_quantized(layout->format));
    memset(bytes + layout->k + n_slots * row, 0, left * row);
    memset(bytes + layout->v + n_slots * row, 0, left * row);
    if (layout->has_positions) {
        memset(bytes + layout->positions + n_slots * number, 0, left * number);
    }
    for (size_t plane = 0; plane < (size_t)layout->n_states; plane++) {
        memset(bytes + layout->states + (plane * SL_PAGE_SLOTS + n_slots) * number, 0, left * number);
    }
}
