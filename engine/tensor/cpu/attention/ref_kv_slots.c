// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: moves slots in and out of pages in plain C: rows, quantize, positions.
 */
#include "engine/tensor/cpu/attention/ref_kv_slots.h"

#include <string.h>

#include "base/hash.h"
#include "engine/tensor/cpu/pages/ref_codec.h"

// --- reading and writing rows ----------------------------------------------------------------------------------------

// Reads elements [first, end) of a part.
static void read_floats(enum sl_kv_format format, const char *part, size_t first, size_t end, float *out) {
    for (size_t e = first; e < end; e++) {
        out[e - first] = sl_ref_read_float(format, part, e);
    }
}

// Read rows [first, end) as f32 [end - first][d].
static void read_k(const struct sl_page_layout *layout, const void *page, int first, int end, float *out) {
    const char *at = page;
    size_t d = (size_t)layout->head_dim, row_bytes = sl_row_bytes(SL_PAGE_SLOTS, sl_kv_format_bits(layout->k_format));
    if (!sl_kv_format_is_quantized(layout->k_format)) {
        read_floats(layout->k_format, at + layout->k, (size_t)first * d, (size_t)end * d, out);
        return;
    }
    for (size_t i = 0; i < d; i++) { // a row of codes and a pair for each channel
        const uint8_t *row = (const uint8_t *)at + layout->k + i * row_bytes;
        const uint16_t *pair = (const uint16_t *)(at + layout->k_scale) + 2 * i;
        for (int j = first; j < end; j++) {
            out[(size_t)(j - first) * d + i] = sl_ref_decode(row, j, layout->k_format, pair);
        }
    }
}

static void read_v(const struct sl_page_layout *layout, const void *page, int first, int end, float *out) {
    const char *at = page;
    int d = layout->head_dim, channels = sl_v_group(d);
    if (!sl_kv_format_is_quantized(layout->v_format)) {
        read_floats(layout->v_format, at + layout->v, (size_t)first * (size_t)d, (size_t)end * (size_t)d, out);
        return;
    }
    const uint16_t *pairs = (const uint16_t *)(at + layout->v_scale);
    for (int j = first; j < end; j++) { // a row of codes for each token, a pair for each token and group of channels
        const uint8_t *row =
            (const uint8_t *)at + layout->v + (size_t)j * sl_row_bytes(d, sl_kv_format_bits(layout->v_format));
        for (int i = 0; i < d; i++) {
            *out++ = sl_ref_decode(row, i, layout->v_format, pairs + 2 * (j * (d / channels) + i / channels));
        }
    }
}

void sl_ref_read_k(const struct sl_page_layout *layout, const void *page, int n_rows, float *out) {
    read_k(layout, page, 0, n_rows, out);
}

void sl_ref_read_v(const struct sl_page_layout *layout, const void *page, int n_rows, float *out) {
    read_v(layout, page, 0, n_rows, out);
}

void sl_ref_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    uint32_t page = slot / SL_PAGE_SLOTS;
    int j = (int)(slot % SL_PAGE_SLOTS);
    read_k(sl_kv_page_layout(kv, page), kv->pages[page], j, j + 1, out);
}

void sl_ref_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out) {
    uint32_t page = slot / SL_PAGE_SLOTS;
    int j = (int)(slot % SL_PAGE_SLOTS);
    read_v(sl_kv_page_layout(kv, page), kv->pages[page], j, j + 1, out);
}

void sl_ref_write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row) {
    size_t first = (size_t)slot * (size_t)layout->head_dim;
    for (size_t i = 0; i < (size_t)layout->head_dim; i++) {
        sl_ref_write_float(layout->format, part, first + i, row[i]);
    }
}

static void read_rows(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out) {
    size_t d = (size_t)kv->work->head_dim;
    for (uint32_t at = begin, page = begin / SL_PAGE_SLOTS; at < end; page++) {
        const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
        struct sl_range rows = sl_slots_in_page(at, end, page);
        size_t done = (size_t)(at - begin) * d;
        if (k_out != NULL) {
            read_k(layout, kv->pages[page], rows.begin, rows.end, k_out + done);
        }
        if (v_out != NULL) {
            read_v(layout, kv->pages[page], rows.begin, rows.end, v_out + done);
        }
        at += (uint32_t)(rows.end - rows.begin);
    }
}

// --- quantization ----------------------------------------------------------------------------------------------------

void sl_ref_range(const float *x, int n, float *min_out, float *max_out) {
    sl_ref_range_of(x, n, 1, min_out, max_out);
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

// K: a group is a channel over the page's slots.
static void quantize_keys(const struct sl_page_layout *packed, const float *x, char *out) {
    enum sl_kv_format format = packed->k_format;
    int d = packed->head_dim, bits = sl_kv_format_bits(format);
    for (int i = 0; i < d; i++) {
        struct sl_ref_group g =
            sl_ref_group_of(x + i, SL_PAGE_SLOTS, d, format, (uint16_t *)(out + packed->k_scale) + 2 * (size_t)i);
        uint8_t *row = (uint8_t *)out + packed->k + (size_t)i * sl_row_bytes(SL_PAGE_SLOTS, bits);
        for (int j = 0; j < SL_PAGE_SLOTS; j++) {
            sl_ref_put_code(row, j, format, sl_ref_encode(x[j * d + i], g, format));
        }
    }
}

// V: a group is a run of channels of a token.
static void quantize_values(const struct sl_page_layout *packed, const float *x, char *out) {
    enum sl_kv_format format = packed->v_format;
    int d = packed->head_dim, bits = sl_kv_format_bits(format), channels = sl_v_group(d);
    uint16_t *pair = (uint16_t *)(out + packed->v_scale);
    for (int j = 0; j < SL_PAGE_SLOTS; j++) {
        uint8_t *row = (uint8_t *)out + packed->v + (size_t)j * sl_row_bytes(d, bits);
        for (int first = 0; first < d; first += channels, pair += 2) {
            struct sl_ref_group g = sl_ref_group_of(x + j * d + first, channels, 1, format, pair);
            for (int i = first; i < first + channels; i++) {
                sl_ref_put_code(row, i, format, sl_ref_encode(x[j * d + i], g, format));
            }
        }
    }
}

// Copies a half of floats; rounds it if the formats differ.
static void copy_half(const struct sl_page_layout *work, const char *from, enum sl_kv_format format, char *to) {
    size_t n = (size_t)SL_PAGE_SLOTS * (size_t)work->head_dim;
    if (format == work->format) { // bit by bit, including NaNs
        memcpy(to, from, n * (size_t)sl_kv_format_bits(format) / 8);
        return;
    }
    for (size_t e = 0; e < n; e++) {
        sl_ref_write_float(format, to, e, sl_ref_read_float(work->format, from, e));
    }
}

void sl_ref_quantize_page(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                          void *packed_page) {
    float x[SL_PAGE_SLOTS * SL_MAX_HEAD_DIM];
    char *out = packed_page;
    memset(out, 0, packed->bytes); // codes are OR-ed in; the padding between parts is sent too
    if (sl_kv_format_is_quantized(packed->k_format)) {
        sl_ref_read_k(work, page, SL_PAGE_SLOTS, x);
        quantize_keys(packed, x, out);
    } else {
        copy_half(work, (const char *)page + work->k, packed->k_format, out + packed->k);
    }
    if (sl_kv_format_is_quantized(packed->v_format)) {
        sl_ref_read_v(work, page, SL_PAGE_SLOTS, x);
        quantize_values(packed, x, out);
    } else {
        copy_half(work, (const char *)page + work->v, packed->v_format, out + packed->v);
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
