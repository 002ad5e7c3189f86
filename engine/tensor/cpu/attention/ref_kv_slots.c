// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: moves slots in and out of pages in plain C: rows, quantize, positions.
 */
#include "engine/tensor/cpu/attention/ref_kv_slots.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "engine/tensor/cpu/attention/kv_page.h"

// --- codes -----------------------------------------------------------------------------------------------------------

// Returns element e of a row of codes: bits e*B .. e*B + B, least significant first; B divides 8.
static unsigned get_code(const uint8_t *row, int e, int bits) {
    int at = e * bits;
    return (unsigned)row[at / 8] >> (at % 8) & ((1u << bits) - 1u);
}

static void put_code(uint8_t *row, int e, int bits, unsigned code) {
    int at = e * bits;
    row[at / 8] = (uint8_t)(row[at / 8] | code << (at % 8)); // the row was zeroed
}

float sl_ref_read_float(enum sl_kv_format format, const char *part, size_t e) {
    switch (format) {
    case SL_KV_F32:
        return ((const float *)part)[e];
    case SL_KV_BF16:
        return sl_bf16_to_f32(((const uint16_t *)part)[e]);
    case SL_KV_F16:
        return sl_f16_to_f32(((const uint16_t *)part)[e]);
    case SL_KV_INT8:
    case SL_KV_INT4:
    case SL_KV_INT2:
    case SL_KV_INT1:
        break;
    }
    __builtin_unreachable(); // codes need a scale and a zero
}

// Returns x^ = code * scale + zero, see page.h.
static float decode(const uint8_t *row, int e, int bits, const uint16_t *pair) {
    return (float)get_code(row, e, bits) * sl_f16_to_f32(pair[0]) + sl_f16_to_f32(pair[1]);
}

static void read_floats(enum sl_kv_format format, const char *part, size_t n, float *out) {
    for (size_t e = 0; e < n; e++) {
        out[e] = sl_ref_read_float(format, part, e);
    }
}

void sl_ref_read_k(const struct sl_page_layout *layout, const void *page, int n_rows, float *out) {
    const char *at = page;
    int d = layout->head_dim, bits = sl_kv_format_bits(layout->format);
    if (!sl_kv_format_is_quantized(layout->format)) {
        read_floats(layout->format, at + layout->k, (size_t)n_rows * (size_t)d, out);
        return;
    }
    for (int i = 0; i < d; i++) { // a row of codes and a pair for each channel
        const uint8_t *row = (const uint8_t *)at + layout->k + (size_t)i * sl_row_bytes(SL_PAGE_SLOTS, bits);
        const uint16_t *pair = (const uint16_t *)(at + layout->k_scale) + 2 * (size_t)i;
        for (int j = 0; j < n_rows; j++) {
            out[j * d + i] = decode(row, j, bits, pair);
        }
    }
}

void sl_ref_read_v(const struct sl_page_layout *layout, const void *page, int n_rows, float *out) {
    const char *at = page;
    int d = layout->head_dim, bits = sl_kv_format_bits(layout->format), channels = sl_v_group(d);
    if (!sl_kv_format_is_quantized(layout->format)) {
        read_floats(layout->format, at + layout->v, (size_t)n_rows * (size_t)d, out);
        return;
    }
    const uint16_t *pairs = (const uint16_t *)(at + layout->v_scale);
    for (int j = 0; j < n_rows; j++) { // a row of codes for each token, a pair for each token and group of channels
        const uint8_t *row = (const uint8_t *)at + layout->v + (size_t)j * sl_row_bytes(d, bits);
        for (int i = 0; i < d; i++) {
            out[j * d + i] = decode(row, i, bits, pairs + 2 * (j * (d / channels) + i / channels));
        }
    }
}

void sl_ref_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS;
    int bits = sl_kv_format_bits(layout->format);
    for (size_t i = 0; i < d; i++) {
        if (sl_kv_format_is_quantized(layout->format)) {
            const uint8_t *row = (const uint8_t *)at + layout->k + i * sl_row_bytes(SL_PAGE_SLOTS, bits);
            out[i] = decode(row, (int)j, bits, (const uint16_t *)(at + layout->k_scale) + 2 * i);
        } else {
            out[i] = sl_ref_read_float(layout->format, at + layout->k, j * d + i);
        }
    }
}

void sl_ref_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, slot / SL_PAGE_SLOTS);
    const char *at = kv->pages[slot / SL_PAGE_SLOTS];
    size_t d = (size_t)layout->head_dim, j = slot % SL_PAGE_SLOTS, channels = (size_t)sl_v_group(layout->head_dim);
    int bits = sl_kv_format_bits(layout->format);
    for (size_t i = 0; i < d; i++) {
        if (sl_kv_format_is_quantized(layout->format)) {
            const uint8_t *row = (const uint8_t *)at + layout->v + j * sl_row_bytes(layout->head_dim, bits);
            const uint16_t *pairs = (const uint16_t *)(at + layout->v_scale) + 2 * (j * (d / channels));
            out[i] = decode(row, (int)i, bits, pairs + 2 * (i / channels));
        } else {
            out[i] = sl_ref_read_float(layout->format, at + layout->v, j * d + i);
        }
    }
}

void sl_ref_write_float(enum sl_kv_format format, char *part, size_t e, float x) {
    switch (format) {
    case SL_KV_F32:
        ((float *)part)[e] = x;
        break;
    case SL_KV_BF16:
        ((uint16_t *)part)[e] = sl_f32_to_bf16(x);
        break;
    case SL_KV_F16:
        ((uint16_t *)part)[e] = sl_f32_to_f16_saturated(x);
        break;
    case SL_KV_INT8:
    case SL_KV_INT4:
    case SL_KV_INT2:
    case SL_KV_INT1:
        __builtin_unreachable(); // codes need a scale and a zero
    }
}

void sl_ref_write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row) {
    size_t first = (size_t)slot * (size_t)layout->head_dim;
    for (size_t i = 0; i < (size_t)layout->head_dim; i++) {
        sl_ref_write_float(layout->format, part, first + i, row[i]);
    }
}

static void read_rows(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out) {
    size_t d = (size_t)kv->work->head_dim;
    float rows[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    for (uint32_t page = begin / SL_PAGE_SLOTS; begin < end; page++) {
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
        uint32_t first = begin - page * SL_PAGE_SLOTS;
        uint32_t last = end - page * SL_PAGE_SLOTS < SL_PAGE_SLOTS ? end - page * SL_PAGE_SLOTS : SL_PAGE_SLOTS;
        size_t n = (last - first) * d;
        if (k_out != NULL) {
            sl_ref_read_k(layout, kv->pages[page], (int)last, rows);
            memcpy(k_out, rows + first * d, n * sizeof *rows);
            k_out += n;
        }
        if (v_out != NULL) {
            sl_ref_read_v(layout, kv->pages[page], (int)last, rows);
            memcpy(v_out, rows + first * d, n * sizeof *rows);
            v_out += n;
        }
        begin += last - first;
    }
}

// --- quantization ----------------------------------------------------------------------------------------------------

// Scale and zero of one group, as they are stored: rounded to f16.
struct group {
    float scale, zero;
};

static void range_of(const float *x, int n, int stride, float *min_out, float *max_out) {
    float min = x[0], max = x[0];
    for (int e = 1; e < n; e++) {
        min = fminf(min, x[(size_t)e * (size_t)stride]);
        max = fmaxf(max, x[(size_t)e * (size_t)stride]);
    }
    *min_out = min;
    *max_out = max;
}

void sl_ref_range_of(const float *x, int n, float *min_out, float *max_out) {
    range_of(x, n, 1, min_out, max_out);
}

// Computes s = (max - min) / (2^b - 1), z = min, both rounded to f16 before any code is computed.
static struct group group_of(const float *x, int n, int stride, int bits, uint16_t *pair) {
    float min, max;
    range_of(x, n, stride, &min, &max);
    pair[0] = sl_f32_to_f16_saturated((max - min) / (float)((1 << bits) - 1));
    pair[1] = sl_f32_to_f16_saturated(min);
    return (struct group){sl_f16_to_f32(pair[0]), sl_f16_to_f32(pair[1])};
}

// Returns round-half-even(clamp((x - z) / s, 0, 2^b - 1)); 0 where s = 0, and for NaN.
static unsigned encode(float x, struct group g, int bits) {
    float t = g.scale > 0.0f ? (x - g.zero) / g.scale : 0.0f;
    float top = (float)((1 << bits) - 1);
    return !(t > 0.0f) ? 0u : t >= top ? (unsigned)top : (unsigned)nearbyintf(t);
}

void sl_ref_copy_slots_data(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                            void *packed_page) {
    char *out = packed_page;
    if (packed->has_positions) {
        memcpy(out + packed->positions, (const char *)page + work->positions, SL_PAGE_SLOTS * sizeof(int32_t));
    }
    memcpy(out + packed->states, (const char *)page + work->states,
           (size_t)packed->n_states * SL_PAGE_SLOTS * sizeof(float));
}

void sl_ref_quantize_page(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                          void *packed_page) {
    float x[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    int d = work->head_dim, bits = sl_kv_format_bits(packed->format), channels = sl_v_group(d);
    char *out = packed_page;
    memset(out, 0, packed->bytes); // codes are OR-ed in; the padding between parts is sent too

    sl_ref_read_k(work, page, SL_PAGE_SLOTS, x);
    for (int i = 0; i < d; i++) { // K: per channel over the page's slots
        struct group g = group_of(x + i, SL_PAGE_SLOTS, d, bits, (uint16_t *)(out + packed->k_scale) + 2 * (size_t)i);
        uint8_t *row = (uint8_t *)out + packed->k + (size_t)i * sl_row_bytes(SL_PAGE_SLOTS, bits);
        for (int j = 0; j < SL_PAGE_SLOTS; j++) {
            put_code(row, j, bits, encode(x[j * d + i], g, bits));
        }
    }
    sl_ref_read_v(work, page, SL_PAGE_SLOTS, x);
    uint16_t *pair = (uint16_t *)(out + packed->v_scale);
    for (int j = 0; j < SL_PAGE_SLOTS; j++) { // V: per token over groups of channels
        uint8_t *row = (uint8_t *)out + packed->v + (size_t)j * sl_row_bytes(d, bits);
        for (int first = 0; first < d; first += channels, pair += 2) {
            struct group g = group_of(x + j * d + first, channels, 1, bits, pair);
            for (int i = first; i < first + channels; i++) {
                put_code(row, i, bits, encode(x[j * d + i], g, bits));
            }
        }
    }
    sl_ref_copy_slots_data(work, page, packed, packed_page);
}

struct quantize_call {
    const struct sl_kv_heads *heads;
    uint32_t n_pages;
    void *const *to;
    sl_quantize_page_fn quantize_page;
};

// A task is a page; the pages are ordered head by head.
static void quantize_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct quantize_call *call = arg;
    (void)member;
    for (int64_t task = begin; task < end; task++) {
        const struct sl_kv *kv = &call->heads->kv[task / call->n_pages];
        if (call->to[task] != NULL) {
            uint32_t page = kv->n_packed + (uint32_t)(task % call->n_pages);
            call->quantize_page(kv->work, kv->pages[page], kv->packed, call->to[task]);
        }
    }
}

void sl_quantize_pages(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       sl_quantize_page_fn quantize_page) {
    struct quantize_call call = {heads, n_pages, to, quantize_page};
    sl_stream_run(stream, (int64_t)heads->n * n_pages, 1, quantize_tasks, &call);
}

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    sl_quantize_pages(stream, heads, n_pages, to, sl_ref_quantize_page);
}

static void collect(struct sl_stream *stream, const struct sl_byte_range *pieces, uint32_t n, void *to) {
    (void)stream;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(to, pieces[i].at, pieces[i].bytes);
        to = (char *)to + pieces[i].bytes;
    }
}

static void digest(struct sl_stream *stream, const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out) {
    (void)stream;
    for (uint32_t i = 0; i < n; i++) {
        const char *at = pieces[i].data;
        digests_out[i] = 0;
        for (uint32_t part = 0; part < pieces[i].n_parts; part++) {
            digests_out[i] = sl_hash(at, pieces[i].part_bytes[part], digests_out[i]);
            at += pieces[i].part_bytes[part];
        }
    }
}

// --- positions -------------------------------------------------------------------------------------------------------

static void read_positions(const struct sl_kv *kv, int64_t *positions_out) {
    for (uint32_t j = 0; j < kv->n_slots; j++) {
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, j / SL_PAGE_SLOTS);
        positions_out[j] = j;
        if (layout->has_positions) {
            positions_out[j] = sl_page_positions(layout, kv->pages[j / SL_PAGE_SLOTS])[j % SL_PAGE_SLOTS];
        }
    }
}

void sl_ref_kv_slots_fill(struct sl_ops *ops) {
    ops->read_positions = read_positions;
    ops->quantize = quantize;
    ops->collect = collect;
    ops->digest = digest;
    ops->host.quantize = sl_ref_quantize_page;
    ops->read_rows = read_rows;
}
