// SPDX-License-Identifier: Apache-2.0
// Purpose: where the parts of a page are, as page.h draws it.
#include "kvcache/page.h"

#include <string.h>

#define MAX_HEAD_DIM 512 // a page of f32 is then 256 KiB; no model comes near
#define PART_ALIGN   64

static const struct {
    const char *name;
    int bits;
} formats[SL_KV_N_FORMATS] = {
    [SL_KV_F32] = {"f32", 32},  [SL_KV_F16] = {"f16", 16},  [SL_KV_BF16] = {"bf16", 16}, [SL_KV_INT8] = {"int8", 8},
    [SL_KV_INT4] = {"int4", 4}, [SL_KV_INT2] = {"int2", 2}, [SL_KV_INT1] = {"int1", 1},
};

static bool is_format(enum sl_kv_format format) {
    return (unsigned)format < SL_KV_N_FORMATS;
}

const char *sl_kv_format_name(enum sl_kv_format format) {
    return is_format(format) ? formats[format].name : "unknown";
}

enum sl_status sl_kv_format_parse(const char *name, enum sl_kv_format *format_out) {
    for (int i = 0; i < SL_KV_N_FORMATS; i++) {
        if (strcmp(name, formats[i].name) == 0) {
            *format_out = (enum sl_kv_format)i;
            return SL_OK;
        }
    }
    return SL_ERR_INVALID;
}

int sl_kv_format_bits(enum sl_kv_format format) {
    return is_format(format) ? formats[format].bits : 0;
}

// The offset at which a part of `bytes` begins; *end moves behind it.
static uint32_t place(uint32_t *end, uint32_t bytes) {
    uint32_t offset = *end;
    *end = (offset + bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return offset;
}

enum sl_status sl_page_layout_init(struct sl_page_layout *layout, enum sl_kv_format format, int head_dim, int n_states,
                                   bool has_positions) {
    if (!is_format(format) || head_dim < 8 || head_dim > MAX_HEAD_DIM || head_dim % 8 != 0 || n_states < 0 ||
        n_states > SL_MAX_STATES) {
        return SL_ERR_INVALID;
    }
    bool quantized = sl_kv_format_is_quantized(format);
    int group = sl_v_group(head_dim);
    if (quantized && head_dim % group != 0) {
        return SL_ERR_INVALID;
    }

    uint32_t rows_bytes = SL_PAGE_SLOTS * (uint32_t)head_dim * (uint32_t)formats[format].bits / 8;
    uint32_t pair_bytes = 2 * sizeof(uint16_t); // scale, zero
    uint32_t end = 0;
    memset(layout, 0, sizeof *layout); // padding too: layouts are compared as bytes
    layout->format = format;
    layout->head_dim = head_dim;
    layout->n_states = n_states;
    layout->has_positions = has_positions;
    layout->k = place(&end, rows_bytes);
    layout->k_scale = place(&end, quantized ? (uint32_t)head_dim * pair_bytes : 0);
    layout->v = place(&end, rows_bytes);
    layout->v_scale = place(&end, quantized ? SL_PAGE_SLOTS * (uint32_t)(head_dim / group) * pair_bytes : 0);
    layout->positions = place(&end, has_positions ? SL_PAGE_SLOTS * (uint32_t)sizeof(int32_t) : 0);
    layout->states = place(&end, (uint32_t)n_states * SL_PAGE_SLOTS * (uint32_t)sizeof(float));
    layout->bytes = end;
    return SL_OK;
}
