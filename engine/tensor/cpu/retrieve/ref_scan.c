// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: makes and scans key indexes (engine/kvcache/key_index.h), and moves rows between caches, in plain C.
 *
 * Design: a first pass over the pages finds the values of an index that depend on all slots (the largest magnitude of a
 *         channel, and its mean in f64); a second one computes the codes.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/pages/kv_page.h"
#include "engine/tensor/cpu/pages/ref_codec.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/retrieve/fills.h"
#include "engine/tensor/cpu/retrieve/scan_heads.h"

// --- key indexes -----------------------------------------------------------------------------------------------------

// Computes absmax[c] and scale[c]; NaNs are ignored.
static void find_scales(const struct sl_kv *kv, uint32_t n_slots, const struct sl_key_index_layout *layout,
                        float *absmax, float *scale) {
    double sum[SL_MAX_HEAD_DIM] = {0};
    float row[SL_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < n_slots; j++) {
        sl_ref_read_k_row(kv, j, row);
        for (int c = 0; c < layout->head_dim; c++) {
            absmax[c] = fmaxf(absmax[c], fabsf(row[c]));
            sum[c] += isnan(row[c]) ? 0.0 : (double)fabsf(row[c]);
        }
    }
    for (int c = 0; c < layout->head_dim; c++) {
        enum sl_kv_index kind = sl_kv_format_index(layout->format);
        if (kind == SL_KV_INDEX_BYTES) {
            scale[c] = absmax[c] / 127.0f;
        } else if (kind == SL_KV_INDEX_SIGNS && n_slots > 0) {
            scale[c] = (float)(sum[c] / n_slots);
        }
    }
}

// Returns round-half-even(x / scale); 0 where scale is 0, and for NaN.
static int8_t encode_byte(float x, float scale) {
    float t = scale > 0.0f ? x / scale : 0.0f;
    return (int8_t)(t >= 127.0f ? 127.0f : t <= -127.0f ? -127.0f : isnan(t) ? 0.0f : nearbyintf(t));
}

// Writes slot j of a channel.
static void put_code(const struct sl_key_index_layout *layout, char *channel, uint32_t j, float x, float scale) {
    switch (sl_kv_format_index(layout->format)) {
    case SL_KV_INDEX_BYTES:
        ((int8_t *)channel)[j] = encode_byte(x, scale);
        break;
    case SL_KV_INDEX_SIGNS: // the index was zeroed
        channel[j / 8] = (char)(channel[j / 8] | (x >= 0.0f) << j % 8);
        break;
    case SL_KV_INDEX_FLOATS:
        sl_ref_write_float(layout->format, channel, j, x);
        break;
    case SL_KV_INDEX_NONE:
        __builtin_unreachable();
    }
}

static void index_keys(const struct sl_kv *kv, uint32_t n_slots, const struct sl_key_index_layout *layout,
                       void *index_out) {
    char *index = index_out;
    float row[SL_MAX_HEAD_DIM], *absmax = (float *)(index + layout->absmax), *scale = (float *)(index + layout->scale);
    assert(n_slots <= kv->n_slots && n_slots <= layout->capacity);
    memset(index, 0, layout->bytes);
    find_scales(kv, n_slots, layout, absmax, scale);
    size_t element = (size_t)sl_kv_format_bits(layout->format) / 8, d = (size_t)layout->head_dim;
    for (uint32_t j = 0; j < n_slots; j++) {
        const struct sl_page_layout *page = sl_kv_page_layout(kv, j / SL_PAGE_SLOTS);
        const char *k = (const char *)kv->pages[j / SL_PAGE_SLOTS] + page->k + j % SL_PAGE_SLOTS * d * element;
        sl_ref_read_k_row(kv, j, row);
        for (size_t c = 0; c < d; c++) {
            char *channel = index + layout->codes + c * layout->channel_bytes;
            if (layout->format == page->k_format && !sl_kv_format_is_quantized(page->k_format)) {
                memcpy(channel + j * element, k + c * element, element); // bit by bit, including NaNs
            } else {
                put_code(layout, channel, j, row[c], scale[c]);
            }
        }
    }
}

// Returns K^_j[c] / scale[c], where there are scales.
static float get_code(enum sl_kv_format format, const char *channel, uint32_t j) {
    switch (sl_kv_format_index(format)) {
    case SL_KV_INDEX_BYTES:
        return ((const int8_t *)channel)[j];
    case SL_KV_INDEX_SIGNS:
        return (channel[j / 8] >> j % 8 & 1) != 0 ? 1.0f : -1.0f;
    case SL_KV_INDEX_FLOATS:
        return sl_ref_read_float(format, channel, j);
    case SL_KV_INDEX_NONE:
        break;
    }
    __builtin_unreachable();
}

// scores_out[j - begin] = sum_i q[c_i] scale[c_i] code_j[c_i], or without scales
static void scan(const struct sl_scan_piece *piece, const float *q, const int *channels, int n_channels,
                 float *scores_out) {
    const struct sl_key_index_layout *layout = &piece->layout;
    const char *at = piece->index;
    const float *scale = (const float *)(at + layout->scale);
    bool scaled = sl_kv_format_is_quantized(layout->format);
    assert(piece->end <= layout->capacity);
    for (uint32_t j = piece->begin; j < piece->end; j++) {
        float sum = 0.0f;
        for (int i = 0; i < n_channels; i++) {
            int c = channels[i];
            assert(c >= 0 && c < layout->head_dim);
            float weight = scaled ? q[c] * scale[c] : q[c];
            sum += weight * get_code(layout->format, at + layout->codes + (size_t)c * layout->channel_bytes, j);
        }
        scores_out[j - piece->begin] = sum;
    }
}

static void scan_heads(struct sl_stream *stream, const struct sl_scan_call *args) {
    sl_scan_heads(stream, args, scan);
}

// --- rows ------------------------------------------------------------------------------------------------------------

static size_t work_row_bytes(const struct sl_kv *kv) {
    return sl_row_bytes(kv->work->head_dim, sl_kv_format_bits(kv->work->format));
}

static void copy_rows(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, void *rows_out) {
    const struct sl_page_layout *work = kv->work;
    size_t row_bytes = work_row_bytes(kv);
    float row[SL_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; i++) {
        assert(slots[i] < kv->n_slots);
        char *to = (char *)rows_out + 2 * i * row_bytes;
        const char *page = kv->pages[slots[i] / SL_PAGE_SLOTS];
        size_t at = slots[i] % SL_PAGE_SLOTS * row_bytes;
        if (slots[i] / SL_PAGE_SLOTS >= kv->n_packed) {
            memcpy(to, page + work->k + at, row_bytes);
            memcpy(to + row_bytes, page + work->v + at, row_bytes);
        } else {
            sl_ref_read_k_row(kv, slots[i], row);
            sl_ref_write_row(work, to, 0, row);
            sl_ref_read_v_row(kv, slots[i], row);
            sl_ref_write_row(work, to, 1, row);
        }
    }
}

struct put_call {
    const struct sl_kv_heads *heads;
    struct sl_lists slots;
    struct sl_counts n;
    const void *const *rows;
};

static void put_head(const void *arg, int h) {
    const struct put_call *call = arg;
    const struct sl_kv *kv = &call->heads->kv[h];
    const uint32_t *slots = sl_list(call->slots, h);
    size_t row_bytes = work_row_bytes(kv);
    for (uint32_t i = 0; i < sl_count(call->n, h); i++) {
        assert(slots[i] < kv->n_slots && slots[i] / SL_PAGE_SLOTS >= kv->n_packed);
        const char *from = (const char *)call->rows[h] + 2 * i * row_bytes;
        char *page = kv->pages[slots[i] / SL_PAGE_SLOTS];
        size_t at = slots[i] % SL_PAGE_SLOTS * row_bytes;
        memcpy(page + kv->work->k + at, from, row_bytes);
        memcpy(page + kv->work->v + at, from + row_bytes, row_bytes);
    }
}

static void put_rows(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows) {
    const struct put_call call = {heads, slots, n, rows};
    size_t work = 0;
    for (int h = 0; h < heads->n; h++) {
        work += sl_count(n, h) * 2 * (size_t)heads->kv[h].work->head_dim;
    }
    sl_each_head(stream, heads->n, work, put_head, &call);
}

void sl_ref_scan_fill(struct sl_ops *ops) {
    ops->host.index_keys = index_keys;
    ops->host.scan = scan;
    ops->scan = scan_heads;
    ops->host.copy_rows = copy_rows;
    ops->put_rows = put_rows;
}
