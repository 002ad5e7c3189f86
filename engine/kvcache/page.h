// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the bytes of a page: SL_PAGE_SLOTS consecutive slots of one (layer, KV head).
 *
 * Vocabulary: slot  one cached token of one (layer, KV head): K row, V row, original position, score state
 *             page  64 slots: the unit of allocation, of quantization groups and of transfer
 *
 * Layout (every part starts at a multiple of 64 bytes; a part that a layout does not have takes no bytes):
 *
 *   float formats      K [64][d]                 V [64][d]                       in slot order
 *   intB formats       K code [d][64*B/8]        K scale, zero f16 [d][2]        per channel, group: the 64 slots
 *                      V code [64][d*B/8]        V scale, zero f16 [64][d/g][2]  per token, groups of g: sl_v_group()
 *   both               position i32 [64]         if positions
 *                      state f32 [n_states][64]  score state, plane by plane
 *
 *   Codes are packed LSB first: element e of a row sits at bits e*B of the row. x^ = code * scale + zero.
 *
 * Not here: who owns a page (engine/kvcache/session.h), how rows get in and out (engine/tensor/ops.h): page memory is opaque here.
 */
#pragma once

#include <stdint.h>

#include "engine/kvcache/format.h"

#define SL_PAGE_SLOTS 64
#define SL_MAX_STATES 4

// Where the parts of a page are. Byte offsets from the start of the page.
struct sl_page_layout {
    enum sl_kv_format format;
    int head_dim;       // d: a multiple of 8; for quantized formats also of sl_v_group()
    int n_states;       // score planes, 0 .. SL_MAX_STATES
    bool has_positions; // false: the position of slot j is j
    uint32_t k, k_scale, v, v_scale, positions, states;
    uint32_t bytes; // of the whole page, a multiple of 64
};

// SL_ERR_INVALID: head_dim or n_states out of bounds.
enum sl_status sl_page_layout_init(struct sl_page_layout *layout, enum sl_kv_format format, int head_dim, int n_states,
                                   bool has_positions);

// Channels of a V row that share a scale: a row of up to 64 whole, else 64 of them, or 32 where 64 do not divide it.
static inline int sl_v_group(int head_dim) {
    return head_dim <= 64 ? head_dim : head_dim % 64 == 0 ? 64 : 32;
}

static inline uint32_t sl_pages_for(int64_t n_slots) {
    return (uint32_t)((n_slots + SL_PAGE_SLOTS - 1) / SL_PAGE_SLOTS);
}

// The page list of one (layer, KV head): what operations work on, wherever the pages come from.
struct sl_kv {
    void *const *pages;
    uint32_t n_packed; // leading pages in layout *packed, the others in *work
    uint32_t n_slots;
    const struct sl_page_layout *work, *packed;
};

// KV heads of one layer, of one session or of several: operations on pages work on all of them at once.
struct sl_kv_heads {
    const struct sl_kv *kv; // [n]
    int n;
    // What a device with memory of its own knows of them (ops->publish), and where in it they begin; the processors' need none
    const void *published;
    int first;
};

// `n` of them from head `first` on.
static inline struct sl_kv_heads sl_kv_heads_part(struct sl_kv_heads heads, int first, int n) {
    return (struct sl_kv_heads){heads.kv + first, n, heads.published, heads.first + first};
}
