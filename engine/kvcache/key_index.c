// SPDX-License-Identifier: Apache-2.0
// Purpose: offsets of the parts of a key index; key_index.h shows the layout.
#include "engine/kvcache/key_index.h"

#include <string.h>

#define PART_ALIGN 64

static size_t whole_parts(size_t bytes) {
    return (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

enum sl_status sl_key_index_layout_init(struct sl_key_index_layout *layout, enum sl_kv_format format, int head_dim,
                                        uint32_t n_slots) {
    struct sl_page_layout page; // validates the head size
    bool quantized = sl_kv_format_is_quantized(format);
    if (sl_kv_format_index(format) == SL_KV_INDEX_NONE ||
        sl_page_layout_init(&page, SL_KV_F32, head_dim, 0, false) != SL_OK || n_slots < 1 ||
        n_slots > UINT32_MAX - SL_PAGE_SLOTS) {
        return SL_ERR_INVALID;
    }
    size_t floats = whole_parts((size_t)head_dim * sizeof(float));
    memset(layout, 0, sizeof *layout); // padding too: layouts are compared as bytes
    layout->format = format;
    layout->head_dim = head_dim;
    layout->capacity = sl_pages_for(n_slots) * SL_PAGE_SLOTS;
    layout->absmax = 0;
    layout->scale = (uint32_t)floats;
    layout->codes = (uint32_t)(quantized ? 2 * floats : floats);
    layout->channel_bytes = whole_parts((size_t)layout->capacity * (size_t)sl_kv_format_bits(format) / 8);
    layout->bytes = layout->codes + (size_t)head_dim * layout->channel_bytes;
    return SL_OK;
}
