// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the bytes of a page: SL_PAGE_SLOTS consecutive slots of one (layer, KV head).
 *
 * Vocabulary: slot  one cached token of one (layer, KV head): K row, V row, original position, score state
 *             page  64 slots: the unit of allocation, of quantization groups and of transfer
 *
 * Layout (every part starts at a multiple of 64 bytes; a part that a layout does not have takes no bytes):
 *
 *   keys of floats     K [64][d]                 in slot order
 *           of intB    K code [d][64*B/8]        K scale, zero f16 [d][2]        per channel, group: the 64 slots
 *   values of floats   V [64][d]                 in slot order
 *             of intB  V code [64][d*B/8]        V scale, zero f16 [64][d/g][2]  per token, groups of g: sl_v_group()
 *   every page         position i32 [64]         if positions
 *                      state f32 [n_states][64]  score state, plane by plane
 *
 *   Codes are packed LSB first: element e of a row sits at bits e*B of the row. x^ = code * scale + zero.
 *
 * Not here: ownership of pages (engine/kvcache/session.h), reading and writing rows (engine/tensor/ops.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/kvcache/format.h"

#define SL_PAGE_SLOTS 64
#define SL_MAX_STATES 4

// Offsets of the parts of a page, in bytes from the start of the page.
struct sl_page_layout {
    enum sl_kv_format format; // of the page: a pair, or that of both halves
    enum sl_kv_format k_format, v_format;
    int head_dim;       // d: a multiple of 8; for quantized formats also of sl_v_group()
    int n_states;       // score planes, 0 .. SL_MAX_STATES
    bool has_positions; // false: the position of slot j is j
    uint32_t k, k_scale, v, v_scale, positions, states;
    uint32_t bytes; // of the whole page, a multiple of 64
};

// SL_ERR_INVALID: head_dim or n_states out of bounds.
enum sl_status sl_page_layout_init(struct sl_page_layout *layout, enum sl_kv_format format, int head_dim, int n_states,
                                   bool has_positions);

// Clears the slots from n_slots on in a page of floats that the host can write. Whole pages leave a process, also the last
// one of a head, whose memory may have held the slots of another session.
void sl_page_clear(const struct sl_page_layout *layout, void *page, uint32_t n_slots);

// Returns how many channels of a V row share a scale: all of a row of up to 64 channels, else 64, or 32 if 64 does
// not divide the row.
static inline int sl_v_group(int head_dim) {
    return head_dim <= 64 ? head_dim : head_dim % 64 == 0 ? 64 : 32;
}

// Adds the bytes of n pages to those of each half's format. Positions and states count with the values.
static inline void sl_pages_count(const struct sl_page_layout *layout, size_t n, size_t *bytes_by_format) {
    bytes_by_format[layout->k_format] += n * layout->v;
    bytes_by_format[layout->v_format] += n * (layout->bytes - layout->v);
}

static inline uint32_t sl_pages_for(int64_t n_slots) {
    return (uint32_t)((n_slots + SL_PAGE_SLOTS - 1) / SL_PAGE_SLOTS);
}

// The page list of one (layer, KV head), on which operations work; the pages may come from anywhere.
struct sl_kv {
    void *const *pages;
    uint32_t n_packed; // leading pages in layout *packed, the others in *work
    uint32_t n_slots;
    const struct sl_page_layout *work, *packed;
};

// KV heads of one layer, of one session or several: operations on pages work on all of them at once.
struct sl_kv_heads {
    const struct sl_kv *kv; // [n]
    int n;
    // Device-side description of the heads (ops->publish), for a device with its own memory, and their first index in
    // it; NULL on CPUs.
    const void *published;
    int first;
};

// Returns `n` of the heads from head `first` on.
static inline struct sl_kv_heads sl_kv_heads_part(struct sl_kv_heads heads, int first, int n) {
    return (struct sl_kv_heads){heads.kv + first, n, heads.published, heads.first + first};
}
