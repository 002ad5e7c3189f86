// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a scan as pages of 64 slots, for all fast tiers.
 *
 * Design: the values that differ between channels (the address of their codes, and their weight: the query, times the
 *         scale if there is one) are computed once. A tier has one kernel for each format, which computes a page. Part
 *         of a page is computed as a whole one: reading it is safe because an index's capacity is whole pages. So a
 *         score is the same chain of sums for every range that contains it.
 */
#pragma once

#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/retrieve/scan_heads.h"
#include "engine/tensor/ops.h"

struct sl_scan_channels {
    int n;
    float weights[SL_MAX_HEAD_DIM];
    const char *codes[SL_MAX_HEAD_DIM];
};

// Computes scores[64] of the slots from slot j on, a multiple of 64: sums over the channels in order.
typedef void (*sl_scan_page_fn)(const struct sl_scan_channels *channels, size_t j, float *scores);

struct sl_scan_kernel {
    sl_scan_page_fn page[SL_KV_N_FORMATS]; // for the formats that a key index can have
};

#define SL_SCAN_OF_FORMAT(name, word, ...)                                                                             \
    static void scan_##word(const struct sl_scan_channels *s, size_t j, float *scores) {                               \
        if (sl_kv_format_index(SL_KV_##name) != SL_KV_INDEX_NONE) {                                                    \
            scan_page(s, j, SL_KV_##name, scores);                                                                     \
        }                                                                                                              \
    }
#define SL_SCAN_ENTRY(name, word, ...) [SL_KV_##name] = scan_##word,

/*
 * Defines a tier's kernels, its host.scan and its ops->scan from its scan_page(channels, slot, format, scores).
 * scan_page is inlined into each kernel, where the format is a constant.
 */
#define SL_SCAN_OF_PAGES                                                                                               \
    SL_KV_FORMATS(SL_SCAN_OF_FORMAT)                                                                                   \
    static const struct sl_scan_kernel kernel = {{SL_KV_FORMATS(SL_SCAN_ENTRY)}};                                      \
    static void scan(const struct sl_scan_piece *piece, const float *q, const int *channels, int n_channels,           \
                     float *scores_out) {                                                                              \
        sl_scan_pages(&kernel, piece, q, channels, n_channels, scores_out);                                            \
    }                                                                                                                  \
    static void scan_heads(struct sl_stream *stream, const struct sl_scan_call *args) {                                \
        sl_scan_heads(stream, args, scan);                                                                             \
    }

// Returns the bytes of a channel before slot j, a multiple of 8.
static inline size_t sl_scan_offset(enum sl_kv_format format, size_t j) {
    return j * (size_t)sl_kv_format_bits(format) / 8;
}

static inline void sl_scan_pages(const struct sl_scan_kernel *kernel, const struct sl_scan_piece *piece, const float *q,
                                 const int *channels, int n_channels, float *scores_out) {
    const struct sl_key_index_layout *layout = &piece->layout;
    uint32_t begin = piece->begin, end = piece->end;
    struct sl_scan_channels s;
    const char *at = piece->index;
    const float *scale = (const float *)(at + layout->scale);
    bool scaled = sl_kv_format_is_quantized(layout->format);
    assert(end <= layout->capacity && n_channels <= layout->head_dim);
    s.n = n_channels;
    for (int i = 0; i < n_channels; i++) {
        int c = channels[i];
        assert(c >= 0 && c < layout->head_dim);
        s.weights[i] = scaled ? q[c] * scale[c] : q[c];
        s.codes[i] = at + layout->codes + (size_t)c * layout->channel_bytes;
    }
    for (uint32_t j = begin; j < end;) {
        uint32_t first = j % SL_PAGE_SLOTS, page = j - first;
        uint32_t last = end - page < SL_PAGE_SLOTS ? end - page : SL_PAGE_SLOTS;
        if (last - first == SL_PAGE_SLOTS) {
            kernel->page[layout->format](&s, page, scores_out);
        } else {
            _Alignas(64) float all[SL_PAGE_SLOTS];
            kernel->page[layout->format](&s, page, all);
            memcpy(scores_out, all + first, (last - first) * sizeof *all);
        }
        scores_out += last - first;
        j += last - first;
    }
}
