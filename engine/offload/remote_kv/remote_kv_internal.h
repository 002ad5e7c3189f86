// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the internals of segments and remote KVs, shared by the files of engine/offload/remote_kv alone.
 *
 *     segment.c  pages as shipped or as int8, and their key indexes
 *     remote_kv.c    the table of segments; rows of tokens in them
 *     search.c   the search
 */
#pragma once

#include <stdatomic.h>

#include "engine/offload/remote_kv/remote_kv.h"

struct sl_kv_segment {
    struct sl_kv_segment_config config;
    struct sl_page_layout packed; // of int8 rows
    struct sl_key_index_layout scan;
    struct sl_arena *arena;
    void *block;                 // the pages; NULL when they are borrowed
    size_t offloaded_head_bytes; // of one offloaded head's pages in the block
    char *indexes;               // [n_offloaded_heads] key indexes of scan.bytes
    void **pages;                // [n_offloaded_heads][n_pages], in the allocation of kv; NULL when borrowed
    struct sl_kv *kv;            // [n_offloaded_heads]
    atomic_int n_refs;
};

// The maxima over the keys of the first (i + 1) * SL_REMOTE_KV_SPAN segments are kept, so that a search need not read
// those of each.
#define SL_REMOTE_KV_SPAN 16

struct sl_remote_kv {
    const struct sl_ops *ops;
    int first_offloaded_head, n_offloaded_heads, head_dim;
    int64_t max_tokens;
    struct sl_kv_segment **segments; // [max_segments]; the first n_segments never change
    float **maxima;                  // [max_segments / SL_REMOTE_KV_SPAN] of [n_offloaded_heads][d]
    uint32_t max_segments;
    _Atomic uint32_t n_segments; // stored with release order after the entry
};

// Returns the current number of segments; the caller may then read everything about them.
static inline uint32_t sl_remote_kv_n_segments(const struct sl_remote_kv *remote_kv) {
    return atomic_load_explicit(&remote_kv->n_segments, memory_order_acquire);
}

static inline int64_t sl_kv_segment_end(const struct sl_kv_segment *segment) {
    return segment->config.begin + segment->config.n_slots;
}

static inline const float *sl_kv_segment_absmax(const struct sl_kv_segment *segment, int offloaded_head) {
    return (const float *)(segment->indexes + (size_t)offloaded_head * segment->scan.bytes + segment->scan.absmax);
}

// Computes sl_remote_kv_absmax() over the first n segments; offloaded head counts from 0 within the share.
void sl_remote_kv_absmax_of(const struct sl_remote_kv *remote_kv, uint32_t n_segments, int offloaded_head,
                            float *absmax_out);

// Memory that grows without keeping its content. NULL: no memory.
struct sl_buffer {
    void *memory;
    size_t bytes;
};
void *sl_buffer_reserve(struct sl_buffer *buffer, size_t bytes);

struct sl_remote_kv_scratch {
    struct sl_team *team;
    struct sl_buffer searches; // of search.c
    struct sl_buffer answer;   // of near_serve.c
};
