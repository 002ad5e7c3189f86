// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the bytes of a key index: a channel-by-channel copy of the keys of consecutive slots of one offloaded
 *          head. Ranking all slots by a few channels reads only these channels.
 *
 * Layout: absmax f32 [d]            of every channel over the slots
 *         scale  f32 [d]            int8: absmax / 127; int1: mean |K_j[c]|; not of the float formats
 *         codes  [d][channel_bytes] channel_bytes = of `capacity` slots, a multiple of 64
 *
 *   f32, f16, bf16   K_j[c] as the page has it; rounded if the page has another format, f16 saturated
 *   int8             round-half-even(K_j[c] / scale), 0 where scale is 0;  K^ = scale * code
 *   int1             bit j of the channel, LSB first: 1 where K_j[c] >= 0; K^ = +scale or -scale
 *
 * A NaN counts as 0 in absmax and scale, and its int8 code is 0.
 * Every part starts at a multiple of 64 bytes. Slots from n_slots to capacity hold zeros.
 */
#pragma once

#include <stddef.h>

#include "engine/kvcache/page.h"

struct sl_key_index_layout {
    enum sl_kv_format format; // one that has an index: sl_kv_format_index()
    int head_dim;
    uint32_t capacity; // slots, a multiple of SL_PAGE_SLOTS
    uint32_t absmax, scale, codes;
    size_t channel_bytes;
    size_t bytes; // of the whole index, a multiple of 64
};

// SL_ERR_INVALID: another format, head_dim or n_slots out of bounds.
enum sl_status sl_key_index_layout_init(struct sl_key_index_layout *layout, enum sl_kv_format format, int head_dim,
                                        uint32_t n_slots);
